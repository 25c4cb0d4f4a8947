"""Batches of rows; what is read is tested through the backend."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbr_jax.llm.engine import batching as filling
from pbr_jax.llm.engine import prefill, prefixes, scoring
from pbr_jax.models import causal_lm
from pbr_jax.models.causal_lm_config import CausalLMConfig
from pbr_jax.models.rope import Rope


def agreed(paths: list[np.ndarray]) -> int:
    """How many entries lists begin with alike, the slow way."""
    columns = enumerate(zip(*map(list, paths)))
    return next((i for i, column in columns if len(set(column)) > 1), min(map(len, paths)))


@given(
    st.lists(st.tuples(st.integers(1, 150), st.lists(st.integers(0, 2), max_size=6)), max_size=40),
    st.integers(1, 8),
    st.integers(1, 400),
    st.sampled_from([None, 8, 25, 100]),
)
def test_batches_hold_every_row_once_within_their_limits(nodes, rows, slots, step):
    lengths, paths = [length for length, _ in nodes], [np.array(path, np.int32) for _, path in nodes]
    order = sorted(range(len(nodes)), key=lambda i: (-lengths[i], i))
    batches = list(filling.fill(order, lengths, paths, 100, rows, slots, step=step))
    members = [member for batch in batches for member in batch]
    assert members == order if step is None else sorted(members) == list(range(len(nodes)))
    for batch in batches:
        assert len(batch) <= rows
        assert sum(lengths[member] for member in batch) <= 100 or len(batch) == 1
        own = [paths[member] for member in batch]
        assert filling.common(own) == agreed(own)
        wide = max(lengths[member] for member in batch) + max(map(len, own)) - agreed(own)
        assert len(batch) * wide <= slots or len(batch) == 1


def test_little_of_what_a_batch_is_padded_to_is_empty():
    """Prompts of 150 to 330 tokens; batches of a thousand, computed as multiples of 128."""
    lengths = np.random.default_rng(0).integers(150, 330, 2000).tolist()
    order, nothing = np.argsort(lengths)[::-1].tolist(), [np.zeros(0, np.int32)] * 2000

    def empty(step: int | None) -> float:
        batches = filling.fill(order, lengths, nothing, 1024, 64, 2**30, step=step)
        held = [sum(lengths[member] for member in batch) for batch in batches]
        return 1 - sum(held) / sum(-(-total // 128) * 128 for total in held)

    assert empty(None) > 0.04
    assert empty(128) < 0.015


@pytest.mark.parametrize("floor", [1, 16, 64])
def test_buckets_hold_their_counts_and_are_few(floor):
    for buckets, most in ((filling.size, 1.5), (filling.width, 1.5), (filling.bucket, 1.25)):
        found = [buckets(count, floor) for count in range(1, 4097)]
        assert all(value >= count for count, value in enumerate(found, start=1))
        assert all(v <= count * most or v - count < floor for count, v in enumerate(found, start=1))
        assert len(set(found)) <= 8 * 13
    assert filling.size(0) == 0


@pytest.fixture
def shapes(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """What each batch would be compiled for; nothing is computed."""
    seen: dict[str, list[Any]] = {"read": [], "scored": []}

    def of(pool: Any, arguments: Any, tokens: int) -> Any:
        return pool.keys.shape, tuple(np.shape(leaf) for leaf in jax.tree.leaves(arguments)), tokens

    def extend(*_: Any) -> Any:
        def read(params: Any, pool: Any, *arguments: Any, tokens: int) -> Any:
            seen["read"].append(of(pool, arguments, tokens))
            return pool

        return read

    def score(*_: Any) -> Any:
        def read(params: Any, pool: Any, *arguments: Any, tokens: int) -> Any:
            seen["scored"].append(of(pool, arguments, tokens))
            rows = [leaf for leaf in arguments if isinstance(leaf, np.ndarray) and leaf.ndim == 1]
            return np.zeros(len(rows[-1]))

        return read

    monkeypatch.setattr(prefill, "_extend", extend)
    monkeypatch.setattr(prefill, "log_probabilities", score)
    return seen


def real(ahead: int) -> Any:
    """A model that computes, for batches of 96 tokens."""
    config = CausalLMConfig(
        vocab_size=50, width=16, mlp_width=16, num_layers=1, num_heads=2, num_kv_heads=1, head_width=8,
        context=999, rope=Rope(width=8),
    )  # fmt: skip
    model = causal_lm.causal_lm(config)
    params = model.init(jax.random.key(0))
    return prefill.PrefillEngine(model.apply, params, config, tokens=96, memory=2**22, ahead=ahead)


def reader(tokens: int, ahead: int = 0) -> Any:
    config = CausalLMConfig(
        vocab_size=1, width=2, mlp_width=1, num_layers=1, num_heads=1, num_kv_heads=1, head_width=2,
        context=9999, rope=Rope(width=2),
    )  # fmt: skip
    apply, params = causal_lm.causal_lm(config).apply, {"embedding": jnp.zeros((1, 1))}
    return prefill.PrefillEngine(apply, params, config, tokens=tokens, memory=2**24, ahead=ahead)


def test_thousands_of_prompts_of_documents_need_few_programs(shapes):
    """64 users with 20 documents, 32 sets of five each; 111 programs once, before shapes were coarse."""
    draw = np.random.default_rng(0)

    def ids(mean: float, spread: float) -> tuple[int, ...]:
        return tuple(draw.integers(5, 49000, int(np.clip(draw.normal(mean, spread), 5, 120))).tolist())

    start, pairs = ids(62, 0), []
    for _ in range(64):
        documents, question, target = [ids(32, 12) for _ in range(20)], ids(70, 15), ids(27, 9)
        for _ in range(32):
            shown = [documents[place] for place in draw.choice(20, 5, replace=False)]
            pairs.append((start + sum(shown, ()) + question, target))
    model = reader(8192)
    for window in prefixes.windows([a + b for a, b in pairs], prefixes.WINDOW * 4):
        scoring.log_probabilities(model, [pairs[place] for place in window])
    assert len(shapes["read"]) + len(shapes["scored"]) > 40  # batches
    assert len(set(shapes["read"])) + len(set(shapes["scored"])) <= 21


def test_a_few_rows_have_one_shape_whether_or_not_some_share_more_than_all(shapes):
    draw = np.random.default_rng(0)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(draw.integers(5, 49000, count).tolist())

    start, model = ids(64), reader(1024)
    for documents in ([()] * 8, [ids(40) for _ in range(4)] * 2):
        pairs = [(start + document + ids(200), ids(9)) for document in documents]
        scoring.log_probabilities(model, pairs)
    assert len(shapes["scored"]) > 2
    assert len(set(shapes["scored"])) == 1


def test_many_short_targets_of_a_prompt_are_not_padded_far(shapes):
    pairs = [(tuple(range(99)), (200 + i, 1, 2)) for i in range(32)]
    scoring.log_probabilities(reader(1024), pairs)
    [(_, arrays, _)] = shapes["scored"]
    assert max(shape for shape in arrays if len(shape) == 2 and shape[0] >= 32)[1] <= 64
    assert (32, 8) in arrays


class Waits:
    """What an accelerator was given and has not told yet."""

    given = told = most = 0

    def __init__(self, values: np.ndarray):
        self._values = values
        Waits.given += 1
        Waits.most = max(Waits.most, Waits.given - Waits.told)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        Waits.told += 1
        return self._values.astype(dtype)


@pytest.mark.parametrize("ahead", [0, 1, 4, 99])
def test_an_accelerator_is_given_batches_ahead_and_every_score_finds_its_pair(monkeypatch, ahead):
    """Each score is its target token, so that one which went to another pair shows."""
    monkeypatch.setattr(prefill, "_extend", lambda *_: lambda params, pool, *arguments, tokens: pool)
    monkeypatch.setattr(
        prefill,
        "log_probabilities",
        lambda *_: lambda *arguments, tokens: Waits(np.asarray(arguments[-2], np.float64)),
    )
    Waits.given = Waits.told = Waits.most = 0
    draw = np.random.default_rng(1)
    pairs = [
        (tuple(draw.integers(0, 9, draw.integers(1, 90)).tolist()), tuple(draw.integers(0, 999, n).tolist()))
        for n in draw.integers(1, 20, 60)
    ]
    found = scoring.log_probabilities(reader(128, ahead), pairs)
    assert [row.tolist() for row in found] == [list(target) for _, target in pairs]
    assert Waits.given == Waits.told > 10
    assert Waits.most == min(ahead + 1, Waits.given)


@pytest.mark.long
def test_scores_do_not_depend_on_how_many_batches_wait():
    """Prompts that share beginnings and rows, of a model that computes."""
    draw = np.random.default_rng(2)
    start = tuple(draw.integers(0, 50, 40).tolist())
    pairs = [
        (start[: draw.integers(5, 40)] + tuple(draw.integers(0, 50, n).tolist()), (n, 7, 8)[: n % 3 + 1])
        for n in draw.integers(1, 40, 16).tolist()
    ]
    pairs += [(pairs[0][0], (3,)), (pairs[0][0], (4,))]
    wanted, found = (scoring.log_probabilities(real(ahead), pairs) for ahead in (0, 3))
    for one, other in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(one, other)

"""Queries less the mean of past ones: by hand in numpy, in a stream, and where nothing is left of one."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
from hashed_texts import Hashed, vector

import pbr_jax
from pbr_jax.base.types import Document, Example, UserError
from pbr_jax.config import Config, override
from pbr_jax.corpus.store import Store, build
from pbr_jax.graph import Bound
from pbr_jax.methods.retrieve import Centred, Dense
from pbr_jax.methods.retrieve.centred import centred
from pbr_jax.options import Encoder, Expand
from pbr_jax.pipeline import Neighbour, Query, Ranking, Tally
from pbr_jax.stream.stage import Block
from pbr_jax.text.encode import TextEncoder

DOCUMENTS = tuple(Document(f"d{i}", "", f"passage {i}", shared=True) for i in range(9))
EXAMPLES = [Example(f"q{i}", "me", f"query {i}", "in", "t") for i in range(7)]


class World(NamedTuple):
    store: Store
    encoder: Hashed
    embeddings: np.ndarray


@pytest.fixture
def world(tmp_path: Path) -> World:
    build(tmp_path / "store.sqlite", EXAMPLES, shared={"passages": DOCUMENTS})
    store = Store(tmp_path / "store.sqlite")
    return World(store, Hashed(), np.stack([vector(text) for _, text in store.texts()]))


def learned(world: World, folder: Path, blocks: Sequence[Sequence[Example]], stepwise: bool = True) -> Path:
    """The state after some blocks, of one step each or all at once."""
    method, values = Centred(), world._asdict()
    done = []
    for examples in blocks:
        seen = method.observe(Block([*examples], [], [], [], []), state=folder, **values)
        done.append(Block([*examples], [], [], [], json.loads(json.dumps(seen))))
    state = folder / "0"
    state.mkdir(parents=True)
    for end in range(1, len(done) + 1) if stepwise else [len(done)]:
        (folder / f"{end}").mkdir()
        method.learn(done[:end], state=state, out=folder / f"{end}", **values)
        state = folder / f"{end}"
    return state


def ranked(method: Any, world: World, queries: list[Query] | None = None, **values: Any) -> list[Ranking]:
    slot = method.slot(Tally(), **world._asdict(), **values)
    queries = queries or [Query((example.query,)) for example in EXAMPLES]
    return slot(EXAMPLES, queries, [[Neighbour("")]] * len(EXAMPLES))


def test_rankings_by_hand(world: World, tmp_path: Path):
    state = learned(world, tmp_path, [EXAMPLES[:2], EXAMPLES[2:5]])
    mean = np.mean([vector(example.query) for example in EXAMPLES[:5]], axis=0)
    for example, found in zip(EXAMPLES, ranked(Centred(k=9), world, state=state), strict=True):
        moved = vector(example.query) - mean
        scores = {d.id: float(vector(d.text) @ moved) / float(np.linalg.norm(moved)) for d in DOCUMENTS}
        assert {c.document.id: c.score for c in found} == pytest.approx(scores, abs=1e-6)
        assert [c.document.id for c in found] == sorted(scores, key=lambda id: -scores[id])
    plain = ranked(Dense(k=9), world)
    assert [[c.row for c in one] for one in plain] != [
        [c.row for c in one] for one in ranked(Centred(k=9), world, state=state)
    ]


def test_before_the_first_block_it_is_dense(world: World, tmp_path: Path):
    assert ranked(Centred(k=3), world, state=tmp_path) == ranked(Dense(k=3), world)


def test_the_state_is_the_same_step_by_step_and_at_once(world: World, tmp_path: Path):
    """At once: as under cross_users, where the first state learns from all other users' blocks."""
    blocks = [EXAMPLES[:3], EXAMPLES[3:4], EXAMPLES[4:]]
    one = learned(world, tmp_path / "a", blocks)
    two = learned(world, tmp_path / "b", blocks, stepwise=False)
    (file,) = (path.name for path in one.iterdir())
    assert (one / file).read_bytes() == (two / file).read_bytes()
    assert json.loads((one / file).read_text())["count"] == 7


@dataclass(frozen=True, kw_only=True)
class Shouting(Expand):
    """An expansion with a vector of its own for every other question."""

    method: Literal["shouting"] = "shouting"

    def slot(self, tally: Tally) -> Any:
        return lambda examples: [
            Query(("x",), vector(e.query.upper())) if i % 2 else Query((e.query.upper(),))
            for i, e in enumerate(examples)
        ]


def test_where_an_expansion_makes_the_queries_the_mean_is_of_those(world: World, tmp_path: Path):
    block = Block([*EXAMPLES], [], [], [], [])
    seen = Centred().observe(block, state=tmp_path, expand=Bound(Shouting(), {}), **world._asdict())
    np.testing.assert_allclose(seen, [vector(example.query.upper()) for example in EXAMPLES], rtol=1e-6)


def test_lengths_stay_and_a_question_that_is_the_mean_stays_as_it_is():
    queries = np.array([[3.0, 4.0], [1.0, 0.0], [0.0, 0.0]], np.float32)
    moved = centred(queries, np.array([1.0, 0.0]))
    np.testing.assert_allclose(moved[0], np.array([2.0, 4.0]) * 5 / np.sqrt(20), rtol=1e-6)
    assert moved[1].tolist() == [1.0, 0.0]
    assert np.isfinite(moved).all()
    assert moved.dtype == np.float32


def test_it_refuses_to_learn_from_others_unless_the_config_says_so(tmp_path: Path, write_tweets):
    told = {"benchmark.name": "lamp_7", "benchmark.root": str(write_tweets({"ann": ["tea"]})),
            "retrieve.method": "centred", "stream.size": 1}  # fmt: skip
    with pytest.raises(UserError, match=r"retrieve.method centred learns from other users"):
        pbr_jax.run(override(Config(), told), tmp_path / "out")


def test_a_stream_is_ranked_with_the_mean_of_the_blocks_before(tiny_models, write_tweets, tmp_path: Path):
    words = ["tea", "cats", "football", "violins", "rain", "bread"]
    tweets = {f"u{i}": [" ".join(words[j::-1] + words[i:]) for j in range(6)] for i in range(5)}
    told = {"benchmark.name": "lamp_7", "benchmark.root": str(write_tweets(tweets)),
            "collaboration": "signals", "retrieve.method": "centred", "retrieve.k": 6,
            "stream.size": 2, "generate.method": "none", "eval.likelihood": "off",
            "encoder.model": tiny_models["encoder.model"]}  # fmt: skip
    pbr_jax.run(override(Config(), told), tmp_path / "out")
    lines = map(json.loads, (tmp_path / "out" / "predictions.jsonl").read_text().splitlines())
    found = [[document["id"] for document in line["documents"]] for line in lines]
    encoder = TextEncoder(Encoder(model=tiny_models["encoder.model"]))
    asked = [example.query for example in pbr_jax.open(tmp_path / "out").store.examples()]
    queries = encoder.encode(asked, role="query")
    for i, (user, own) in enumerate(tweets.items()):
        past = queries[: i // 2 * 2]
        query = queries[i] - (past.mean(0) if len(past) else 0.0)
        scores = encoder.encode(own) @ query
        assert found[i] == [f"{user}-{j}" for j in np.argsort(-scores, kind="stable")], np.sort(scores)

"""What PURPLE's policy reads: records in rows have the scores of whole ones, at the cost of their tokens."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from pbr_jax.methods.select import Purple
from pbr_jax.methods.select import purple_training as purple
from pbr_jax.methods.select.purple import Question, arrays, rows_of, shape_of
from pbr_jax.models.set_policy import FUSIONS, Fusion, SetPolicyConfig, from_arrays, set_policy
from pbr_jax.options import Optimizer, Training
from pbr_jax.text.padding import padded
from pbr_jax.train.batches import Batches

D, MOST = 8, 8
Questions = list[Question]


def questions(lengths: list[list[int]], seed: int = 0) -> Questions:
    """Random states of records of so many tokens each."""
    draw = np.random.default_rng(seed)

    def states(tokens: int) -> np.ndarray:
        return draw.normal(size=(tokens, D)).astype(np.float16)

    return [
        Question(states(5), [states(n) for n in of], draw.normal(size=len(of)).tolist()) for of in lengths
    ]


def whole(some: Questions, shape: Any) -> dict[str, np.ndarray]:
    """The same arrays with each record in one row, as long as the longest."""
    longest = max(len(record) for one in some for record in one.records)
    states, masks = zip(
        *(padded(one.records, (shape.records, longest, D), np.float16) for one in some), strict=True
    )
    given = arrays(some, shape, 0.5)
    del given["record_of"]
    return given | {"records": np.stack(states), "token_mask": np.stack(masks)}


LENGTHS = {
    "mixed": [[1, 8, 9, 60], [17, 3], [5]],
    "an empty record": [[0, 4, 0], [7, 0, 1, 30]],
    "all alike": [[16] * 6] * 3,
    "one very long": [[3, 200, 2, 2], [1, 1, 1]],
    "no records": [[], [4, 2]],
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("fusion", "case"),
    sorted({(fusion, "mixed") for fusion in FUSIONS} | {("cross_attention", case) for case in LENGTHS}),
)
def test_records_in_rows_have_the_scores_and_gradients_of_whole_ones(fusion: Fusion, case: str):
    some = questions(LENGTHS[case])
    shape = shape_of(5, MOST, D)
    model = set_policy(SetPolicyConfig(width=D, fusion=fusion, num_layers=1, num_heads=2, decoder_width=6))
    params, score = model.init(jax.random.key(0)), from_arrays(model)
    place = arrays(some, shape, 0.5)["record_mask"]

    def loss(params: Any, batch: Any) -> tuple[jax.Array, jax.Array]:
        logits = score(params, batch)
        return (logits * place * np.arange(1, MOST + 1)[None]).sum(), logits

    run = jax.jit(jax.value_and_grad(loss, has_aux=True))
    (value, found), moved = run(params, arrays(some, shape, 0.5))
    assert np.isfinite(value)
    (_, wanted), should = run(params, whole(some, shape))
    np.testing.assert_allclose(found[place], wanted[place], atol=2e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-4), moved, should)


@pytest.mark.long
def test_a_training_on_rows_ends_with_the_parameters_of_one_on_whole_records(tmp_path: Path):
    draw = np.random.default_rng(1)
    some = questions([draw.integers(1, 40, draw.integers(2, 7)).tolist() for _ in range(24)])
    sizes, shape = [len(one.records) for one in some], shape_of(5, MOST, D)
    training = Training(
        epochs=2,
        batch_size=8,
        selection=0.25,
        devices=1,
        optimizer=Optimizer(name="adam", learning_rate=1e-3),
    )
    options = Purple(k=2, num_layers=1, num_heads=2, dropout=0.0, rollouts=4, training=training)

    def reward(asked: Any) -> np.ndarray:
        return np.array([len(some[q].records[p[0]]) / 40 for q, p in asked], np.float32)

    fitted = []
    for place, make in enumerate((lambda of: arrays(of, shape, 0.5), lambda of: whole(of, shape))):
        policy = purple.Policy(
            set_policy(options.sizes(D)), lambda rows, make=make: make([some[i] for i in rows.tolist()])
        )
        owners = [f"u{i // 2}" for i in range(len(some))]
        fitted.append(purple.train(policy, reward, sizes, owners, options, tmp_path / f"{place}", seed=0))
    assert fitted[0].step == fitted[1].step
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), fitted[0].params, fitted[1].params)


@pytest.mark.parametrize(("mean", "spread", "longest"), [(28, 0.4, 70), (102, 0.8, 256), (60, 1.2, 512)])
def test_padding_takes_at_most_half_again_as_many_tokens_in_few_shapes(
    mean: int, spread: float, longest: int
):
    """Lengths as of tweets, of reviews (2 to 20 a question, MiniLM's tokens), and with a longer tail."""
    draw = np.random.default_rng(0)

    def length(count: int) -> list[int]:
        drawn = draw.lognormal(np.log(mean) - spread**2 / 2, spread, count)
        return np.clip(drawn, 3, longest).astype(int).tolist()

    some = questions([length(int(draw.integers(2, 21))) for _ in range(320)])
    lengths = tuple(int(rows_of([len(record) for record in one.records]).sum()) for one in some)
    batches, shapes, computed, real = Batches(len(some), 16, 0, lengths), set(), 0, 0
    for step in range(2 * batches.steps):
        batch = arrays([some[i] for i in batches.rows(step).indices], shape_of(5, 20, D), 0.0)
        shapes.add(tuple(sorted((name, values.shape) for name, values in batch.items())))
        computed, real = computed + batch["token_mask"].size, real + int(batch["token_mask"].sum())
    before = 16 * 20 * longest * 2 * batches.steps
    assert computed <= 1.5 * real
    assert before > 2.5 * computed
    assert len(shapes) <= 14

"""LUF's losses against sums over sets and torch; eight devices equal one; vectors are the pipeline's."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pbr_jax.base.types import Feedback, UserError
from pbr_jax.options import Encoder, LUFLoss, Optimizer, Training, adapting
from pbr_jax.text.encode import TextEncoder
from pbr_jax.train import luf

RANDOM = np.random.default_rng(0)
B, D, ROWS = 5, 6, 30
LOSS = LUFLoss(strict=0.7, flaccid=0.4, hard=1.3, margin=0.6, positives=2, hard_negatives=3)
VARIANTS = {
    "batch": LOSS,
    "labelled": replace(LOSS, negatives="labelled"),
    "mask": replace(LOSS, mask=True),
    "strict": replace(LOSS, flaccid=0.0, hard=0.0),
    "hard": replace(LOSS, flaccid=0.0, strict=0.0, power=0.5),
    "hard labelled": replace(LOSS, flaccid=0.0, negatives="labelled"),
    "flaccid": replace(LOSS, strict=0.0, hard=0.0),
}


def unit(x: np.ndarray) -> np.ndarray:
    return (x / np.linalg.norm(x, axis=-1, keepdims=True)).astype(np.float32)


QUERIES, DOCUMENTS = unit(RANDOM.normal(size=(B, D))), unit(RANDOM.normal(size=(ROWS, D)))


def graded(grades: list[float]) -> Feedback:
    return Feedback(RANDOM.choice(ROWS, len(grades), replace=False), np.array(grades, np.float32))


def some_labels() -> list[Feedback]:
    """Several D+, shared ones, none, related ones alone, and a question whose labels say nothing."""
    first = graded([0, 1, 0.4, 0, 1, 0, 1, 0, 0, 0])
    second = Feedback(first.rows[[4, 1, 0, 7, 2]], np.array([0, 0, 1, 0, 0.2], np.float32))
    return [first, second, graded([0, 0.3, 0, 0]), graded([1]), graded([0, 0, 0])]


def by_hand(labels: list[Feedback], loss: LUFLoss, q: Any, d: Any, torch: Any) -> list[Any]:
    """Each question's loss, in torch, from the equations and the sets in them."""
    grades = [dict(zip(each.rows.tolist(), each.values.tolist(), strict=True)) for each in labels]
    seen = {row for own in grades for row in own}
    relevant = {row for own in grades for row, grade in own.items() if grade > 0}
    pool = seen if loss.negatives == "labelled" else relevant
    found = []
    for i, own in enumerate(grades):
        s = {row: q[i] @ d[row] for row in seen}
        right = [row for row, grade in own.items() if grade == 1]
        total = torch.zeros(())
        if right:
            batch = {row for row in pool if not (loss.mask and 0 < own.get(row, 0) < 1)}
            top = torch.stack([s[row] for row in right]) / loss.temperature
            under = torch.stack([s[row] for row in sorted(batch)]) / loss.temperature
            total = total + loss.strict * (torch.logsumexp(under, 0) - torch.logsumexp(top, 0))
            wrong = [(rank, row) for rank, row in enumerate(own, 1) if own[row] == 0 and row in pool]
            wrong = wrong[: loss.hard_negatives]
            best = torch.stack([s[row] for row in right[: loss.positives]]).mean()
            weights = sum(rank**-loss.power for rank, _ in wrong)
            for rank, row in wrong:
                gap = torch.clamp(loss.margin - best + s[row], min=0)
                total = total + loss.hard * rank**-loss.power / weights * gap
        if any(own.values()):
            held = [row for row in own if row in pool]
            teacher = torch.softmax(torch.tensor([own[row] for row in held]) / loss.temperature, 0)
            student = torch.log_softmax(torch.stack([s[row] for row in held]) / loss.temperature, 0)
            divergence = torch.nn.functional.kl_div(student, teacher, reduction="sum")
            total = total + loss.flaccid * divergence
        found.append(total)
    return found


@pytest.mark.parametrize("name", VARIANTS)
def test_values_and_gradients_are_those_of_torch(name: str):
    torch: Any = pytest.importorskip("torch")
    loss, labels = VARIANTS[name], some_labels()
    q, d = (torch.tensor(x, requires_grad=True) for x in (QUERIES, DOCUMENTS))
    wanted = by_hand(labels, loss, q, d, torch)
    torch.stack(wanted).sum().backward()
    arrays, rows = luf.label_arrays([*labels, None, None, None], loss, 16)
    padded = np.concatenate([QUERIES, QUERIES[:3]])

    def losses(queries: Any, documents: Any) -> Any:
        # What stands in a row for no document may be anything.
        gathered = jnp.where(rows[:, None] >= 0, documents[rows], 7.0)
        values = luf.losses(queries, gathered, jax.tree.map(jnp.asarray, arrays), loss)
        return values.sum(), values

    step = jax.jit(jax.grad(losses, (0, 1), has_aux=True))
    (to_q, to_d), found = step(padded, DOCUMENTS)
    np.testing.assert_allclose(found[:B], [x.item() for x in wanted], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(to_q[:B], q.grad.numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(to_d, d.grad.numpy(), rtol=1e-4, atol=1e-5)
    assert not np.asarray(found[B:]).any()  # rows that do not count
    assert not np.asarray(to_q[B:]).any()


def test_a_question_without_an_answer_adds_no_strict_and_no_hard_loss():
    loss = replace(LOSS, flaccid=0.0, negatives="labelled")
    arrays, rows = luf.label_arrays(some_labels(), loss, 16)
    given = jax.tree.map(jnp.asarray, arrays)
    found = jax.jit(lambda q, d, a: luf.losses(q, d, a, loss))(QUERIES, DOCUMENTS[rows], given)
    assert (np.asarray(found) > 0).tolist() == [True, True, False, True, False]


def test_no_count_of_questions_or_documents_is_in_a_shape():
    shapes = set()
    for _ in range(30):
        grades = [[1.0, *[0.0] * RANDOM.integers(1, 12)] for _ in range(RANDOM.integers(1, 8))]
        labels = [graded(each) for each in grades]
        arrays, rows = luf.label_arrays([*labels, *[None] * (8 - len(labels))], LOSS, 16)
        shapes.add((len(rows), *(x.shape for x in arrays.values())))
        relevant = {row for each in labels for row in each.rows[each.values > 0].tolist()}
        assert sorted(rows[rows >= 0]) == sorted(relevant)
    assert {shape[0] for shape in shapes} == {8}
    assert len(shapes) == 1


ABOUT = 12  # documents that questions are about


def planted(count: int) -> tuple[np.ndarray, list[Feedback]]:
    """Questions about some documents, in whose vectors two dimensions have changed places."""
    about = RANDOM.integers(0, ABOUT, count)
    swapped = DOCUMENTS[about][:, [1, 0, *range(2, D)]]
    queries = unit(swapped + 0.1 * RANDOM.normal(size=(count, D)))
    labels = []
    for query, row in zip(queries, about, strict=True):
        rows = np.argsort(-(DOCUMENTS @ query))[:10]
        labels.append(Feedback(rows, (rows == row).astype(np.float32)))
    return queries, labels


def documents(rows: np.ndarray) -> np.ndarray:
    return DOCUMENTS[rows]


@pytest.mark.long
@pytest.mark.parametrize("overlap", [True, False])
def test_a_map_learns_what_was_planted_and_eight_devices_equal_one(tmp_path: Path, overlap: bool):
    queries, labels = planted(121)
    known = [i for i, each in enumerate(labels) if each.values.any()]
    moving = luf.mapped(queries[known], documents)
    taught = [labels[i] for i in known]
    trained = {}
    for devices in (1, 8):
        training = adapting(
            epochs=20, batch_size=16, devices=devices, optimizer=Optimizer(name="sgd", learning_rate=0.1)
        )
        folder = tmp_path / str(devices)
        trained[devices] = luf.learn(moving, taught, LUFLoss(), training, folder, overlap=overlap, seed=3)
    one, eight = (np.asarray(trained[devices].params["map"]) for devices in (1, 8))
    np.testing.assert_allclose(one, eight, rtol=1e-4, atol=1e-5)
    fresh, asked = planted(200)
    rows = np.array([each.rows[np.argmax(each.values)] for each in asked])
    there = np.array([each.values.any() for each in asked])

    def best(vectors: np.ndarray) -> float:
        return float((np.argmax(vectors @ DOCUMENTS[:ABOUT].T, axis=1) == rows)[there].mean())

    assert best(fresh @ one) > best(fresh) + 0.1
    steps = [line["loss"] for line in trained[1].metrics if "loss" in line]
    assert sum(b < a for a, b in pairwise([steps[0], steps[-1]])) == 1


@pytest.mark.long
@pytest.mark.parametrize("moves", ["query_tower", "both"])
def test_towers_give_the_vectors_that_are_searched(tiny_models, tmp_path: Path, moves: str):
    encoder = TextEncoder(Encoder(model=tiny_models["encoder.model"], normalize="yes"))
    texts = [f"{topic} day {i}" for i in range(4) for topic in ("tea", "cats", "football", "violins")]
    asked = [f"i love {topic}" for topic in ("tea", "cats", "football", "violins")] * 3
    frozen = encoder.encode(texts)
    wanted = (np.arange(len(asked))[:, None] + 1) % 4 == np.arange(len(texts)) % 4  # of the next topic
    labels = [
        Feedback(rows := RANDOM.choice(len(texts), 6, replace=False), own[rows].astype(np.float32))
        for own in wanted
    ]

    def read(rows: np.ndarray) -> list[str]:
        return [texts[row] for row in rows]

    if moves == "query_tower":
        moving = luf.query_tower(encoder, asked, frozen.__getitem__)
    else:
        moving = luf.both(encoder, asked, read)
    training = adapting(epochs=10, batch_size=4, devices=1, optimizer=Optimizer(learning_rate=1e-2))
    fitted = luf.learn(moving, labels, LUFLoss(), training, tmp_path, overlap=True, seed=0)
    tuned = TextEncoder(encoder.config, tuned=(fitted.params["tower"], "name"))
    rows = np.array([3, 7, -1, 0])
    batch = moving.arrays(np.array([2, 0, 9, 5]), rows) | {"row": np.array([2, 0, 9, 5], np.int32)}
    placed = {name: jnp.asarray(value) for name, value in batch.items()}
    queries, documents = moving.vectors(fitted.params, placed, None)
    np.testing.assert_allclose(
        queries, tuned.encode([asked[i] for i in (2, 0, 9, 5)], role="query"), atol=1e-5
    )
    searched = frozen if moves == "query_tower" else tuned.encode(texts)
    np.testing.assert_allclose(np.asarray(documents)[[0, 1, 3]], searched[[3, 7, 0]], atol=1e-5)

    def preferred(queries: np.ndarray, documents: np.ndarray) -> float:
        scores = queries @ documents.T
        return float(scores[wanted].mean() - scores[~wanted].mean())

    before = preferred(encoder.encode(asked, role="query"), frozen)
    assert preferred(tuned.encode(asked, role="query"), searched) > before + 0.02


def test_bad_settings_are_told(tmp_path: Path):
    with pytest.raises(UserError, match=r"retrieve\.loss\.strict, flaccid and hard are all 0"):
        LUFLoss(strict=0.0, flaccid=0.0, hard=0.0)
    queries, labels = planted(9)
    moving, parts = luf.mapped(queries, documents), Training(batch_size=8, accumulate=2)
    with pytest.raises(UserError, match="accumulate is 2, and the loss compares the questions of a batch"):
        luf.learn(moving, labels, LUFLoss(), parts, tmp_path, overlap=True, seed=0)


def searched_by_hand(documents: list[set[int]], size: int) -> list[list[int]]:
    free, batches = list(range(len(documents))), []
    while free:
        batch = [max(free, key=lambda i: (len(documents[i]), -i))]
        free.remove(batch[0])
        while free and len(batch) < size:
            best = max(free, key=lambda i: (sum(len(documents[i] & documents[j]) for j in batch), -i))
            batch.append(best)
            free.remove(best)
        batches.append(batch)
    return batches


@pytest.mark.parametrize("size", [1, 3, 8, 50])
@pytest.mark.parametrize("most", [0, 1, 6])
def test_as_a_search_searched_by_hand(size: int, most: int):
    random = np.random.default_rng(size + most)
    rows = [random.choice(12, random.integers(0, most + 1), replace=False) for _ in range(29)]
    found = [batch.tolist() for batch in luf.overlap_batches(rows, size)]
    assert found == searched_by_hand([set(own.tolist()) for own in rows], size)
    assert sorted(i for batch in found for i in batch) == list(range(29))
    assert [len(batch) for batch in found] == [size] * (29 // size) + [29 % size] * (29 % size > 0)


def test_questions_of_one_paragraph_share_a_batch():
    paragraphs = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 4))
    batches = luf.overlap_batches([np.array([p]) for p in paragraphs], 4)
    assert all(len(set(paragraphs[batch])) == 1 for batch in batches)
    assert paragraphs[batches[0][0]] == paragraphs[0]  # ties: the first to arrive begins
    assert luf.overlap_batches([], 4) == []

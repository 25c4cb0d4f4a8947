"""Batches of questions that share documents, against a search that recomputes every overlap."""

import numpy as np
import pytest

from pbr_jax.train.overlap import overlap_batches


def by_hand(documents: list[set[int]], size: int) -> list[list[int]]:
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
def test_as_a_search_by_hand(size: int, most: int):
    random = np.random.default_rng(size + most)
    rows = [random.choice(12, random.integers(0, most + 1), replace=False) for _ in range(29)]
    found = [batch.tolist() for batch in overlap_batches(rows, size)]
    assert found == by_hand([set(own.tolist()) for own in rows], size)
    assert sorted(i for batch in found for i in batch) == list(range(29))
    assert [len(batch) for batch in found] == [size] * (29 // size) + [29 % size] * (29 % size > 0)


def test_questions_of_one_paragraph_share_a_batch():
    paragraphs = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 4))
    batches = overlap_batches([np.array([p]) for p in paragraphs], 4)
    assert all(len(set(paragraphs[batch])) == 1 for batch in batches)
    assert paragraphs[batches[0][0]] == paragraphs[0]  # ties: the first to arrive begins
    assert overlap_batches([], 4) == []

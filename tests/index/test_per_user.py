"""The nearest of some rows against a plain loop."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from pbr_jax.index.per_user import nearest


def plain_loop(vectors, query, rows, k):
    """Best rows by sorting (score, row) pairs in float64."""
    pairs = sorted(
        (-float(vectors[row].astype(np.float64) @ query.astype(np.float64)), row) for row in set(rows)
    )
    return [row for _, row in pairs[:k]]


@settings(deadline=None)
@given(st.integers(0, 30), st.integers(1, 8), st.integers(0, 2**32 - 1))
def test_any_rows_in_any_order(size, k, seed):
    rng = np.random.default_rng(seed)
    vectors = rng.integers(-2, 3, (40, 3)).astype(np.float32)  # exact scores, many ties
    rows = rng.integers(0, 40, size)  # unordered, with repetitions
    query = rng.integers(-2, 3, 3).astype(np.float32)
    found, scores = nearest(vectors, rows, query, k)
    assert found.tolist() == plain_loop(vectors, query, rows.tolist(), k)
    np.testing.assert_array_equal(scores, vectors[found] @ query)


def test_a_score_does_not_depend_on_what_else_is_searched():
    rng = np.random.default_rng(0)
    vectors, query = rng.normal(size=(120, 384)).astype(np.float32), rng.normal(size=384).astype(np.float32)
    rows, scores = nearest(vectors, np.arange(120), query, 120)
    for row, score in zip(rows, scores):
        assert nearest(vectors, np.array([row]), query, 1)[1][0] == score
    vectors[7] = vectors[90]
    rows, scores = nearest(vectors, np.arange(1, 120, 2), query, 60)
    both = {row: score for row, score in zip(rows.tolist(), scores.tolist()) if row in (7, 90)}
    assert both.keys() == {7}


def test_memory_maps_are_searched_in_place(tmp_path):
    vectors = np.random.default_rng(1).normal(size=(50, 4)).astype(np.float32)
    np.save(tmp_path / "x.npy", vectors)
    mapped, rows = np.load(tmp_path / "x.npy", mmap_mode="r"), np.array([3, 4, 5, 9])
    for ours, plain in zip(nearest(mapped, rows, vectors[0], 2), nearest(vectors, rows, vectors[0], 2)):
        np.testing.assert_array_equal(ours, plain)

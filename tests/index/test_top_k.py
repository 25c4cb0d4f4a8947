"""Ranking on the device and on the host, against a sort of (score, position) pairs."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbr_jax.base.types import UserError
from pbr_jax.index.top_k import nearest, top_k, top_positions

levels = st.sampled_from([-np.inf, -2.0, -0.0, 0.0, 0.5, 3.0])  # few, so that ties are many


def ranked(scores, k):
    """Positions by sorting pairs in plain Python."""
    return sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:k]


@settings(deadline=None)
@given(st.lists(levels, min_size=7, max_size=7), st.sampled_from([1, 3, 9]))  # each shape compiles once
def test_device_and_host_rank_as_sorted_pairs_and_the_device_pads_with_nothing(scores, k):
    values, rows = top_k(jnp.array(scores, jnp.float32), k)
    order = ranked(scores, k)
    assert top_positions(np.array(scores, np.float32), k).tolist() == order
    expected = [i for i in order if scores[i] > -np.inf]
    absent = k - len(expected)
    assert rows.tolist() == expected + [-1] * absent
    assert values.tolist() == [scores[i] for i in expected] + [-np.inf] * absent


@pytest.mark.parametrize("levels", [3, 100_000])  # with many ties at the k-th place, and with few
def test_host_ranks_long_rows_as_sorted_pairs(levels):
    scores = np.random.default_rng(0).integers(0, levels, 5_000).astype(np.float32)
    assert top_positions(scores, 20).tolist() == ranked(scores.tolist(), 20)


def test_equal_scores_go_to_the_lower_row_even_for_negative_zero():
    assert top_k(jnp.array([-0.0, 0.0, -0.0]), 3)[1].tolist() == [0, 1, 2]


def test_leading_axes_are_ranked_one_by_one():
    scores = np.random.default_rng(1).normal(size=(2, 3, 7)).astype(np.float32)
    values, rows = top_k(jnp.array(scores), 4)
    np.testing.assert_array_equal(rows, np.argsort(-scores, axis=-1)[..., :4])
    np.testing.assert_array_equal(values, np.take_along_axis(scores, np.asarray(rows), -1))


def test_half_precision_is_ranked_as_float32():
    values, rows = top_k(jnp.array([1.0, 3.0, 2.0], jnp.bfloat16), 2)
    assert values.dtype == jnp.float32
    assert rows.tolist() == [1, 2]


def test_slicing_the_result_keeps_the_fast_path():
    compiled: Any = (
        jax.jit(lambda scores: top_k(scores, 5)[0][:, -1]).lower(jnp.zeros((8, 1000))).compile().as_text()
    )
    assert "TopK" in compiled
    assert " sort(" not in compiled


def test_asking_for_nothing_is_refused():
    with pytest.raises(UserError, match="k is 0"):
        top_k(jnp.zeros(3), 0)
    with pytest.raises(UserError, match="k is 0"):
        top_positions(np.zeros(3, np.float32), 0)


@settings(deadline=None)
@given(st.integers(0, 30), st.integers(1, 8), st.integers(0, 2**32 - 1))
def test_any_rows_in_any_order(size, k, seed):
    rng = np.random.default_rng(seed)
    vectors = rng.integers(-2, 3, (40, 3)).astype(np.float32)  # exact scores, many ties
    rows = rng.integers(0, 40, size)  # unordered, with repetitions
    query = rng.integers(-2, 3, 3).astype(np.float32)
    found, scores = nearest(vectors, rows, query, k)
    assert found.tolist() == sorted({*rows.tolist()}, key=lambda row: (-float(vectors[row] @ query), row))[:k]
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

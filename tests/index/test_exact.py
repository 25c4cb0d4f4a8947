"""Exact search against sorting all scores with numpy, on one device and on eight."""

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType

from pbr_jax.base.types import UserError
from pbr_jax.index import exact
from pbr_jax.index.exact import ExactIndex


def whole_numbers(rng, *shape):
    """Vectors whose dot products are exact in float32, with many ties."""
    return rng.integers(-3, 4, shape).astype(np.float32)


def brute_force(queries, vectors, k):
    """Rows by sorting (score, row) pairs; -1 where there are fewer than k."""
    found = np.full((len(queries), k), -1)
    for q, query in enumerate(queries):
        best = [row for _, row in sorted((-float(v @ query), row) for row, v in enumerate(vectors))[:k]]
        found[q, : len(best)] = best
    return found


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    return whole_numbers(rng, 203, 8), whole_numbers(rng, 11, 8)


def one_device():
    return jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:1])


@pytest.mark.parametrize("k", [1, 5, 30, 300])
def test_equals_brute_force_with_ties_to_the_lower_row(data, k):
    vectors, queries = data
    found = ExactIndex(vectors).search(queries, k)
    np.testing.assert_array_equal(found.rows, brute_force(queries, vectors, k))
    dots = np.einsum("qkd,qd->qk", vectors[found.rows], queries)
    np.testing.assert_array_equal(found.scores, np.where(found.rows < 0, -np.inf, dots))


def test_eight_devices_equal_one(data):
    vectors, queries = data
    eight, one = ExactIndex(vectors), ExactIndex(vectors, mesh=one_device())
    assert len(eight._block(0).vectors.sharding.device_set) == 8
    for ours, theirs in zip(eight.search(queries, 7), one.search(queries, 7)):
        np.testing.assert_array_equal(ours, theirs)


def test_blocks_and_query_chunks_do_not_change_the_answer(data, monkeypatch):
    vectors, queries = data
    monkeypatch.setattr(exact, "QUERIES", 4)
    found = ExactIndex(vectors, block_rows=32).search(queries, 40)
    np.testing.assert_array_equal(found.rows, brute_force(queries, vectors, 40))


def test_a_memory_map_is_streamed_and_agrees(data, tmp_path):
    vectors, queries = data
    np.save(tmp_path / "x.npy", vectors)
    index = ExactIndex(np.load(tmp_path / "x.npy", mmap_mode="r"), block_rows=64)
    found = index.search(queries, 5)
    assert index._resident is None, "nothing of a large memory map stays on the devices"
    np.testing.assert_array_equal(found.rows, brute_force(queries, vectors, 5))


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 40), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_any_size_equals_brute_force(n, k, seed):
    rng = np.random.default_rng(seed)
    vectors, queries = whole_numbers(rng, n, 4), whole_numbers(rng, 3, 4)
    found = ExactIndex(vectors, mesh=one_device()).search(queries, k)
    np.testing.assert_array_equal(found.rows, brute_force(queries, vectors, k))


def test_growing_within_a_bucket_compiles_nothing_new():
    rng = np.random.default_rng(2)
    sizes = [(1001, 9, 3), (1010, 16, 4), (1024, 12, 4)]  # documents, queries, k
    compiled: Any = exact._merge_block
    before = compiled._cache_size()
    for n, q, k in sizes:
        ExactIndex(whole_numbers(rng, n, 6)).search(whole_numbers(rng, q, 6), k)
    assert compiled._cache_size() == before + 1


def test_wrong_calls_are_refused(data):
    vectors, queries = data
    with pytest.raises(UserError, match="k is 0"):
        ExactIndex(vectors).search(queries, 0)
    with pytest.raises(UserError, match="queries have width 3, but the index holds vectors of width 8"):
        ExactIndex(vectors).search(queries[:, :3], 1)
    with pytest.raises(UserError, match="row 1 of vectors holds NaN or infinity"):
        ExactIndex(np.array([[0.0], [np.nan]], np.float32))


def test_a_recall_target_finds_most_of_the_best_rows_by_narrow_products():
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(50, 64))
    vectors = (centres[rng.integers(50, size=8192)] + rng.normal(size=(8192, 64))).astype(np.float32)
    queries = vectors[:64] + 0.05 * rng.normal(size=(64, 64)).astype(np.float32)
    exact = ExactIndex(vectors).search(queries, 10)
    found = ExactIndex(vectors, recall_target=0.95, block_rows=4096).search(queries, 10)
    shared = [len({*ours} & {*theirs}) for ours, theirs in zip(found.rows, exact.rows)]
    assert np.mean(shared) / 10 >= 0.95
    assert (np.diff(found.scores) <= 0).all()
    np.testing.assert_allclose(found.scores, np.einsum("qkd,qd->qk", vectors[found.rows], queries), rtol=0.02)

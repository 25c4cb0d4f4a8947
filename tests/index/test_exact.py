"""Exact search against sorting all scores with numpy, on one device and on eight."""

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType

from pbr_jax.index import exact
from pbr_jax.index.base import EVERYONE
from pbr_jax.index.exact import ExactIndex
from pbr_jax.types import UserError


def whole_numbers(rng, *shape):
    """Vectors whose dot products are exact in float32, with many ties."""
    return rng.integers(-3, 4, shape).astype(np.float32)


def brute_force(queries, vectors, owners, users, k):
    """Rows by sorting (score, row) pairs; -1 where the users own fewer than k."""
    found = np.full((len(queries), k), -1)
    for q, query in enumerate(queries):
        pairs = [
            (-float(vector @ query), row)
            for row, vector in enumerate(vectors)
            if users is EVERYONE or owners[row] in users[q]
        ]
        best = [row for _, row in sorted(pairs)[:k]]
        found[q, : len(best)] = best
    return found


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    owners = [f"user{code}" for code in rng.integers(0, 9, 203)]
    return whole_numbers(rng, 203, 8), owners, whole_numbers(rng, 11, 8)


@pytest.fixture(scope="module")
def users():
    """Per query: one user, several, an unknown one, a repeated one."""
    some = [["user0"], ["user1", "user2"], {"user3"}, ("nobody",), ["user4", "user4"], ["nobody", "user5"]]
    return [*some, ["user"], ["user10"], ["USER1"], [f"user{i}" for i in range(9)], ["user8"]]


def one_device():
    return jax.make_mesh((1,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:1])


@pytest.mark.parametrize("k", [1, 5, 30, 300])
def test_everyone_equals_brute_force_with_ties_to_the_lower_row(data, k):
    vectors, owners, queries = data
    index = ExactIndex(vectors, owners)
    found = index.search(queries, k, users=EVERYONE)
    np.testing.assert_array_equal(found.rows, brute_force(queries, vectors, owners, EVERYONE, k))
    dots = np.einsum("qkd,qd->qk", vectors[found.rows], queries)
    np.testing.assert_array_equal(found.scores, np.where(found.rows < 0, -np.inf, dots))


@pytest.mark.parametrize("k", [3, 40])
def test_named_users_equal_brute_force(data, users, k):
    vectors, owners, queries = data
    found = ExactIndex(vectors, owners).search(queries, k, users=users)
    np.testing.assert_array_equal(found.rows, brute_force(queries, vectors, owners, users, k))
    assert np.isneginf(found.scores[found.rows < 0]).all()


def test_eight_devices_equal_one(data, users):
    vectors, owners, queries = data
    eight, one = ExactIndex(vectors, owners), ExactIndex(vectors, owners, mesh=one_device())
    assert len(eight._block(0).vectors.sharding.device_set) == 8
    for named in (EVERYONE, users):
        for ours, theirs in zip(eight.search(queries, 7, users=named), one.search(queries, 7, users=named)):
            np.testing.assert_array_equal(ours, theirs)


def test_real_valued_vectors_match_float64(data):
    rng = np.random.default_rng(1)
    vectors, queries = rng.normal(size=(500, 24)), rng.normal(size=(6, 24))
    index = ExactIndex(vectors.astype(np.float32), ["u"] * 500)
    found = index.search(queries.astype(np.float32), 10, users=[["u"]] * 6)
    scores = queries @ vectors.T
    np.testing.assert_array_equal(found.rows, np.argsort(-scores, axis=1)[:, :10])
    np.testing.assert_allclose(found.scores, -np.sort(-scores, axis=1)[:, :10], rtol=1e-5, atol=1e-5)


def test_blocks_and_query_chunks_do_not_change_the_answer(data, users, monkeypatch):
    vectors, owners, queries = data
    monkeypatch.setattr(exact, "QUERIES", 4)
    found = ExactIndex(vectors, owners, block_rows=32).search(queries, 40, users=users)
    np.testing.assert_array_equal(found.rows, brute_force(queries, vectors, owners, users, 40))


def test_a_memory_map_is_streamed_and_agrees(data, users, tmp_path):
    vectors, owners, queries = data
    ExactIndex(vectors, owners).save(tmp_path)
    index = ExactIndex.load(tmp_path, mmap=True, block_rows=64)
    assert isinstance(index.vectors, np.memmap)
    found = index.search(queries, 5, users=users)
    assert index._resident is None, "nothing of a large memory map stays on the devices"
    np.testing.assert_array_equal(found.rows, brute_force(queries, vectors, owners, users, 5))


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 40), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_no_query_ever_sees_a_row_of_a_user_it_did_not_name(n, k, seed):
    rng = np.random.default_rng(seed)
    owners = [f"u{code}" for code in rng.integers(0, 5, n)]
    users = [[f"u{code}" for code in rng.integers(0, 7, rng.integers(1, 4))] for _ in range(3)]
    vectors, queries = whole_numbers(rng, n, 4), whole_numbers(rng, 3, 4)
    found = ExactIndex(vectors, owners, mesh=one_device()).search(queries, k, users=users)
    np.testing.assert_array_equal(found.rows, brute_force(queries, vectors, owners, users, k))


def test_growing_within_a_bucket_compiles_nothing_new():
    rng = np.random.default_rng(2)
    sizes = [(1001, 9, 3), (1010, 16, 4), (1024, 12, 4)]  # documents, queries, k
    compiled: Any = exact._merge_block
    before = compiled._cache_size()
    for n, q, k in sizes:
        ExactIndex(whole_numbers(rng, n, 6), ["u"] * n).search(whole_numbers(rng, q, 6), k, users=EVERYONE)
    assert compiled._cache_size() == before + 1


def test_add_replace_and_delete_equal_a_fresh_index(data):
    vectors, owners, queries = data
    index = ExactIndex(vectors[:150], owners[:150])
    index.search(queries, 3, users=EVERYONE)  # so that stale blocks would show
    new_ids = [str(row) for row in range(150, 203)]
    index.add(vectors[150:], owners[150:], ids=new_ids)
    index.add(-vectors[:10], owners[:10], ids=[str(row) for row in range(10)])
    assert index.delete(["200", "20", "no such id"]) == 2
    expected = np.concatenate([-vectors[:10], vectors[10:]])
    keep = [row for row in range(203) if row not in (20, 200)]
    assert index.ids == tuple(str(row) for row in keep)
    found = index.search(queries, 9, users=EVERYONE)
    fresh = brute_force(queries, expected[keep], None, EVERYONE, 9)
    np.testing.assert_array_equal(found.rows, fresh)
    assert index.delete(["20"]) == 0


def test_adding_another_users_document_is_refused_and_changes_nothing(data):
    vectors, owners, _ = data
    index = ExactIndex(vectors, owners)
    with pytest.raises(UserError, match="'7' belongs to another user"):
        index.add(vectors[:1], ["intruder"], ids=["7"])
    assert len(index) == 203


def test_save_load_and_forget(data, users, tmp_path):
    vectors, owners, queries = data
    secret = np.array([[1234.5678] * 8], np.float32)
    index = ExactIndex(vectors, owners)
    index.add(secret, ["canary-user"], ids=["canary-document"])
    index.save(tmp_path / "index")
    moved = (tmp_path / "index").rename(tmp_path / "moved")
    loaded = ExactIndex.load(moved)
    for ours, theirs in zip(loaded.search(queries, 4, users=users), index.search(queries, 4, users=users)):
        np.testing.assert_array_equal(ours, theirs)
    loaded.delete(["canary-document"])
    loaded.save(moved)
    everything = b"".join(path.read_bytes() for path in moved.rglob("*") if path.is_file())
    assert b"canary" not in everything
    assert secret.tobytes() not in everything
    assert ExactIndex.load(moved).search(queries, 1, users=[["canary-user"]] * 11).rows.max() == -1


def test_an_index_of_objects_is_refused(data, tmp_path):
    vectors, owners, _ = data
    ExactIndex(vectors, owners).save(tmp_path)
    path = next(tmp_path.rglob("vectors.npy"))
    np.save(path, np.array([{}]), allow_pickle=True)
    with pytest.raises(UserError, match="cannot be read as vectors"):
        ExactIndex.load(tmp_path)
    np.save(path, vectors[:-1])
    with pytest.raises(UserError, match="202, 8"):
        ExactIndex.load(tmp_path)


def test_an_empty_index_finds_nothing():
    index = ExactIndex(np.zeros((0, 4), np.float32), [])
    found = index.search(np.ones((2, 4), np.float32), 3, users=[["a"], ["b"]])
    assert found.rows.tolist() == [[-1] * 3] * 2
    index.add(np.ones((1, 4), np.float32), ["a"], ids=["first"])
    assert index.search(np.ones((2, 4), np.float32), 1, users=[["a"], ["b"]]).rows.tolist() == [[0], [-1]]
    assert index.search(np.ones((0, 4), np.float32), 1, users=EVERYONE).rows.shape == (0, 1)


def test_wrong_calls_are_refused(data):
    vectors, owners, queries = data
    index = ExactIndex(vectors, owners)
    with pytest.raises(TypeError, match="users"):
        index.search(queries, 3)  # pyright: ignore[reportCallIssue]
    with pytest.raises(UserError, match="11 queries"):
        index.search(queries, 3, users=[["user0"]])
    with pytest.raises(UserError, match="width 4"):
        index.search(queries[:, :4], 3, users=EVERYONE)
    with pytest.raises(UserError, match="k is 0"):
        index.search(queries, 0, users=EVERYONE)
    with pytest.raises(UserError, match="203 document ids for 2 owners"):
        ExactIndex(vectors, ["a", "b"])
    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    with pytest.raises(UserError, match="axes"):
        ExactIndex(vectors, owners, mesh=mesh)

"""Search inside users against a plain loop, and rows of others that no scope can smuggle in."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbr_jax.index.per_user import PerUserIndex, Scope
from pbr_jax.types import UserError


def plain_loop(vectors, query, rows, k):
    """Best rows by sorting (score, row) pairs in float64."""
    pairs = sorted(
        (-float(vectors[row].astype(np.float64) @ query.astype(np.float64)), row) for row in set(rows)
    )
    return [row for _, row in pairs[:k]]


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    owners = np.array([f"user{code}" for code in rng.integers(0, 6, 120)])  # rows of users interleave
    return rng.normal(size=(120, 12)).astype(np.float32), owners, rng.normal(size=(4, 12)).astype(np.float32)


def test_each_scope_is_ranked_by_itself(data):
    vectors, owners, queries = data
    index = PerUserIndex(vectors, owners)
    users = [["user0"], ["user1", "user2", "user3"], [], ["user5", "user0"]]
    hits = index.search(queries, index.scopes(users), 4)
    assert hits.rows.shape == hits.scores.shape == (4, 3, 4)
    for q, named in enumerate(users):
        for m in range(3):
            expected = (
                plain_loop(vectors, queries[q], np.flatnonzero(owners == named[m]), 4)
                if m < len(named)
                else []
            )
            assert hits.rows[q, m].tolist() == expected + [-1] * (4 - len(expected))
            np.testing.assert_allclose(
                hits.scores[q, m, : len(expected)], vectors[expected] @ queries[q], rtol=1e-5, atol=1e-6
            )
            assert np.isneginf(hits.scores[q, m, len(expected) :]).all()


@settings(deadline=None)
@given(st.integers(0, 30), st.integers(1, 8), st.integers(0, 2**32 - 1))
def test_any_part_of_a_history_in_any_order(size, k, seed):
    rng = np.random.default_rng(seed)
    vectors = rng.integers(-2, 3, (40, 3)).astype(np.float32)  # exact scores, many ties
    index = PerUserIndex(vectors, np.zeros(40, np.int64))
    rows = rng.integers(0, 40, size)  # unordered, with repetitions
    query = rng.integers(-2, 3, (1, 3)).astype(np.float32)
    hits = index.search(query, [[Scope("0", rows)]], k)
    expected = plain_loop(vectors, query[0], rows.tolist(), k)
    assert hits.rows[0, 0].tolist() == expected + [-1] * (k - len(expected))


def test_a_new_user_finds_nothing_and_one_document_is_found(data):
    vectors, _, queries = data
    index = PerUserIndex(vectors[:3], ["a", "b", "b"])
    hits = index.search(queries[:2], index.scopes([["a"], ["newcomer"]]), 5)
    assert hits.rows[:, 0].tolist() == [[0, -1, -1, -1, -1], [-1] * 5]
    assert index.rows("newcomer").tolist() == []


def test_equal_documents_score_equally_and_go_to_the_lower_row():
    # In float32 a matrix product may give equal rows different last bits, depending on where they stand.
    rng = np.random.default_rng(3)
    vector, query = rng.normal(size=(1, 33)).astype(np.float32), rng.normal(size=(1, 33)).astype(np.float32)
    index = PerUserIndex(np.repeat(vector, 501, axis=0), np.zeros(501, int))
    hits = index.search(query, index.scopes([["0"]]), 501)
    assert hits.rows[0, 0].tolist() == list(range(501))
    assert len(np.unique(hits.scores)) == 1


def test_a_score_does_not_depend_on_what_else_is_in_scope(data):
    vectors, _, queries = data
    index = PerUserIndex(vectors, ["u"] * 120)
    whole = index.search(queries[:1], index.scopes([["u"]]), 120)
    score_of = dict(zip(whole.rows[0, 0].tolist(), whole.scores[0, 0].tolist()))
    for rows in (np.arange(5, 12), np.array([3, 99]), np.array([50])):
        part = index.search(queries[:1], [[Scope("u", rows)]], len(rows))
        assert {row: score_of[row] for row in part.rows[0, 0].tolist()} == dict(
            zip(part.rows[0, 0].tolist(), part.scores[0, 0].tolist())
        )


@pytest.mark.parametrize("row", [-1, -119, 120, 10**12])
def test_a_row_outside_the_matrix_is_refused(data, row):
    vectors, _, queries = data
    index = PerUserIndex(vectors, ["u"] * 120)
    with pytest.raises(UserError, match=f"row {row} is in the scope of user 'u'"):
        index.search(queries[:1], [[Scope("u", np.array([0, row]))]], 3)


def test_one_foreign_row_among_many_scopes_is_refused(data):
    vectors, owners, queries = data
    index = PerUserIndex(vectors, owners)
    foreign = int(index.rows("user2")[-1])
    scopes = index.scopes([["user0"], ["user1"], ["user2"], ["user3"]])
    scopes[3].append(Scope("user1", np.append(index.rows("user1"), foreign)))
    with pytest.raises(
        UserError, match=f"row {foreign} is in the scope of user 'user1', who does not own it"
    ):
        index.search(queries, scopes, 2)


@pytest.mark.parametrize("imposter", ["user", "User1", "user1 ", "user11", "", "nobody"])
def test_only_the_exact_id_opens_a_history(data, imposter):
    vectors, owners, queries = data
    index = PerUserIndex(vectors, owners)
    assert index.rows(imposter).tolist() == []
    with pytest.raises(UserError, match="does not own it"):
        index.search(queries[:1], [[Scope(imposter, index.rows("user1"))]], 2)


def test_memory_maps_are_searched_in_place(data, tmp_path):
    vectors, owners, queries = data
    np.save(tmp_path / "vectors.npy", vectors)
    mapped = np.load(tmp_path / "vectors.npy", mmap_mode="r")
    index, other = PerUserIndex(mapped, owners), PerUserIndex(vectors, owners)
    assert isinstance(index.vectors, np.memmap)
    scopes = other.scopes([["user0", "user4"]] * 4)
    for ours, theirs in zip(index.search(queries, scopes, 3), other.search(queries, scopes, 3)):
        np.testing.assert_array_equal(ours, theirs)


def test_no_queries_and_no_scopes_are_fine(data):
    vectors, owners, queries = data
    index = PerUserIndex(vectors, owners)
    assert index.search(queries[:0], [], 3).rows.shape == (0, 0, 3)
    assert index.search(queries[:1], [[]], 3).rows.shape == (1, 0, 3)


def test_wrong_calls_are_refused(data):
    vectors, owners, queries = data
    index = PerUserIndex(vectors, owners)
    with pytest.raises(UserError, match="1 lists of scopes for 4 queries"):
        index.search(queries, [[]], 3)
    with pytest.raises(UserError, match="k is 0"):
        index.search(queries[:1], [[]], 0)
    with pytest.raises(UserError, match="width 3"):
        index.search(queries[:1, :3], [[]], 1)
    with pytest.raises(UserError, match="flat list of integer rows"):
        index.search(queries[:1], [[Scope("user0", np.array([0.0]))]], 1)
    with pytest.raises(UserError, match="write \\[user_id\\]"):
        index.scopes(["user0"])
    with pytest.raises(UserError, match="120 vectors for 3 owners"):
        PerUserIndex(vectors, owners[:3])
    with pytest.raises(UserError, match="NaN"):
        index.search(np.full((1, 12), np.nan, np.float32), [[]], 1)

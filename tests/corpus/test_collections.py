"""Search against brute force, whatever the index; visibility is exact, and what is added is found."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbr_jax.corpus import search
from pbr_jax.corpus.search import Collection, InScope, Kind, Search, chosen, save_index
from pbr_jax.index import scann
from pbr_jax.index.scann import ScannIndex

HAS_SCANN = scann.is_installed()
KINDS = [
    "exact",
    "per_user",
    pytest.param("scann", marks=pytest.mark.skipif(not HAS_SCANN, reason="no scann")),
]


def brute_force(vectors, queries, k, scopes):
    found = np.full((len(queries), k), -1)
    for q, (query, rows) in enumerate(zip(queries, scopes)):
        best = [
            row for _, row in sorted((-float(vectors[row] @ query), row) for row in set(rows.tolist()))[:k]
        ]
        found[q, : len(best)] = best
    return found


def made(kind: Kind, vectors: np.ndarray, rows: np.ndarray) -> Search:
    return InScope(vectors) if kind == "per_user" else Collection(vectors, lambda: rows, kind)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.integers(1, 61), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_equals_brute_force_in_any_scope(kind: Kind, n: int, k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    vectors = rng.integers(-3, 4, (n, 5)).astype(np.float32)  # exact scores, many ties
    rows = np.flatnonzero(rng.random(n) < 0.8)
    queries = rng.integers(-3, 4, (4, 5)).astype(np.float32)
    some = rng.permutation(rows)
    scopes = [some, rows[rng.random(len(rows)) < 0.3], rows[:0], some]
    found = made(kind, vectors, rows).search(queries, k, scopes)
    np.testing.assert_array_equal(found.rows, brute_force(vectors, queries, k, scopes))
    dots = np.einsum("qkd,qd->qk", vectors[found.rows], queries)
    np.testing.assert_array_equal(found.scores, np.where(found.rows < 0, -np.inf, dots))


@pytest.mark.parametrize("kind", KINDS[:1] + KINDS[2:])
def test_scores_are_those_of_a_history(kind: Kind) -> None:
    rng = np.random.default_rng(3)
    vectors, rows = rng.normal(size=(301, 24)).astype(np.float32), np.arange(301)
    queries = rng.normal(size=(5, 24)).astype(np.float32)
    ours = Collection(vectors, lambda: rows, kind).search(queries, 7)
    plain = InScope(vectors).search(queries, 7, [rows] * 5)
    for one, other in zip(ours, plain):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", KINDS[:1] + KINDS[2:])
def test_what_is_added_is_found_and_what_is_deleted_is_not(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(4)
    vectors, rows = rng.normal(size=(200, 6)).astype(np.float32), np.arange(0, 150)
    collection = Collection(vectors, lambda: rows, kind)
    queries = vectors[[149, 160, 10, 199]]
    built = []
    build = Collection._build
    monkeypatch.setattr(Collection, "_build", lambda self: (built.append(len(rows)), build(self)))
    for rows in (np.arange(150), np.arange(165), np.setdiff1d(np.arange(165), [10, 160]), np.arange(200)):
        found = collection.search(queries, 4, [rows] * 4)
        np.testing.assert_array_equal(found.rows, brute_force(vectors, queries, 4, [rows] * 4))
    assert built == [150, 200]


@pytest.mark.skipif(not HAS_SCANN, reason="no scann")
def test_a_saved_index_is_used(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    vectors, rows = rng.normal(size=(120, 6)).astype(np.float32), np.arange(0, 100, 2)
    save_index(vectors, rows, "scann", tmp_path)
    monkeypatch.setattr(search, "ScannIndex", ScannIndex)
    monkeypatch.setattr(ScannIndex, "__init__", lambda *_: pytest.fail("it was built again"))
    now = np.setdiff1d(np.append(rows, 110), [20])
    found = Collection(vectors, lambda: now, "scann", tmp_path).search(vectors[[20, 110, 4]], 3, [now] * 3)
    np.testing.assert_array_equal(found.rows, brute_force(vectors, vectors[[20, 110, 4]], 3, [now] * 3))


def test_auto_goes_by_size_and_by_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen("auto", 49_999) == "exact" == chosen("exact", 10**6)
    monkeypatch.setattr(scann, "is_installed", lambda: True)
    assert chosen("auto", 50_000) == "scann" == chosen("scann", 10)
    monkeypatch.setattr(scann, "is_installed", lambda: False)
    assert chosen("auto", 10**6) == "exact"


def test_an_engine_is_no_index_of_a_collection() -> None:
    one = np.ones((1, 3), np.float32)
    with pytest.raises(ValueError, match="is no index of a Collection"):
        Collection(one, lambda: np.arange(1), "lancedb").search(one, 1)


def test_an_empty_collection_finds_nothing() -> None:
    found = Collection(np.zeros((0, 3), np.float32), lambda: np.zeros(0, np.int64)).search(
        np.ones((2, 3), np.float32), 2
    )
    assert found.rows.tolist() == [[-1, -1]] * 2

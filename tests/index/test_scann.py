"""ScaNN against exact search; what is deleted is gone; nothing is ever unpickled."""

import builtins
import json
import os
import pickle

import numpy as np
import pytest

from pbr_jax.index import scann as module
from pbr_jax.index.base import EVERYONE
from pbr_jax.index.exact import ExactIndex
from pbr_jax.index.scann import Effort, ScannIndex
from pbr_jax.types import UserError

pytest.importorskip("scann")


def clustered(rng, n, width=16):
    """Unit vectors around 30 centres, as text embeddings are."""
    centres = rng.normal(size=(30, width))
    vectors = centres[rng.integers(0, 30, n)] + 0.4 * rng.normal(size=(n, width))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def data():
    """2,500 documents: enough for hashing; user0 owns half, user1 to user9 the rest, `few` three."""
    rng = np.random.default_rng(0)
    owners = [f"user{max(code, 0)}" for code in rng.integers(-8, 10, 2_500)]
    for row in (17, 1200, 2400):
        owners[row] = "few"
    return clustered(rng, 2_500), owners, clustered(rng, 20)


@pytest.fixture(scope="module")
def index(data):
    """Shared by tests that do not change it."""
    vectors, owners, _ = data
    return ScannIndex(vectors, owners)


def overlap(found, exact):
    """Share of the exact rows that were found."""
    hits = sum(len(set(a) & set(b) - {-1}) for a, b in zip(found.rows.tolist(), exact.rows.tolist()))
    return hits / (exact.rows >= 0).sum()


def test_recall_is_what_was_measured_against_exact_search(data, index):
    vectors, owners, queries = data
    exact = ExactIndex(vectors, owners).search(queries, 10, users=EVERYONE)
    found = index.search(queries, 10, users=EVERYONE)
    assert index.recall >= 0.95
    assert overlap(found, exact) >= 0.9
    dots = np.einsum("qkd,qd->qk", vectors[found.rows], queries)
    np.testing.assert_allclose(found.scores, dots, rtol=1e-4, atol=1e-5)
    assert (np.diff(found.scores, axis=1) <= 0).all()


def test_a_tree_is_tuned_until_recall_is_met(data, monkeypatch):
    vectors, owners, _ = data
    monkeypatch.setattr(module, "TREE_FROM", 2_000)
    index = ScannIndex(vectors, owners, target=0.97)
    assert index.effort.leaves > 0
    assert index.recall >= 0.97


def test_recall_below_the_floor_is_refused_with_advice(monkeypatch):
    monkeypatch.setattr(module, "TREE_FROM", 2_000)
    noise = np.random.default_rng(1).normal(size=(2_500, 16)).astype(np.float32)  # nothing to cluster
    thin = Effort(leaves=1, reorder=10)
    with pytest.raises(UserError, match=r"recall@10 is 0\.\d+ .*below floor=0.8; use ExactIndex"):
        ScannIndex(noise, ["u"] * 2_500, effort=thin)
    accepted = ScannIndex(noise, ["u"] * 2_500, effort=thin, floor=0.0, queries=noise[:50] + 0.1)
    assert 0 < accepted.recall < 0.8


def test_recall_lost_by_many_changes_is_warned_of(monkeypatch):
    monkeypatch.setattr(module, "TREE_FROM", 2_000)
    rng = np.random.default_rng(5)
    thin = Effort(leaves=4, reorder=200)
    index = ScannIndex(clustered(rng, 2_200), ["u"] * 2_200, effort=thin, floor=0.8)
    noise = rng.normal(size=(2_000, 16)).astype(np.float32)
    with pytest.warns(UserWarning, match="below floor=0.8"):
        index.add(noise, ["u"] * 2_000, ids=[f"new {row}" for row in range(2_000)])
    assert len(index) == 4_200


def test_named_users_get_only_and_all_of_theirs(data, index):
    vectors, owners, queries = data
    some = [
        ["user0"],
        ["user3"],
        ["few"],
        ["few", "user1"],
        ["nobody"],
        ["USER0", "user"],
        {"user0", "user5"},
    ]
    users = [some[q % len(some)] for q in range(len(queries))]
    found = index.search(queries, 10, users=users)
    exact = ExactIndex(vectors, owners).search(queries, 10, users=users)
    for q, rows in enumerate(found.rows.tolist()):
        assert {owners[row] for row in rows if row >= 0} <= set(users[q])
        assert len({row for row in rows if row >= 0}) == (exact.rows[q] >= 0).sum(), "as many as are owed"
    assert overlap(found, exact) >= 0.95
    small = [q for q in range(len(queries)) if users[q] == ["few"]]
    np.testing.assert_array_equal(found.rows[small], exact.rows[small])


def test_a_history_that_no_fetch_reaches_is_searched_exactly(data):
    vectors, owners, _ = data
    far = ScannIndex(np.concatenate([vectors, -vectors[:1]]), [*owners, "opposite"])
    assert far.search(vectors[:1], 3, users=[["opposite"]]).rows.tolist() == [[2500, -1, -1]]


def test_searching_needs_to_say_for_whom(index, data):
    queries = data[2]
    with pytest.raises(TypeError, match="users"):
        index.search(queries, 3)
    with pytest.raises(UserError, match="20 queries"):
        index.search(queries, 3, users=[["user0"]])
    with pytest.raises(UserError, match=r"users\[0\] is \[\]"):
        index.search(queries[:1], 3, users=[[]])
    with pytest.raises(UserError, match="k is 0"):
        index.search(queries[:1], 0, users=EVERYONE)


@pytest.mark.parametrize("n", [0, 1, 7])
def test_tiny_indices_are_exact_and_pad(n):
    rng = np.random.default_rng(n)
    vectors, queries = clustered(rng, n), clustered(rng, 3)
    found = ScannIndex(vectors, ["u"] * n, floor=0.0).search(queries, 9, users=EVERYONE)
    assert (found.rows >= 0).sum(axis=1).tolist() == [n] * 3
    np.testing.assert_array_equal(found.rows[:, :n], np.argsort(-(queries @ vectors.T), axis=1))
    assert np.isneginf(found.scores[:, n:]).all()


@pytest.mark.parametrize("n", [60, 2_200])
def test_save_move_load_gives_the_same_answers(tmp_path, n):
    rng = np.random.default_rng(2)
    vectors, queries = clustered(rng, n), clustered(rng, 8)
    owners = [f"user{row % 3}" for row in range(n)]
    index = ScannIndex(vectors, owners)
    index.delete(["3", "50"])
    index.save(tmp_path / "here")
    assert not list(tmp_path.rglob("*.pkl"))
    moved = (tmp_path / "here").rename(tmp_path / "there")
    loaded = ScannIndex.load(moved)
    assert (loaded.ids, loaded.recall, loaded.effort) == (index.ids, index.recall, index.effort)
    for users in (EVERYONE, [["user1"]] * 8):
        for ours, theirs in zip(
            loaded.search(queries, 5, users=users), index.search(queries, 5, users=users)
        ):
            np.testing.assert_array_equal(ours, theirs)
    loaded.add(queries[:1] * 2, ["user1"], ids=["new"])  # a loaded index can still change
    top = loaded.search(queries[:1], 1, users=[["user1"]]).rows[0, 0]
    assert loaded.ids[top] == "new"


def test_deleted_documents_are_gone_from_results_and_disk(tmp_path):
    rng = np.random.default_rng(3)
    vectors = clustered(rng, 2_200)
    owners = [f"user{row % 3}" for row in range(2_200)]
    index = ScannIndex(vectors, owners)
    secret = 3 * clustered(rng, 1)
    index.add(secret, ["canary-user"], ids=["canary-document"])
    best = index.search(secret, 1, users=EVERYONE).rows[0, 0]
    assert index.ids[best] == "canary-document"
    index.save(tmp_path)
    assert index.delete(["canary-document", "unknown"]) == 1
    assert index.delete(["canary-document"]) == 0
    assert index.search(secret, 5, users=[["canary-user"]]).rows.tolist() == [[-1] * 5]
    found = index.search(secret, 2_200, users=EVERYONE).rows
    assert found.max() < 2_200
    index.save(tmp_path)
    everything = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"canary" not in everything
    assert secret.tobytes() not in everything


def test_after_adding_replacing_and_deleting_rows_still_match_ids():
    rng = np.random.default_rng(4)
    vectors, queries = clustered(rng, 300), clustered(rng, 12)
    index = ScannIndex(vectors[:200], ["u"] * 200)
    index.add(vectors[200:230], ["u"] * 30, ids=[str(row) for row in range(200, 230)])
    index.add(vectors[290:], ["u"] * 10, ids=[str(row) for row in range(10)])  # replaces
    index.delete([str(row) for row in range(20, 40, 3)])
    current = np.concatenate([vectors[290:], vectors[10:230]])
    keep = [row for row in range(230) if row not in range(20, 40, 3)]
    assert index.ids == tuple(map(str, keep))
    np.testing.assert_array_equal(index.vectors, current[keep])
    np.testing.assert_array_equal(  # below 2,000 vectors ScaNN's brute force is exact
        index.search(queries, 6, users=EVERYONE).rows, np.argsort(-(queries @ current[keep].T), axis=1)[:, :6]
    )
    index.delete(index.ids)  # far beyond the share that rebuilds
    assert index.search(queries, 1, users=EVERYONE).rows.max() == -1
    index.add(vectors[:5], ["u"] * 5, ids=list("abcde"))
    assert index.search(vectors[3:4], 1, users=EVERYONE).rows.tolist() == [[3]]


def test_another_users_document_cannot_be_overwritten(data, index):
    vectors, _, _ = data
    with pytest.raises(UserError, match="'17' belongs to another user"):
        index.add(vectors[:1], ["intruder"], ids=["17"])


class Bomb:
    """Unpickling this creates the file."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("name", ["scann_docids.pkl", "other.pkl"])
@pytest.mark.parametrize("inside", [True, False])
def test_a_malicious_pickle_is_refused_and_not_read(tmp_path, name, inside):
    folder, trap = tmp_path / "index", tmp_path / "trap"
    ScannIndex(np.eye(4, dtype=np.float32), ["u"] * 4).save(folder)
    target = next(folder.glob("files-*")) if inside else folder
    (target / name).write_bytes(pickle.dumps(Bomb(trap)))
    with pytest.raises(UserError, match=f"{name} is a pickle"):
        ScannIndex.load(folder)
    assert not trap.exists()
    pickle.loads((target / name).read_bytes())
    assert trap.exists(), "the bomb of this test works"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["0", "1", "2", "9"], "lists other ids"),
        (["0", "1", "2"], "lists other ids"),
        ({}, "lists other ids"),
        (None, "docids.json not found"),
    ],
)
def test_damaged_files_are_one_clear_error(tmp_path, change, message):
    ScannIndex(np.eye(4, dtype=np.float32), ["u"] * 4).save(tmp_path)
    path = next(tmp_path.rglob("docids.json"))
    path.unlink() if change is None else path.write_text(json.dumps(change))
    with pytest.raises(UserError, match=message):
        ScannIndex.load(tmp_path)


def test_without_scann_the_error_names_the_command(monkeypatch):
    real = builtins.__import__

    def without(name, *rest, **named):
        if name.startswith("scann"):
            raise ImportError(f"No module named {name!r}")
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=r"pip install 'pbr-jax\[scann\]'"):
        ScannIndex(np.eye(4, dtype=np.float32), ["u"] * 4)

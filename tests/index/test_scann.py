"""ScaNN against exact search; nothing is ever unpickled."""

import builtins
import os
import pickle

import numpy as np
import pytest

from pbr_jax.base.types import UserError
from pbr_jax.index.engines import scann as module
from pbr_jax.index.engines.scann import Effort, ScannIndex

pytest.importorskip("scann")


def clustered(rng, n, width=16):
    """Unit vectors around 30 centres, as text embeddings are."""
    centres = rng.normal(size=(30, width))
    vectors = centres[rng.integers(0, 30, n)] + 0.4 * rng.normal(size=(n, width))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def data():
    """2,500 documents: enough for hashing."""
    rng = np.random.default_rng(0)
    return clustered(rng, 2_500), clustered(rng, 20)


@pytest.fixture(scope="module")
def index(data):
    return ScannIndex(data[0])


def recall(index, vectors, queries, k=10):
    """Share of the exact best rows among the candidates."""
    best, found = np.argsort(-(queries @ vectors.T), axis=1)[:, :k], index.candidates(queries, k)
    hits = [len(set(a) & set(b)) for a, b in zip(best.tolist(), found.tolist())]
    return sum(hits) / best.size


def test_recall_is_what_was_measured_against_exact_search(data, index):
    vectors, queries = data
    assert index.recall >= 0.95
    assert recall(index, vectors, queries) >= 0.9
    assert recall(index, vectors, vectors[:: len(vectors) // 200][:200]) == pytest.approx(index.recall)


def test_a_tree_is_tuned_until_recall_is_met(data, monkeypatch):
    monkeypatch.setattr(module, "TREE_FROM", 2_000)
    index = ScannIndex(data[0], target=0.97)
    assert index.effort.leaves > 0
    assert index.recall >= 0.97


def test_recall_below_the_floor_is_refused_with_advice(monkeypatch):
    monkeypatch.setattr(module, "TREE_FROM", 2_000)
    noise = np.random.default_rng(1).normal(size=(2_500, 16)).astype(np.float32)  # nothing to cluster
    thin = Effort(leaves=1, candidates=1)
    with pytest.raises(UserError, match=r"recall@10 is 0\.\d+ .*below floor=0.8; use ExactIndex"):
        ScannIndex(noise, effort=thin)
    assert 0 < ScannIndex(noise, effort=thin, floor=0.0).recall < 0.8


@pytest.mark.parametrize(("n", "part"), [(0, 9), (5, 9), (2_500, 3_000), (2_500, 1_000)])
def test_save_move_load_gives_the_same_answers(tmp_path, n, part, data, monkeypatch):
    monkeypatch.setattr(module, "PART", part)
    vectors, queries = data
    index = ScannIndex(vectors[:n])
    (tmp_path / "a").mkdir()
    index.save(tmp_path / "a")
    (tmp_path / "a").rename(tmp_path / "b")
    loaded = ScannIndex.load(tmp_path / "b")
    assert (len(loaded), loaded.effort, loaded.recall) == (n, index.effort, index.recall)
    np.testing.assert_array_equal(loaded.candidates(queries, 4), index.candidates(queries, 4))
    assert not list(tmp_path.rglob("*.pkl"))
    if n > 10:
        assert recall(loaded, vectors, queries) >= 0.9


class Bomb:
    """Unpickling this creates the file."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("name", ["scann_docids.pkl", "other.pkl"])
def test_a_malicious_pickle_is_refused_and_not_read(tmp_path, name):
    folder, trap = tmp_path / "index", tmp_path / "trap"
    folder.mkdir()
    ScannIndex(np.eye(4, dtype=np.float32)).save(folder)
    (folder / name).write_bytes(pickle.dumps(Bomb(trap)))
    with pytest.raises(UserError, match=f"{name} is a pickle"):
        ScannIndex.load(folder)
    assert not trap.exists()
    pickle.loads((folder / name).read_bytes())
    assert trap.exists(), "the bomb of this test works"


@pytest.mark.parametrize("content", [None, "", "{}", '{"effort": 1}'])
def test_damaged_files_are_one_clear_error(tmp_path, content):
    ScannIndex(np.eye(4, dtype=np.float32)).save(tmp_path)
    path = tmp_path / "index.json"
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(UserError, match=r"is no index of ScaNN .*; build the index again"):
        ScannIndex.load(tmp_path)


def test_without_scann_the_error_names_the_command(monkeypatch):
    real = builtins.__import__

    def without(name, *rest, **named):
        if name.startswith("scann"):
            raise ImportError(f"No module named {name!r}")
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=r"pip install 'pbr-jax\[scann\]'"):
        ScannIndex(np.eye(4, dtype=np.float32))

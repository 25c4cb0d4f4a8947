"""Clusters of profiles: computed once, for each profile alone, and kept."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.cluster import HDBSCAN

from pbr_jax.base.types import UserError
from pbr_jax.index.density import NOISE
from pbr_jax.methods.retrieve import two_stage as document_clusters
from pbr_jax.methods.retrieve.two_stage import ProfileClusters, alone

SETTINGS: dict[str, Any] = {"min_cluster_size": 2, "min_samples": 2, "copy": True}

pytestmark = pytest.mark.usefixtures("fresh_cache")


def vectors(n: int, seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng(seed)
    found = np.eye(6)[draw.integers(0, 3, n)] + 0.2 * draw.normal(size=(n, 6))
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


PROFILES = [np.arange(20), np.arange(20, 21), np.arange(21, 23), np.arange(23, 40), np.arange(0)]


def test_labels_are_those_of_each_profile_alone_and_computed_once():
    means = vectors(40)
    clusters = ProfileClusters(means, 2, 2)
    found = clusters.labels(PROFILES)
    for rows, labels in zip(PROFILES, found, strict=True):
        if len(rows) > 2:
            wanted = HDBSCAN(**SETTINGS).fit(means[rows].astype(float)).labels_
            assert labels.tolist() == wanted.tolist()
            assert len({*labels.tolist()}) > 1
    assert found[1].tolist() == [0]  # one document is one cluster
    assert found[2].shape == (2,)
    assert found[4].shape == (0,)
    assert clusters.computed == 5
    clusters.labels(PROFILES)
    assert clusters.computed == 5


def test_a_document_more_makes_the_clusters_of_its_profile_alone_anew():
    """In another process, as it were, and although all rows behind it have moved."""
    before = vectors(40)
    first = ProfileClusters(before, 2, 2).labels(PROFILES)
    after = np.insert(before, 20, vectors(1, seed=9), axis=0)  # of the first user
    moved = [np.arange(21), *(rows + 1 for rows in PROFILES[1:])]
    clusters = ProfileClusters(after, 2, 2)
    again = clusters.labels(moved)
    assert clusters.computed == 1
    assert len(again[0]) == 21
    for one, two in zip(first[1:], again[1:], strict=True):
        assert one.tolist() == two.tolist()
    other = ProfileClusters(after, 3, 2)
    other.labels(moved)
    assert other.computed == 5  # other settings, other clusters


def test_noise_alone_is_a_cluster_each():
    assert alone(np.array([0, NOISE, 1, NOISE, 0])).tolist() == [0, 2, 1, 3, 0]
    assert alone(np.array([NOISE, NOISE])).tolist() == [0, 1]
    assert alone(np.array([], int)).tolist() == []


def test_a_damaged_file_is_one_clear_line(fresh_cache: Path):
    fresh_cache.mkdir()
    (fresh_cache / "clusters.sqlite").write_bytes(b"no database at all, but long enough to be looked at" * 20)
    with pytest.raises(UserError, match=r"clusters.sqlite: .*remove it"):
        ProfileClusters(vectors(40), 2, 2).labels(PROFILES)


@pytest.mark.long
def test_many_may_make_the_file_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """SQLite fails at once, whatever the patience, where two change the journal of a new file."""
    failures: list[Exception] = []

    def find(start: threading.Barrier) -> None:
        start.wait()
        try:
            document_clusters._found([b"x"])
        except UserError as error:
            failures.append(error)

    for place in range(150):
        monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / f"cache{place}"))
        start = threading.Barrier(6)
        crowd = [threading.Thread(target=find, args=(start,)) for _ in range(6)]
        for one in crowd:
            one.start()
        for one in crowd:
            one.join()
    assert failures == []


def test_an_edit_of_what_makes_labels_makes_them_anew(monkeypatch: pytest.MonkeyPatch):
    """Not only of HDBSCAN: what becomes of one document alone is said here."""
    first = ProfileClusters(vectors(40), 2, 2)
    first.labels(PROFILES)

    class Edited(ProfileClusters):
        def _made(self, rows: np.ndarray) -> np.ndarray:
            return np.full(len(rows), NOISE, np.int32)

    edited = Edited(vectors(40), 2, 2)
    assert edited.labels(PROFILES)[1].tolist() == [NOISE]
    assert edited.computed == 5
    again = ProfileClusters(vectors(40), 2, 2)
    again.labels(PROFILES)
    assert again.computed == 0


def test_only_the_owner_reads_the_file(fresh_cache: Path):
    ProfileClusters(vectors(40), 2, 2).labels(PROFILES)
    assert (fresh_cache / "clusters.sqlite").stat().st_mode & 0o077 == 0

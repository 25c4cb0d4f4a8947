"""Clusters of profiles: computed once, for each profile alone."""

from typing import Any

import numpy as np
import pytest
from sklearn.cluster import HDBSCAN

from pbr_jax.index.density import NOISE
from pbr_jax.methods.retrieve import two_stage
from pbr_jax.methods.retrieve.two_stage import ProfileClusters, alone

SETTINGS: dict[str, Any] = {"min_cluster_size": 2, "min_samples": 2, "copy": True}


def vectors(n: int, seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng(seed)
    found = np.eye(6)[draw.integers(0, 3, n)] + 0.2 * draw.normal(size=(n, 6))
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


PROFILES = [np.arange(20), np.arange(20, 21), np.arange(21, 23), np.arange(23, 40), np.arange(0)]


def test_labels_are_those_of_each_profile_alone():
    means = vectors(40)
    found = ProfileClusters(means, 2, 2).labels(PROFILES)
    for rows, labels in zip(PROFILES, found, strict=True):
        if len(rows) > 2:
            wanted = HDBSCAN(**SETTINGS).fit(means[rows].astype(float)).labels_
            assert labels.tolist() == wanted.tolist()
            assert len({*labels.tolist()}) > 1
    assert found[1].tolist() == [0]  # one document is one cluster
    assert found[2].shape == (2,)
    assert found[4].shape == (0,)


def test_a_document_more_makes_the_clusters_of_its_profile_alone_anew(monkeypatch: pytest.MonkeyPatch):
    """Although all rows behind it have moved, as they do where a store grows."""
    made, cluster = [], two_stage.hdbscan
    monkeypatch.setattr(two_stage, "hdbscan", lambda v, **sizes: made.append(len(v)) or cluster(v, **sizes))
    before = vectors(40)
    clusters = ProfileClusters(before, 2, 2)
    first = clusters.labels(PROFILES)
    assert made == [20, 2, 17]
    clusters.means = np.insert(before, 20, vectors(1, seed=9), axis=0)  # of the first user
    again = clusters.labels([np.arange(21), *(rows + 1 for rows in PROFILES[1:])])
    assert made == [20, 2, 17, 21]
    for one, two in zip(first[1:], again[1:], strict=True):
        assert one.tolist() == two.tolist()


def test_noise_alone_is_a_cluster_each():
    assert alone(np.array([0, NOISE, 1, NOISE, 0])).tolist() == [0, 2, 1, 3, 0]
    assert alone(np.array([NOISE, NOISE])).tolist() == [0, 1]
    assert alone(np.array([], int)).tolist() == []

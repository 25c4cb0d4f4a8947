"""What clusters do with noise, equal vectors and orders; silhouettes against their formula."""

import numpy as np
import pytest
from scipy.sparse.csgraph import minimum_spanning_tree
from scipy.spatial.distance import cdist
from sklearn.cluster import HDBSCAN
from sklearn.metrics import adjusted_rand_score

from pbr_jax.index import density
from pbr_jax.index.density import NOISE, centroids, hdbscan, k_means, silhouette


def world(n: int, groups: int, noise: float, seed: int = 0, d: int = 12) -> np.ndarray:
    draw = np.random.default_rng(seed)
    centres = draw.normal(size=(groups, d))
    vectors = centres[draw.integers(0, groups, n)] + noise * draw.normal(size=(n, d))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def test_the_default_is_the_papers_2_which_leaves_the_point_itself_out():
    """hdbscan's `min_samples` 2 is scikit-learn's 3; at 2 this would be single linkage, as at 1."""
    vectors = world(300, 9, 0.8)
    found = {samples: hdbscan(vectors, min_samples=samples) for samples in (1, 2, 3)}
    assert hdbscan(vectors).tolist() == found[3].tolist()
    assert found[1].tolist() == found[2].tolist() != found[3].tolist()
    brute = HDBSCAN(min_cluster_size=2, min_samples=3, algorithm="brute", copy=True)  # pyright: ignore[reportArgumentType]
    assert found[3].tolist() == brute.fit(vectors.astype(float)).labels_.tolist()


def test_above_two_samples_there_are_several_shortest_trees():
    """docs/papers/clusterrag.md says so: which one an algorithm takes may decide the labels, and the machine
    may decide which it takes. At 2 there is one, and scikit-learn's algorithms agree."""
    vectors = world(300, 9, 0.8).astype(float)
    distances: np.ndarray = cdist(vectors, vectors)
    for samples, ties in ((2, False), (3, True)):
        core = np.sort(distances, axis=1)[:, samples - 1]
        reach = np.maximum(distances, np.maximum(core[:, None], core[None]))
        edges = minimum_spanning_tree(reach).data
        assert (len(np.unique(edges)) < len(edges)) == ties
    one, two = (hdbscan(vectors, min_samples=2, dense=dense) for dense in (density.DENSE, 0))
    assert adjusted_rand_score(one, two) == 1


def test_few_vectors_and_equal_ones():
    for n in (0, 1):
        assert hdbscan(world(n, 2, 0.1)).tolist() == [NOISE] * n
    assert hdbscan(world(2, 2, 0.1)).shape == (2,)
    assert hdbscan(world(3, 1, 0.1), min_cluster_size=5).tolist() == [NOISE] * 3
    twins = np.repeat(np.eye(3, dtype=np.float32), 4, axis=0)
    for dense in (density.DENSE, 0):
        assert adjusted_rand_score(hdbscan(twins, dense=dense), np.repeat(range(3), 4)) == 1


def test_k_means_finds_what_lies_apart_and_no_more_groups_than_there_are_vectors():
    vectors, planted = np.repeat(np.eye(4), 6, axis=0), np.repeat(range(4), 6)
    vectors = (vectors + 0.05 * np.random.default_rng(0).normal(size=vectors.shape)).astype(np.float32)
    assert adjusted_rand_score(k_means(vectors, k=4, seed=0), planted) == 1
    assert k_means(vectors, k=4, seed=0).tolist() == k_means(vectors, k=4, seed=0).tolist()
    assert len({*k_means(np.repeat(np.eye(2), 3, axis=0), k=9, seed=0).tolist()}) == 2
    assert k_means(vectors[:0], k=3, seed=0).shape == (0,)


def test_a_silhouette_is_its_formula():
    vectors, labels = world(30, 4, 0.6), np.random.default_rng(1).integers(-1, 3, 30)
    labels[0] = 7  # alone in a group: counts as 0
    distances: np.ndarray = cdist(vectors, vectors)
    values = []
    for i, own in enumerate(labels):
        inside = (labels == own) & (np.arange(30) != i)
        if not inside.any():
            values.append(0.0)
            continue
        a = distances[i, inside].mean()
        b = min(distances[i, labels == other].mean() for other in {*labels.tolist()} - {own})
        values.append((b - a) / max(a, b))
    assert silhouette(vectors, labels) == pytest.approx(np.mean(values), abs=1e-5)


@pytest.mark.parametrize("labels", [[0, 0, 0, 0], [0, 1, 2, 3], []])
def test_there_is_no_silhouette_of_one_group_or_of_everybody_alone(labels: list[int]):
    assert silhouette(world(len(labels), 2, 0.5), np.array(labels, int)) is None


def test_of_very_many_vectors_a_sample_says_nearly_the_same(monkeypatch: pytest.MonkeyPatch):
    vectors = world(900, 5, 0.3)
    labels = hdbscan(vectors)
    whole = silhouette(vectors, labels)
    monkeypatch.setattr(density, "_SAMPLE", 600)
    assert silhouette(vectors, labels) == pytest.approx(whole, abs=0.05)


def test_centroids_are_means_without_noise():
    vectors, labels = world(9, 3, 0.4), np.array([0, 1, 1, NOISE, 0, NOISE, 1, 0, 0])
    found = centroids(vectors, labels)
    for group in (0, 1):
        np.testing.assert_allclose(found[group], vectors[labels == group].mean(0), atol=1e-6)
    assert centroids(vectors, np.full(9, NOISE)).shape == (0, 12)

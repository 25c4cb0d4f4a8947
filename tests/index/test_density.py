"""HDBSCAN against scikit-learn's, its tree against scipy's, silhouettes against their formula."""

from typing import Any

import numpy as np
import pytest
from scipy.sparse.csgraph import minimum_spanning_tree
from scipy.spatial.distance import cdist
from sklearn import metrics
from sklearn.cluster import HDBSCAN
from sklearn.metrics import adjusted_rand_score, silhouette_score

from pbr_jax.index import density
from pbr_jax.index.density import (
    NOISE,
    Hierarchy,
    centroids,
    hdbscan,
    k_means,
    silhouette,
    silhouettes,
)
from pbr_jax.methods.neighbours.cohort_fit import Grouping


def world(n: int, groups: int, noise: float, seed: int = 0, d: int = 12) -> np.ndarray:
    draw = np.random.default_rng(seed)
    centres = draw.normal(size=(groups, d))
    vectors = centres[draw.integers(0, groups, n)] + noise * draw.normal(size=(n, d))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def same_partition(one: np.ndarray, two: np.ndarray) -> bool:
    """Equal up to the groups' numbers; noise is noise."""
    return set(zip(one.tolist(), two.tolist())) == set(zip(*np.unique([one, two], axis=1).tolist())) and (
        len({*zip(one.tolist(), two.tolist())}) == len({*one.tolist()}) == len({*two.tolist()})
        and bool(((one == NOISE) == (two == NOISE)).all())
    )


@pytest.mark.parametrize("dense", [density.DENSE, 0])
@pytest.mark.parametrize(
    ("n", "groups", "noise", "size", "samples"),
    [(90, 5, 0.3, 2, 2), (300, 60, 0.4, 2, 2), (300, 9, 0.8, 5, 3), (200, 9, 0.5, 4, 1), (40, 1, 1.0, 2, 2)],
)
def test_labels_are_scikit_learns(n: int, groups: int, noise: float, size: int, samples: int, dense: int):
    vectors = world(n, groups, noise)
    settings = {"min_cluster_size": size, "min_samples": samples, "copy": True}
    wanted = HDBSCAN(**settings).fit(vectors.astype(float)).labels_
    found = hdbscan(vectors, min_cluster_size=size, min_samples=samples, dense=dense)
    if dense or samples < 3:
        assert same_partition(found, wanted)
    else:  # distances between cores are equal by the dozen: there are several trees
        assert adjusted_rand_score(found, wanted) > 0.9
    assert len({*wanted.tolist()}) > 1 or groups == 1


@pytest.mark.parametrize("samples", [1, 2, 3, 5])
def test_one_tree_has_scikit_learns_labels_at_every_size(samples: int):
    """Of vectors some of which are equal, too; of the same numbers, though many distances are equal."""
    vectors = world(300, 20, 0.4, seed=samples)
    vectors[:6] = vectors[6]
    tree = Hierarchy(vectors, min_samples=samples)
    for size in (2, 3, 5, 10, 20, 50):
        settings: dict[str, Any] = {"algorithm": "brute", "copy": True, "min_samples": samples}
        wanted = HDBSCAN(min_cluster_size=size, **settings).fit(vectors.astype(float)).labels_
        assert tree.labels(size).tolist() == wanted.tolist()


def test_the_silhouette_of_six_sizes_takes_one_tree_and_distances_twice(monkeypatch: pytest.MonkeyPatch):
    """Once for the tree and once for all silhouettes."""
    trees, pairs, distances, make = [], [], metrics.pairwise_distances, density._visited
    monkeypatch.setattr(density, "_visited", lambda *given: trees.append(1) or make(*given))

    def counted(one: np.ndarray, two: np.ndarray | None = None) -> np.ndarray:
        found = distances(one, two)
        pairs.append(found.size)
        return found

    monkeypatch.setattr(metrics, "pairwise_distances", counted)
    vectors = world(700, 20, 0.4)
    labels, chosen = Grouping("hdbscan", "silhouette", 3, 10, True, 8).labels(vectors, 0)
    assert len(trees) == 1
    assert sum(pairs) == 2 * 700**2
    assert labels.tolist() == hdbscan(vectors, min_cluster_size=chosen or 0).tolist()


@pytest.mark.parametrize("samples", [1, 2, 5])
@pytest.mark.parametrize("n", [2, 3, 25, 700])
def test_the_tree_is_no_longer_than_that_of_all_distances(n: int, samples: int):
    """With all distances in memory, and with those of one vector at a time."""
    vectors = world(n, 12, 0.3, seed=n).astype(float)
    if samples > n:
        return
    distances: np.ndarray = cdist(vectors, vectors)
    core = np.sort(distances, axis=1)[:, samples - 1]
    reach = np.maximum(distances, np.maximum(core[:, None], core[None]))
    np.fill_diagonal(reach, 0)
    for dense in (density.DENSE, 0):
        order, lengths = density._visited(vectors, samples, dense)
        assert sorted(order.tolist()) == list(range(n))
        assert lengths.sum() == pytest.approx(minimum_spanning_tree(reach).sum(), rel=1e-5)
        for place in range(1, n):  # each is reached from one of those before by so much
            nearest = reach[order[place], order[:place]].min()
            assert lengths[place - 1] == pytest.approx(nearest, abs=1e-6)


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
    both: Any = dict(min_samples=2, min_cluster_size=2, copy=True)
    one, two = (HDBSCAN(algorithm=name, **both).fit(vectors).labels_ for name in ("brute", "kd_tree"))
    assert same_partition(one, two)


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


@pytest.mark.parametrize(("n", "k", "noise"), [(120, 4, 0.5), (700, 10, 2.0), (90, 80, 0.3)])
def test_k_means_does_not_depend_on_the_order_of_users(n: int, k: int, noise: float):
    """Nor where groups do not lie apart, or users are equal."""
    vectors, draw = world(n, 6, noise, seed=n), np.random.default_rng(n)
    vectors[draw.integers(0, n, 9)] = vectors[draw.integers(0, n, 9)]
    labels = k_means(vectors, k=k, seed=3)
    assert len({*labels.tolist()}) > 1
    for _ in range(3):
        order = draw.permutation(n)
        assert k_means(vectors[order], k=k, seed=3).tolist() == labels[order].tolist()


def test_silhouettes_of_several_groupings_are_those_of_each():
    vectors, draw = world(600, 9, 0.6), np.random.default_rng(0)
    groupings = [draw.integers(-1, groups, 600) for groups in (2, 5, 40, 400)]
    found = silhouettes(vectors, [*groupings, np.zeros(600, int)])
    assert found[-1] is None
    wanted = [silhouette_score(vectors.astype(float), labels) for labels in groupings]
    np.testing.assert_allclose(np.array(found[:-1], float), wanted, atol=1e-7)


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

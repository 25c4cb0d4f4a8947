"""Clustering: HDBSCAN, which determines the number of clusters, and k-means; silhouettes of clusters.

Campello, Moulavi and Sander, "Density-Based Clustering Based on Hierarchical Density Estimates", 2013;
McInnes, Healy and Astels, "hdbscan", JOSS 2017. The labels are those of scikit-learn (brute). They follow
from a spanning tree, which does not depend on the minimum cluster size and is computed here once for all
sizes. Up to `DENSE` vectors, all distances are in memory; above, those of one vector at a time.
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float, Int

NOISE = -1
DENSE = 8192  # vectors whose distances are held at once: 512 MiB
_BLOCK = 512  # rows of distances at a time above that
_SAMPLE = 10_000  # vectors of which a silhouette is computed
_LEAST = 1e-12  # distance of equal vectors in a sparse matrix, where 0 would be no edge

Labels = Int[np.ndarray, " n"]


def hdbscan(
    vectors: Float[np.ndarray, "n d"], *, min_cluster_size: int = 2, min_samples: int = 3, dense: int = DENSE
) -> Labels:
    """HDBSCAN with Euclidean distances and excess-of-mass selection. Labels are 0, 1, ... or `NOISE`.

    If there are fewer vectors than a cluster or a core point needs, all are noise.

    Args:
      min_samples: the neighbours of a core point, including itself, as in scikit-learn. The library of the
        paper (hdbscan) excludes the point: its 2 is 3 here. With 1 or 2 this is single linkage.
      dense: the largest n for which all distances are in memory at once. With `min_samples` up to 2, labels
        do not depend on it, except through distances that are equal in float32. With larger values, many
        mutual reachability distances are equal, and there are several minimum spanning trees. If clusters
        are not well separated, the choice among them matters: scikit-learn's algorithms brute (used here)
        and kd_tree then agree with an adjusted Rand index of 0.47 on 1,100 users of LaMP-7, and so do the
        two code paths of `dense` (docs/papers/clusterrag.md).
    """
    return Hierarchy(vectors, min_samples=min_samples, dense=dense).labels(min_cluster_size)


class Hierarchy:
    """The clusters of `hdbscan` for any minimum size, from one spanning tree."""

    def __init__(
        self, vectors: Float[np.ndarray, "n d"], *, min_samples: int = 3, dense: int = DENSE
    ) -> None:
        self._vectors, self._samples, self._dense = vectors, min_samples, dense

    def labels(self, min_cluster_size: int) -> Labels:
        n = len(self._vectors)
        if n < max(2, min_cluster_size, self._samples):
            return np.full(n, NOISE)
        from sklearn.cluster import HDBSCAN

        order, tree = self._tree
        # Distances of the tree are between cores already: with one sample a core changes none of them.
        settings: dict[str, Any] = {"metric": "precomputed", "min_samples": 1, "copy": True}
        labels = np.empty(n, int)
        labels[order] = HDBSCAN(min_cluster_size=min_cluster_size, **settings).fit(tree).labels_
        return labels

    @cached_property
    def _tree(self) -> tuple[np.ndarray, Any]:
        """The order in which the vectors are numbered, and the spanning tree as a sparse matrix [n n]."""
        order, lengths = _visited(np.asarray(self._vectors, np.float64), self._samples, self._dense)
        return order, _path(lengths)


def _visited(vectors: np.ndarray, min_samples: int, dense: int) -> tuple[np.ndarray, np.ndarray]:
    """The order in which the shortest tree grows from vector 0, int [n], and by what each is reached [n-1].

    Prim, 1957, over distances of at least the cores of both ends. A path in this order with these lengths
    joins the same groups at the same lengths as the tree. It is how scikit-learn has it, so that equal
    lengths, of which there are many, are taken in its order.
    """
    distances, core = _distances(vectors, min_samples, dense)
    order, lengths = np.zeros(len(vectors), np.int64), np.zeros(len(vectors) - 1)
    reach, outside = np.full(len(vectors), np.inf), np.ones(len(vectors), bool)
    for step in range(len(lengths)):
        last = int(order[step])
        outside[last], reach[last] = False, np.inf
        between = np.maximum(np.maximum(distances(last), core), core[last])
        np.minimum(reach, between, out=reach, where=outside)
        order[step + 1] = reach.argmin()
        lengths[step] = reach[order[step + 1]]
    return order, lengths


def _distances(
    vectors: np.ndarray, min_samples: int, dense: int
) -> tuple[Callable[[int], np.ndarray], np.ndarray]:
    """From a vector's number to its distances to all [n], and each vector's core [n]: the distance to the
    nearest `min_samples`-th vector, itself the first."""
    from sklearn.metrics import pairwise_distances

    if len(vectors) <= dense:
        matrix = pairwise_distances(vectors)
        return matrix.__getitem__, np.partition(matrix, min_samples - 1, axis=0)[min_samples - 1]
    squares = np.einsum("nd,nd->n", vectors, vectors)

    def distances(i: int) -> np.ndarray:
        return np.sqrt(np.maximum(squares + squares[i] - 2 * (vectors @ vectors[i]), 0))

    core = np.empty(len(vectors))
    for start in range(0, len(vectors), _BLOCK):
        block = pairwise_distances(vectors[start : start + _BLOCK], vectors)
        core[start : start + _BLOCK] = np.partition(block, min_samples - 1, axis=1)[:, min_samples - 1]
    return distances, core


def _path(lengths: np.ndarray) -> Any:
    """The path 0, 1, ... with these lengths [n-1] as a sparse matrix of distances [n n], both ways."""
    from scipy.sparse import csr_array

    lengths, at = np.maximum(lengths, _LEAST), np.arange(len(lengths))
    ends = (np.concatenate([at, at + 1]), np.concatenate([at + 1, at]))
    return csr_array((np.tile(lengths, 2), ends), shape=(len(at) + 1,) * 2)


def k_means(vectors: Float[np.ndarray, "n d"], *, k: int, seed: int) -> Labels:
    """K-means with `k` clusters, or as many as there are distinct vectors. The best of ten starts is used.

    The result does not depend on the order of the vectors. Distinct vectors are sorted by value and weighted
    by their counts, and a single thread computes sums, so that their order is fixed.
    """
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    if not len(vectors):
        return np.zeros(0, int)
    given = np.asarray(vectors, np.float64)
    different, places, counts = np.unique(given, axis=0, return_inverse=True, return_counts=True)
    options: dict[str, Any] = {"n_init": 10, "random_state": seed}
    with threadpool_limits(1):
        found = KMeans(min(k, len(different)), **options).fit(different, sample_weight=counts)
    return np.asarray(found.labels_, int)[places.reshape(-1)]


def silhouette(vectors: Float[np.ndarray, "n d"], labels: Labels, *, seed: int = 0) -> float | None:
    """Mean of (b - a) / max(a, b); a: mean distance to the own cluster, b: to the nearest other cluster.

    Rousseeuw, 1987. Noise is treated as a cluster; remove it beforehand to exclude it. Above 10,000 vectors,
    a sample is used. None: there are fewer than two clusters, or no cluster has two members.
    """
    return silhouettes(vectors, [labels], seed=seed)[0]


def silhouettes(
    vectors: Float[np.ndarray, "n d"], groupings: Sequence[Labels], *, seed: int = 0
) -> list[float | None]:
    """The `silhouette` of several clusterings of the same vectors. Distances are computed once."""
    if len(vectors) > _SAMPLE:
        chosen = np.random.default_rng(seed).permutation(len(vectors))[:_SAMPLE]
        vectors, groupings = vectors[chosen], [labels[chosen] for labels in groupings]
    groups = [_Groups(labels) if 2 <= len(np.unique(labels)) < len(labels) else None for labels in groupings]
    known = [group for group in groups if group is not None]
    values = iter(_mean_silhouettes(np.asarray(vectors, np.float64), known) if known else [])
    return [None if group is None else next(values) for group in groups]


class _Groups:
    """A grouping: each vector's group 0, 1, ..., the groups' sizes, and which vectors they hold [g n]."""

    def __init__(self, labels: Labels) -> None:
        from scipy.sparse import csr_array

        _, self.own, self.sizes = np.unique(labels, return_inverse=True, return_counts=True)
        places = np.arange(len(labels))
        self.members = csr_array((np.ones(len(labels)), (self.own, places)), (len(self.sizes), len(labels)))

    def silhouettes(self, distances: np.ndarray, start: int) -> np.ndarray:
        """Of the vectors from `start` on, by their distances [n r] to all; alone in a group: 0."""
        means, columns = self.members @ distances, np.arange(distances.shape[1])
        own = self.own[start : start + len(columns)]
        others = self.sizes[own] - 1
        a = means[own, columns] / np.maximum(others, 1)
        means /= self.sizes[:, None]
        means[own, columns] = np.inf
        b = means.min(0)
        return np.where(others > 0, (b - a) / np.maximum(np.maximum(a, b), _LEAST), 0)


def _mean_silhouettes(vectors: np.ndarray, groups: list[_Groups]) -> list[float]:
    from sklearn.metrics import pairwise_distances

    sums = np.zeros(len(groups))
    for start in range(0, len(vectors), _BLOCK):
        distances = pairwise_distances(vectors, vectors[start : start + _BLOCK])
        sums += [group.silhouettes(distances, start).sum() for group in groups]
    return (sums / len(vectors)).tolist()


def centroids(vectors: Float[np.ndarray, "n d"], labels: Labels) -> Float[np.ndarray, "g d"]:
    """The mean of each cluster 0, 1, ...; noise has none."""
    found = np.zeros((int(labels.max(initial=NOISE)) + 1, vectors.shape[1]), np.float32)
    inside = labels >= 0
    np.add.at(found, labels[inside], vectors[inside])
    return found / np.maximum(np.bincount(labels[inside], minlength=len(found)), 1)[:, None]

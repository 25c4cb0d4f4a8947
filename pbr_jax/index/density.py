"""Clustering with scikit-learn: HDBSCAN, which determines the number of clusters, and k-means; silhouettes.

Campello, Moulavi and Sander, "Density-Based Clustering Based on Hierarchical Density Estimates", 2013;
McInnes, Healy and Astels, "hdbscan", JOSS 2017.
"""

from typing import Any

import numpy as np
from jaxtyping import Float, Int

NOISE = -1
DENSE = 8192  # vectors whose distances are held at once: 512 MiB
_SAMPLE = 10_000  # vectors of which a silhouette is computed

Labels = Int[np.ndarray, " n"]


def hdbscan(
    vectors: Float[np.ndarray, "n d"], *, min_cluster_size: int = 2, min_samples: int = 3, dense: int = DENSE
) -> Labels:
    """HDBSCAN with Euclidean distances and excess-of-mass selection. Labels are 0, 1, ... or `NOISE`.

    If there are fewer vectors than a cluster or a core point needs, all are noise.

    Args:
      min_samples: the neighbours of a core point, including itself, as in scikit-learn. The library of the
        paper (hdbscan) excludes the point: its 2 is 3 here. With 1 or 2 this is single linkage.
      dense: the largest n for which all distances are in memory at once (scikit-learn's algorithm brute).
        Above, the algorithm is kd_tree. With `min_samples` up to 2, labels do not depend on it, except
        through distances that are equal in float32. With larger values, many mutual reachability distances
        are equal, and there are several minimum spanning trees. If clusters are not well separated, the
        choice among them matters: the two algorithms then agree with an adjusted Rand index of 0.47 on 1,100
        users of LaMP-7 (docs/papers/clusterrag.md).
    """
    n = len(vectors)
    if n < max(2, min_cluster_size, min_samples):
        return np.full(n, NOISE)
    from sklearn.cluster import HDBSCAN

    settings: dict[str, Any] = {"algorithm": "brute" if n <= dense else "kd_tree", "copy": True}
    made = HDBSCAN(min_cluster_size=min_cluster_size, min_samples=min_samples, **settings)
    return np.asarray(made.fit(np.asarray(vectors, np.float64)).labels_, int)


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
    from sklearn.metrics import silhouette_score

    if len(vectors) > _SAMPLE:
        chosen = np.random.default_rng(seed).permutation(len(vectors))[:_SAMPLE]
        vectors, labels = vectors[chosen], labels[chosen]
    if not 2 <= len(np.unique(labels)) < len(labels):
        return None
    return float(silhouette_score(np.asarray(vectors, np.float64), labels))


def centroids(vectors: Float[np.ndarray, "n d"], labels: Labels) -> Float[np.ndarray, "g d"]:
    """The mean of each cluster 0, 1, ...; noise has none."""
    found = np.zeros((int(labels.max(initial=NOISE)) + 1, vectors.shape[1]), np.float32)
    inside = labels >= 0
    np.add.at(found, labels[inside], vectors[inside])
    return found / np.maximum(np.bincount(labels[inside], minlength=len(found)), 1)[:, None]

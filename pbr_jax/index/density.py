"""Groups whose number is not known: HDBSCAN at any size, beside k-means; and how well groups hold together.

Campello, Moulavi and Sander, "Density-Based Clustering Based on Hierarchical Density Estimates", 2013;
McInnes, Healy and Astels, "hdbscan", JOSS 2017. The labels are scikit-learn's (brute). The spanning tree that
they follow from does not depend on the smallest group and is found here, once for all sizes: with all
distances in memory up to `DENSE` vectors, above in blocks (Borůvka), so that memory grows with n and not n².
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

NOISE = -1
DENSE = 4096  # vectors whose distances are held at once: 128 MiB
_BLOCK = 512  # rows of distances at a time above that
_NEAR = 16  # nearest vectors that are remembered of each
_SAMPLE = 10_000  # vectors of which a silhouette is computed
_LEAST = 1e-12  # distance of equal vectors in a sparse matrix, where 0 would be no edge

Labels = Int[np.ndarray, " n"]


def hdbscan(
    vectors: Float[np.ndarray, "n d"], *, min_cluster_size: int = 2, min_samples: int = 3, dense: int = DENSE
) -> Labels:
    """Groups by excess of mass over Euclidean distances: 0, 1, ... or `NOISE`.

    Fewer vectors than a group or a core needs are all noise.

    Args:
      min_samples: vectors within reach of a core, itself included, as scikit-learn counts. The library of
        the paper (hdbscan) leaves it out: its 2 is 3 here. With 1 or 2 all this is single linkage.
      dense: the largest n of which all distances are held at once. Up to `min_samples` 2 labels do not depend
        on it, but for distances that float32 cannot tell apart. Above, many distances between cores are
        equal, and which of several shortest trees is taken decides much where groups do not lie apart: there
        scikit-learn's own algorithms (brute, which is taken here, and kd_tree) agree by an adjusted Rand of
        .47 on 1,100 users of LaMP-7, and so do the two sides of `dense`; docs/clusterrag.md.
    """
    return Hierarchy(vectors, min_samples=min_samples, dense=dense).labels(min_cluster_size)


class Hierarchy:
    """The groups of `hdbscan` at any smallest size, from one spanning tree."""

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
        n = len(self._vectors)
        if n > self._dense:
            return np.arange(n), _matrix(spanning_tree(self._vectors, self._samples), n)
        order, lengths = _visited(self._vectors, self._samples)
        places = np.arange(n - 1)
        return order, _matrix(Tree(places, places + 1, lengths), n)


def _visited(vectors: np.ndarray, min_samples: int) -> tuple[np.ndarray, np.ndarray]:
    """The order in which the shortest tree grows from vector 0, int [n], and by what each is reached [n-1].

    Prim, 1957. A path in this order with these lengths joins the same groups at the same lengths as the tree.
    It is how scikit-learn has it, so that equal lengths, of which there are many, are taken in its order.
    """
    from sklearn.metrics import pairwise_distances

    distances = pairwise_distances(np.asarray(vectors, np.float64))
    core = np.partition(distances, min_samples - 1, axis=0)[min_samples - 1]
    np.maximum(distances, core, out=distances)
    np.maximum(distances, core[:, None], out=distances)
    order, lengths = np.zeros(len(vectors), np.int64), np.zeros(len(vectors) - 1)
    reach, outside = np.full(len(vectors), np.inf), np.ones(len(vectors), bool)
    for place in range(len(lengths)):
        outside[order[place]], reach[order[place]] = False, np.inf
        np.minimum(reach, distances[order[place]], out=reach, where=outside)
        order[place + 1] = reach.argmin()
        lengths[place] = reach[order[place + 1]]
    return order, lengths


def k_means(vectors: Float[np.ndarray, "n d"], *, k: int, seed: int) -> Labels:
    """`k` groups, or as many as there are different vectors; the best of ten starts.

    The order of the vectors plays no part: each different one is given once, in the order of its values, with
    how often it is there. One thread adds them up, since several would do it in the order that they end in.
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
    """Mean of (b - a) / max(a, b), with a the mean distance to the own group and b to the nearest other one.

    Rousseeuw, 1987. Noise is a group like any other here: leave it out before, to be without it. Of more than
    10,000 vectors a sample is taken. None where there are no two groups, or none with two members.
    """
    return silhouettes(vectors, [labels], seed=seed)[0]


def silhouettes(
    vectors: Float[np.ndarray, "n d"], groupings: Sequence[Labels], *, seed: int = 0
) -> list[float | None]:
    """The `silhouette` of each of several groupings of the same vectors; distances are computed once."""
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
    """The mean of each group 0, 1, ...; of noise none."""
    found = np.zeros((int(labels.max(initial=NOISE)) + 1, vectors.shape[1]), np.float32)
    inside = labels >= 0
    np.add.at(found, labels[inside], vectors[inside])
    return found / np.maximum(np.bincount(labels[inside], minlength=len(found)), 1)[:, None]


class Tree(NamedTuple):
    """The edges of a spanning tree; `lengths` are distances between cores (mutual reachability)."""

    left: Int[np.ndarray, " n-1"]
    right: Int[np.ndarray, " n-1"]
    lengths: Float[np.ndarray, " n-1"]


def spanning_tree(vectors: Float[np.ndarray, "n d"], min_samples: int = 3) -> Tree:
    """The minimum spanning tree by max(distance, core of either end), core: distance to the nearest
    `min_samples`-th vector, itself the first.

    In every round each component takes its shortest edge to another one (Borůvka, 1926); the largest need
    not. Of every vector the nearest others are remembered, and the nearest outside its component that was
    ever found: as components only grow, it stays the nearest until it is inside. So distances are computed
    anew only for vectors that may have a shorter edge than the shortest that is known.
    """
    search = _Search(np.asarray(vectors, np.float32), min_samples)
    component = np.arange(len(vectors))
    edges: list[tuple[np.ndarray, np.ndarray]] = []
    while component.any():  # all are of component 0 in the end
        left, right = search.shortest(component)
        left, right, component = _joined(component, left, right)
        edges.append((left, right))
    left, right = (np.concatenate(ends) for ends in zip(*edges, strict=True))
    return Tree(left, right, search.lengths(left, right))


class _Search:
    """Squared distances between cores, float32, block by block."""

    def __init__(self, vectors: np.ndarray, min_samples: int) -> None:
        self.vectors, self.norms = vectors, np.einsum("nd,nd->n", vectors, vectors)
        near = min(max(_NEAR, min_samples - 1), len(vectors) - 1)
        self.near, squares = self._nearest(near)
        self.core = squares[:, min_samples - 2].copy() if min_samples > 1 else np.zeros_like(self.norms)
        self.samples = min_samples
        self.squares = self._reach(squares, np.arange(len(vectors)), self.near)
        # Beyond these nobody of whom nothing is remembered is nearer than `bound`.
        self.outside, self.bound = np.full(len(vectors), -1), squares[:, -1].copy()
        self.best = np.full(len(vectors), np.inf, np.float32)

    def shortest(self, component: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """For each component but the largest, its shortest edge to another: both ends."""
        largest = np.bincount(component).argmax()
        self._remembered(component)
        rows = np.flatnonzero((component != largest) & self._unsure(component))
        for start in range(0, len(rows), _BLOCK):
            some = rows[start : start + _BLOCK]
            some = some[self._unsure(component)[some]]  # a block before may have found a shorter one
            if not len(some):
                continue
            squares = self._reach(self._block(some), some)
            squares[component[some][:, None] == component[None]] = np.inf
            self.outside[some] = squares.argmin(1)
            self.best[some] = self.bound[some] = squares[np.arange(len(some)), self.outside[some]]
        order = np.lexsort((self.best, component))
        first = order[np.unique(component[order], return_index=True)[1]]
        first = first[(component[first] != largest) & np.isfinite(self.best[first])]
        return first, self.outside[first]

    def lengths(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Distances between cores, float64."""
        exact = np.sqrt(((self.vectors[left].astype(float) - self.vectors[right]) ** 2).sum(1))
        if self.samples < 3:  # nobody's core is farther than any edge
            return exact
        near = self.near[:, self.samples - 2]
        core = np.sqrt(((self.vectors.astype(float) - self.vectors[near]) ** 2).sum(1))
        return np.maximum(exact, np.maximum(core[left], core[right]))

    def _remembered(self, component: np.ndarray) -> None:
        """The nearest outsider of each vector among those that are remembered; inf where all are inside."""
        inside = component[self.near] == component[:, None]
        squares = np.where(inside, np.inf, self.squares)
        place = squares.argmin(1)
        found = squares[np.arange(len(place)), place]
        known = (self.outside >= 0) & (component[self.outside] != component)
        self.best = np.where(known, np.minimum(self.best, found), found)
        self.outside = np.where(
            known & (self.best < found), self.outside, self.near[np.arange(len(place)), place]
        )

    def _unsure(self, component: np.ndarray) -> np.ndarray:
        """Vectors that may have a shorter edge outwards than the shortest that is known of the component."""
        shortest = np.full(len(component), np.inf, np.float32)
        np.minimum.at(shortest, component, self.best)
        return (self.bound < shortest[component]) & (self.bound < self.best)

    def _nearest(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        rows, squares = [], []
        for start in range(0, len(self.vectors), _BLOCK):
            some = np.arange(start, min(start + _BLOCK, len(self.vectors)))
            block = self._block(some)
            block[np.arange(len(some)), some] = np.inf
            near = np.argpartition(block, count - 1, axis=1)[:, :count]
            order = np.take_along_axis(block, near, 1).argsort(1, kind="stable")
            rows.append(np.take_along_axis(near, order, 1))
            squares.append(np.take_along_axis(block, rows[-1], 1))
        return np.concatenate(rows), np.concatenate(squares)

    def _block(self, rows: np.ndarray) -> np.ndarray:
        """Squared distances of some vectors to all, [r n]."""
        block = self.vectors[rows] @ self.vectors.T
        block *= -2
        block += self.norms[None]
        block += self.norms[rows][:, None]
        return np.maximum(block, 0, out=block)

    def _reach(self, squares: np.ndarray, rows: np.ndarray, columns: np.ndarray | None = None) -> np.ndarray:
        """Squared distances between cores from those between vectors."""
        if self.samples < 3:
            return squares
        others = self.core[None] if columns is None else self.core[columns]
        return np.maximum(squares, np.maximum(self.core[rows][:, None], others))


def _joined(
    component: np.ndarray, left: np.ndarray, right: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The edges that close no circle (of equal lengths), and the components that they make, from 0."""
    parent = list(range(int(component.max()) + 1))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = node = parent[parent[node]]
        return node

    kept = []
    for edge, (one, other) in enumerate(
        zip(component[left].tolist(), component[right].tolist(), strict=True)
    ):
        one, other = root(one), root(other)
        if one != other:
            parent[max(one, other)] = min(one, other)
            kept.append(edge)
    roots = np.array([root(node) for node in range(len(parent))])
    return left[kept], right[kept], np.unique(roots, return_inverse=True)[1][component]


def _matrix(tree: Tree, n: int) -> Any:
    """The tree as a sparse matrix of distances, both ways."""
    from scipy.sparse import csr_array

    lengths = np.maximum(tree.lengths, _LEAST)
    ends = (np.concatenate([tree.left, tree.right]), np.concatenate([tree.right, tree.left]))
    return csr_array((np.concatenate([lengths, lengths]), ends), shape=(n, n))

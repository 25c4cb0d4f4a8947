"""Cohorts: the clusters of users at moments, kept on disk, with how well they hold together.

Nkhata et al. (ClusterRAG), 2026, section 4.1 and Table 10.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from pbr_jax.base.files import write_text
from pbr_jax.corpus.store import Store
from pbr_jax.graph import Node, Stage, tell
from pbr_jax.index import density
from pbr_jax.index.base import unit
from pbr_jax.index.density import NOISE
from pbr_jax.methods.neighbours.moments import Moments
from pbr_jax.stages.run import Run, keep_measures, once
from pbr_jax.stages.users import Users

ABSENT = -2  # had written nothing

_LABELS = "labels.npy"
_SIZES = (2, 3, 5, 10, 20, 50)  # smallest clusters that a silhouette chooses from
_NUMBERS = (2, 3, 5, 10, 20, 50, 100)  # of clusters


@dataclass(frozen=True)
class Grouping:
    """How users are grouped: what of `neighbours.method cohorts` its stage reads."""

    clustering: Literal["hdbscan", "k_means"]
    min_cluster_size: int | Literal["silhouette"]
    min_samples: int
    num_clusters: int | Literal["silhouette"]
    unit: bool
    snapshots: int

    def labels(self, vectors: np.ndarray, seed: int) -> tuple[np.ndarray, int | None]:
        """Each user's cluster, 0, 1, ... or `NOISE`; and the size or number that the silhouette chose."""
        k_means = self.clustering == "k_means"
        told = self.num_clusters if k_means else self.min_cluster_size
        make = partial(self._k_means, vectors, seed) if k_means else partial(self._hdbscan, vectors)
        if told != "silhouette":
            return make(told), None
        return _best(vectors, make, _NUMBERS if k_means else _SIZES)

    def _hdbscan(self, vectors: np.ndarray, size: int) -> np.ndarray:
        return density.hdbscan(vectors, min_cluster_size=size, min_samples=self.min_samples)

    def _k_means(self, vectors: np.ndarray, seed: int, number: int) -> np.ndarray:
        return density.k_means(vectors, k=number, seed=seed)


def _best(
    vectors: np.ndarray, make: Callable[[int], np.ndarray], values: Sequence[int]
) -> tuple[np.ndarray, int]:
    """The labels with the highest silhouette, noise as a cluster; the first of equal ones. Those with one
    cluster, which have no silhouette, come last."""
    tried = [value for value in values if 2 * value <= len(vectors)] or values[:1]
    found = {value: make(value) for value in tried}
    scores = {value: density.silhouette(vectors, labels) for value, labels in found.items()}
    best = max(tried, key=lambda value: -2.0 if (score := scores[value]) is None else score)
    return found[best], best


class Cohorts(NamedTuple):
    """Clusters of users at some moments: int [t u], by the users' codes; `NOISE`, or `ABSENT`."""

    moments: list[float | None]
    labels: np.ndarray

    def at(self, moment: float | None) -> tuple[float | None, np.ndarray]:
        """The last of the moments that is not after this one, and the labels [u] there."""
        known = [i for i, m in enumerate(self.moments) if m is None or (moment is not None and m <= moment)]
        return self.moments[known[-1]], self.labels[known[-1]]


@once
def cohorts(run: Run, users: Node, grouping: Grouping) -> Stage:
    """The clusters of all users of a run's store."""
    seed = run.config.seed if grouping.clustering == "k_means" else None
    return Stage("cohorts", (grouping, seed), {"store": run.data, "users": users}, _make, _load)


def _make(folder: Path, grouping: Grouping, seed: int | None, *, store: Store, users: Users) -> None:
    moments = Moments(store, grouping.snapshots).all
    labels = np.full((len(moments), len(store.users)), ABSENT, np.int32)
    told, last = {}, None
    for place, moment in enumerate(moments):
        vectors = users.at(moment)
        present = np.flatnonzero(vectors.any(axis=1))
        grouped = unit(vectors[present]) if grouping.unit else vectors[present]
        labels[place, present], chosen = grouping.labels(grouped, seed or 0)
        if len(present):
            told = {} if chosen is None else {"chosen_by_silhouette": chosen}
            last = grouped, labels[place, present]
    if last is not None:  # of the last moment, at which most is known
        told = _measured(*last) | told
    keep_measures(folder, told)
    write_text(folder / "moments.json", json.dumps(moments))
    np.save(folder / _LABELS, labels, allow_pickle=False)


def _measured(vectors: np.ndarray, labels: np.ndarray) -> dict[str, int | float]:
    """Silhouettes with noise as one cluster and without it, and how many clusters and users of noise."""
    inside = labels != NOISE
    values = {
        "silhouette": density.silhouette(vectors, labels),
        "silhouette_without_noise": density.silhouette(vectors[inside], labels[inside]),
        "clusters": int(labels.max(initial=NOISE)) + 1,
        "clustered_users": len(labels),
        "noise_users": int((~inside).sum()),
        "largest_cluster": int(np.bincount(labels[inside]).max(initial=0)),
    }
    if inside.mean() < 0.5:
        tell(
            "cohorts",
            f"{(~inside).sum()} of {len(labels)} users are in no cluster; see neighbours.noise",
        )
    return {name: value for name, value in values.items() if value is not None}


def _load(folder: Path) -> Cohorts:
    moments = json.loads((folder / "moments.json").read_text(encoding="utf-8"))
    return Cohorts(moments, np.load(folder / _LABELS, allow_pickle=False))

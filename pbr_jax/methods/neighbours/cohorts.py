"""ClusterRAG: similar users are looked for in the cluster of the asking user.

Nkhata et al., "ClusterRAG: Cluster-Based Collaborative Filtering for Personalized Retrieval-Augmented
Generation", 2026, section 4.1.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from pbr_jax.base.draws import generator
from pbr_jax.base.files import write_text
from pbr_jax.base.types import Example
from pbr_jax.corpus.store import Store
from pbr_jax.graph import Node, Stage, builds_nodes, constant, tell
from pbr_jax.index import density
from pbr_jax.index.base import unit
from pbr_jax.index.density import NOISE
from pbr_jax.methods.neighbours.moments import Moments
from pbr_jax.options import Neighbours, TrainingSplit
from pbr_jax.pipeline import Examples, Neighbour, NeighboursSlot, Tally
from pbr_jax.stages import users as user_parts
from pbr_jax.stages.run import Run, keep_measures, once
from pbr_jax.stages.users import Users

ABSENT = -2  # had written nothing
_TOGETHER = 4096  # documents of others that are compared at once


@dataclass(frozen=True, kw_only=True)
class Cohorts(Neighbours):
    """The most similar users in the asking user's own cluster, by `similarity` (ClusterRAG, Eq. 2).

    The paper's k does not count the asking user. Its hybrid mode is m = k + 1, its collaborative mode m = k
    with `own` off, and its user-only mode m = 1.
    """

    training_split: ClassVar[TrainingSplit] = "welcome"

    method: Literal["cohorts"] = "cohorts"
    own: bool = True  # whether the asking user is one of the m
    # how users are represented. mean: the mean of their documents' vectors; trained: CFRAG's encoder
    vectors: Literal["mean", "trained"] = "mean"
    unit: bool = True  # whether users' vectors are scaled to unit length before clustering
    clustering: Literal["hdbscan", "k_means"] = "hdbscan"  # clustering algorithm
    min_cluster_size: int = 2  # hdbscan: least number of users in a cluster
    # hdbscan: number of users within reach of a core point, itself included, as in scikit-learn. The paper's
    # library leaves the point itself out, so its 2 is 3 here
    min_samples: int = 3
    num_clusters: int = 10  # k_means: number of clusters
    # users in no cluster. one_cluster: they form one cluster, as in the paper; nearest: each joins the
    # cluster of the nearest centroid; alone: each is alone
    noise: Literal["one_cluster", "nearest", "alone"] = "one_cluster"
    # similarity of two users of a cluster. cosine: of their vectors, as in the released code; dot: Eq. 2 as
    # printed, which favours users with few documents, since a mean of few vectors is longer;
    # maxsim_documents: the best match of each own document among the other user's; random: a random order
    similarity: Literal["dot", "cosine", "maxsim_documents", "random"] = "cosine"
    # number of moments at which dated histories are encoded again. A question uses the last one before it
    snapshots: int = 8

    @property
    def others(self) -> int:
        return self.m - self.own

    def check(self) -> None:
        super().check()
        lowest = {"min_samples": 1, "num_clusters": 1, "snapshots": 1, "min_cluster_size": 2}
        for name, low in lowest.items():
            self.at_least(name, low)

    @builds_nodes
    def users(self, run: Run) -> Node | None:
        return user_parts.means(run) if self.vectors == "mean" else None

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        """Alone nobody is compared with anybody."""
        if not self.others:
            return {"store": run.data}
        users = self.users(run) or user_parts.trained(run)
        grouping = Grouping(
            self.clustering,
            self.min_cluster_size,
            self.min_samples,
            self.num_clusters,
            self.unit,
            self.snapshots,
        )
        drawn = {"seed": constant("seed", run.config.seed)} if self.similarity == "random" else {}
        return {"store": run.data, "users": users, "cohorts": clusters(run, users, grouping), **drawn}

    def slot(
        self,
        tally: Tally,
        *,
        store: Store,
        users: Users | None = None,
        cohorts: "Clusters | None" = None,
        seed: int = 0,
    ) -> NeighboursSlot:
        moments, names = Moments(store, self.snapshots), store.users

        @lru_cache(maxsize=1)
        def pool(moment: float | None) -> _Pool:
            if users is None or cohorts is None:
                raise ValueError("cohorts are found by users' vectors; none were given")
            moment, labels = cohorts.at(moment)
            return _pool(users, moment, labels, self.noise, self.unit)

        def neighbours(examples: Examples) -> list[list[Neighbour]]:
            found = [[Neighbour(example.user_id)] * self.own for example in examples]
            if users is None or not examples:
                return found
            vectors = users.asking(examples)
            for moment, some in moments.groups(examples):
                among = pool(moment)
                for place in some:
                    example, vector = examples[place], vectors[place]
                    members = among.members(example, vector, store)
                    with tally.timed("compare_users"):
                        scores = self._similarity(example, vector, members, among, users, seed)
                    best = members[np.argsort(-scores, kind="stable")[: self.others]]
                    found[place] += [Neighbour(names[code]) for code in best]
            return found

        return neighbours

    def _similarity(
        self,
        example: Example,
        vector: np.ndarray,
        members: np.ndarray,
        among: "_Pool",
        users: Users,
        seed: int,
    ) -> np.ndarray:
        """How alike the asking user and each member are, [m]."""
        if self.similarity == "dot":
            return np.vecdot(among.vectors[members], vector)
        if self.similarity == "cosine":
            return np.vecdot(unit(among.vectors[members]), vector)
        if self.similarity == "maxsim_documents":
            return _max_sims(example, vector, members, among.moment, users)
        names = seed, "cohorts", example.user_id, example.training, example.id
        return generator(*names).random(len(members))


class _Pool(NamedTuple):
    """The users at a moment, by their codes: vectors [u d], clusters [u] (`NOISE`: alone; `ABSENT`), and the
    clusters' centroids [c d], of unit length, means of `grouped` [u d] by the clusters `counted` [u]."""

    moment: float | None
    vectors: np.ndarray
    labels: np.ndarray
    centroids: np.ndarray
    grouped: np.ndarray
    counted: np.ndarray

    def members(self, example: Example, vector: np.ndarray, store: Store) -> np.ndarray:
        """The codes of the other users in the asking user's cluster.

        It is the one that the user was put in, if the question sees all that was read of the user for it;
        else, for users without history, and where nobody else is in it, that of the nearest centroid of
        others. So what the question does not see of the own history moves no centroid; only which others
        make up a cluster still knows of it, as they were grouped with the whole of it.
        """
        own = store.code(example.user_id)
        label, others = self.labels[own], self.labels.copy()
        others[own] = ABSENT
        read = store.before(example.user_id, self.moment)
        seen = label != ABSENT and np.isin(read, store.visible(example, example.user_id)).all()
        if not seen or (label != NOISE and not (others == label).any()):
            label = self._nearest(vector, own)
        return np.flatnonzero(others == label) if label != NOISE else np.zeros(0, np.int64)

    def _nearest(self, vector: np.ndarray, own: int) -> int:
        """The cluster with the nearest centroid, the own vector left out of its mean; or `NOISE`."""
        nearness, label = self.centroids @ vector, self.counted[own]
        if label >= 0:
            rest = self.counted == label
            rest[own] = False
            centre = unit(self.grouped[rest].sum(0, keepdims=True))[0]
            nearness[label] = centre @ vector if rest.any() else -np.inf
        return int(nearness.argmax()) if np.isfinite(nearness).any() else NOISE


def _pool(users: Users, moment: float | None, labels: np.ndarray, noise: str, scaled: bool) -> _Pool:
    vectors = users.at(moment)
    labels = np.pad(labels, (0, len(vectors) - len(labels)), constant_values=ABSENT)
    labels[~vectors.any(axis=1)] = ABSENT  # of those who came, or went, after the fit
    grouped = unit(vectors) if scaled else vectors
    centres = unit(density.centroids(grouped, labels))
    outside, counted = labels == NOISE, labels
    if noise == "one_cluster" or (noise == "nearest" and not len(centres)):
        labels = counted = np.where(outside, labels.max(initial=NOISE) + 1, labels)
        centres = unit(density.centroids(grouped, labels))
    elif noise == "nearest":
        labels = labels.copy()
        labels[outside] = (grouped[outside] @ centres.T).argmax(1)
    return _Pool(moment, vectors, labels, centres, grouped, counted)


def _max_sims(
    example: Example, vector: np.ndarray, members: np.ndarray, moment: float | None, users: Users
) -> np.ndarray:
    """Late interaction of two histories: the own documents' best matches, added up, [m]."""
    store = users.store
    own = store.visible(example, example.user_id)
    asked = np.asarray(users.embeddings[own], np.float32) if len(own) else vector[None]
    histories = [store.before(store.users[code], moment) for code in members]
    scores, start = np.zeros(len(members), np.float32), 0
    while start < len(members):
        end, total = start + 1, len(histories[start])
        while end < len(members) and total + len(histories[end]) <= _TOGETHER:
            total += len(histories[end])
            end += 1
        rows = np.concatenate(histories[start:end])
        starts = np.cumsum([0, *map(len, histories[start : end - 1])])
        matches = asked @ np.asarray(users.embeddings[rows], np.float32).T  # [own, documents]
        scores[start:end] = np.maximum.reduceat(matches, starts, axis=1).sum(0)
        start = end
    return scores


_LABELS = "labels.npy"


@dataclass(frozen=True)
class Grouping:
    """How users are grouped: what of `neighbours.method cohorts` its stage reads."""

    clustering: Literal["hdbscan", "k_means"]
    min_cluster_size: int
    min_samples: int
    num_clusters: int
    unit: bool
    snapshots: int

    def labels(self, vectors: np.ndarray, seed: int) -> np.ndarray:
        """Each user's cluster, 0, 1, ... or `NOISE`."""
        if self.clustering == "k_means":
            return density.k_means(vectors, k=self.num_clusters, seed=seed)
        sizes = {"min_cluster_size": self.min_cluster_size, "min_samples": self.min_samples}
        return density.hdbscan(vectors, **sizes)


class Clusters(NamedTuple):
    """Clusters of users at some moments: int [t u], by the users' codes; `NOISE`, or `ABSENT`."""

    moments: list[float | None]
    labels: np.ndarray

    def at(self, moment: float | None) -> tuple[float | None, np.ndarray]:
        """The last of the moments that is not after this one, and the labels [u] there."""
        known = [i for i, m in enumerate(self.moments) if m is None or (moment is not None and m <= moment)]
        return self.moments[known[-1]], self.labels[known[-1]]


@once
def clusters(run: Run, users: Node, grouping: Grouping) -> Stage:
    """The clusters of all users of a run's store."""
    seed = run.config.seed if grouping.clustering == "k_means" else None
    return Stage("cohorts", (grouping, seed), {"store": run.data, "users": users}, _make, _load)


def _make(folder: Path, grouping: Grouping, seed: int | None, *, store: Store, users: Users) -> None:
    moments = Moments(store, grouping.snapshots).all
    labels = np.full((len(moments), len(store.users)), ABSENT, np.int32)
    last = None
    for place, moment in enumerate(moments):
        vectors = users.at(moment)
        present = np.flatnonzero(vectors.any(axis=1))
        grouped = unit(vectors[present]) if grouping.unit else vectors[present]
        labels[place, present] = grouping.labels(grouped, seed or 0)
        last = (grouped, labels[place, present]) if len(present) else last
    # Of the last moment, at which most is known.
    keep_measures(folder, {} if last is None else _measured(*last))
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
        tell("cohorts", f"{(~inside).sum()} of {len(labels)} users are in no cluster; see neighbours.noise")
    return {name: value for name, value in values.items() if value is not None}


def _load(folder: Path) -> Clusters:
    moments = json.loads((folder / "moments.json").read_text(encoding="utf-8"))
    return Clusters(moments, np.load(folder / _LABELS, allow_pickle=False))

"""ClusterRAG: clusters of documents are found by their centroids, then documents inside by late interaction,
or by the cosine of pooled vectors.

Nkhata et al., "ClusterRAG: Cluster-Based Collaborative Filtering for Personalized Retrieval-Augmented
Generation", 2026, section 4.2.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Literal, NamedTuple

import numpy as np

from pbr_jax.base.draws import generator
from pbr_jax.base.types import Example, UserError
from pbr_jax.corpus.store import Store
from pbr_jax.graph import Node, Value, builds_nodes, constant, tell
from pbr_jax.index.base import Matrix, unit
from pbr_jax.index.density import NOISE, centroids, hdbscan
from pbr_jax.methods.retrieve.recency import in_time
from pbr_jax.options import IDLE
from pbr_jax.pipeline import Examples, Queries, Query, Ranking, RetrieveSlot, Searched, Tally
from pbr_jax.stages import late_interaction as late
from pbr_jax.stages import vectors
from pbr_jax.stages.late_interaction import PooledVectors, TokenVectors
from pbr_jax.stages.okapi import Analysed, Okapi
from pbr_jax.stages.run import Run
from pbr_jax.stages.search import Searching, candidates, query_vectors, without_names

Documents = TokenVectors | PooledVectors


@dataclass(frozen=True, kw_only=True)
class TwoStage(Searching):
    """The best clusters of all searched profiles are opened. The documents inside are ranked, `k` for each
    user.

    If the opened clusters contain fewer than `k` documents, further clusters are opened.
    """

    method: Literal["two_stage"] = "two_stage"
    # number of opened clusters, over all searched users together. None: all, which is a flat ranking
    top_clusters: int | None = 2
    min_cluster_size: int = 2  # least number of documents in a cluster
    # number of documents that make a core point, itself included. The paper's 2 leaves the point itself out
    min_samples: int = 3
    # documents in no cluster. alone: each is its own cluster; one_cluster: those of a profile form one
    # cluster, as in the released code
    noise: Literal["alone", "one_cluster"] = "alone"
    # ranking of the documents in opened clusters. max_sim: MaxSim of query and document; pooled: the cosine
    # of their vectors from the untrained encoder.model, which are clustered too (Contriever and BGE in Table
    # 3); bm25, bm25_lamp: with statistics of the opened documents; recency: newest first; centroid: by
    # closeness to the document's own centroid, noise last (Table 5); random: a random order
    inside: Literal["max_sim", "pooled", "bm25", "bm25_lamp", "recency", "centroid", "random"] = "max_sim"
    # folder of a ColBERT model, or of any encoder, whose token states are then compared without projection.
    # "": encoder.model
    model: str = field(default="", metadata=IDLE)

    def check(self) -> None:
        super().check()
        for name, least in (("top_clusters", 1), ("min_samples", 1), ("min_cluster_size", 2)):
            self.at_least(name, least)
        if self.inside == "pooled" and self.model:
            raise UserError(
                "retrieve.model is set, and retrieve.inside is pooled, which compares the vectors of "
                "encoder.model and no token's; leave it out, or set retrieve.inside max_sim"
            )

    @builds_nodes
    def encoder(self, run: Run) -> Node | None:
        return vectors.encoder(run) if self.inside == "pooled" else None

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        self._note(run.config.select.k)
        if self.inside == "pooled":
            pooled = vectors.encoder(run)
            documents = Value(
                "pooled vectors", (), {"vectors": vectors.documents(run, pooled)}, PooledVectors
            )
            return {"store": run.data, "encoder": pooled, "tokens": documents}
        encoder = late.encoder(run, self.model)
        drawn = {"seed": constant("seed", run.config.seed)} if self.inside == "random" else {}
        return {"store": run.data, "encoder": encoder, "tokens": late.documents(run, encoder), **drawn}

    @lru_cache(maxsize=64)  # noqa: B019  said once; options are small
    def _note(self, shown: int | None) -> None:
        if self.top_clusters is not None and shown is not None and shown > self.k:
            tell(
                "retrieve",
                f"select.k is {shown} and retrieve.k {self.k}: two_stage opens clusters until they hold "
                f"{self.k} documents, so a question may get fewer than {shown}; raise retrieve.k to {shown}",
            )

    def slot(
        self, tally: Tally, *, store: Store, encoder: Any, tokens: Documents, seed: int = 0
    ) -> RetrieveSlot:
        clusters = ProfileClusters(tokens.means, self.min_cluster_size, self.min_samples)
        nameless = without_names(store, self.names)

        def retrieve(examples: Examples, queries: Queries, neighbours: Searched) -> list[Ranking]:
            asked = self._asked(encoder, nameless(examples, queries))
            visible = [
                [store.visible(example, user.user_id) for user in users]
                for example, users in zip(examples, neighbours, strict=True)
            ]
            with tally.timed("cluster_documents"):
                found = iter(self._clusters(clusters, [rows for of_users in visible for rows in of_users]))
            rankings = []
            for example, query, asking, users, profiles in zip(
                examples, queries, asked, neighbours, visible, strict=True
            ):
                searched = _pooled(profiles, [next(found) for _ in profiles])
                with tally.timed("rank_documents"):
                    opened = self._opened(asking, searched, tokens)
                    scores = self._scores(example, query, asking, searched, opened, tokens, store, seed)
                tally.counts["documents_scored"] += int(opened.sum())
                tally.counts["documents_searched"] += len(opened)
                ranking: Ranking = []
                for place, user in enumerate(users):
                    own = np.flatnonzero(opened & (searched.users == place))
                    best = own[np.argsort(-scores[own], kind="stable")[: self.k]]
                    ranking += candidates(store, searched.rows[best], scores[best] * user.weight)
                rankings.append(ranking)
            return rankings

        return retrieve

    def _asked(self, encoder: Any, queries: Queries) -> list[np.ndarray]:
        """Each query as vectors [s e]: its tokens', or the one unit vector of the whole."""
        if self.inside == "pooled":
            return list(unit(query_vectors(encoder, queries))[:, None])
        return encoder.encode([" ".join(query.texts) for query in queries], "query")

    def _clusters(self, clusters: "ProfileClusters", profiles: list[np.ndarray]) -> list[np.ndarray]:
        """Each document's cluster: 0, 1, ..."""
        if self.top_clusters is None and self.inside != "centroid":  # a flat ranking looks at none
            return [np.zeros(len(rows), int) for rows in profiles]
        labels = clusters.labels(profiles)
        if self.noise == "alone":
            return [alone(of_profile) for of_profile in labels]
        return [np.where(one == NOISE, one.max(initial=NOISE) + 1, one) for one in labels]

    def _opened(self, query: np.ndarray, searched: "_Searched", tokens: Documents) -> np.ndarray:
        """Which documents lie in the clusters that are opened, bool [n]."""
        count = int(searched.clusters.max(initial=-1)) + 1
        if self.top_clusters is None or count <= self.top_clusters:
            return np.ones(len(searched.rows), bool)
        # MaxSim with a single vector is a cosine with the sum of the query's.
        nearness = unit(centroids(tokens.means[searched.rows], searched.clusters)) @ query.sum(0)
        order = np.argsort(-nearness, kind="stable")
        held = np.cumsum(np.bincount(searched.clusters, minlength=count)[order])
        enough = int(np.searchsorted(held, min(self.k, held[-1]))) + 1
        return np.isin(searched.clusters, order[: max(self.top_clusters, enough)])

    def _scores(
        self,
        example: Example,
        query: Query,
        asked: np.ndarray,
        searched: "_Searched",
        opened: np.ndarray,
        tokens: Documents,
        store: Store,
        seed: int,
    ) -> np.ndarray:
        """Scores of the opened documents, [n]; of others 0."""
        scores = np.zeros(len(opened), np.float32)
        rows = searched.rows[opened]
        if not len(rows):
            return scores
        if self.inside in ("max_sim", "pooled"):
            scores[opened] = tokens.max_sims(asked, rows)
        elif self.inside in ("bm25", "bm25_lamp"):
            texts = [document.text for document in store.documents(rows)]
            options = Analysed() if self.inside == "bm25" else Okapi()
            scores[opened] = options.index(texts).scores(" ".join(query.texts))
        elif self.inside == "recency":
            scores[opened] = in_time(store.times[searched.rows], searched.users)[opened]
        elif self.inside == "centroid":
            scores[opened] = _to_centroids(tokens.means[searched.rows], searched.clusters)[opened]
        else:
            names = seed, "two_stage", example.user_id, example.training, example.id
            scores[opened] = generator(*names).random(len(opened))[opened]
        return scores


class _Searched(NamedTuple):
    """The documents of all searched users: rows, whose they are (a place in the list), and clusters, which
    are numbered over all of them; int [n] each."""

    rows: np.ndarray
    users: np.ndarray
    clusters: np.ndarray


def _pooled(profiles: list[np.ndarray], labels: list[np.ndarray]) -> _Searched:
    starts = np.cumsum([0, *(int(one.max(initial=NOISE)) + 1 for one in labels)])
    numbered = [one + start for one, start in zip(labels, starts)]
    users = np.repeat(np.arange(len(profiles)), [len(rows) for rows in profiles])
    nothing = np.zeros(0, np.int64)
    return _Searched(
        np.concatenate([nothing, *profiles]), users, np.concatenate([nothing, *numbered]).astype(np.int64)
    )


def _to_centroids(vectors: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    """The cosine of each document with the centroid of its cluster, [n].

    A document alone in a cluster is its own centroid, which says nothing: such ones come last, by their
    cosine with the centroid of all of them.
    """
    lonely = np.bincount(clusters)[clusters] == 1
    nearness = np.vecdot(vectors, unit(centroids(vectors, clusters))[clusters])
    if lonely.any():
        nearness[lonely] = vectors[lonely] @ unit(vectors[lonely].mean(0, keepdims=True))[0] - 2
    return nearness


class ProfileClusters:
    """The clusters of profiles by HDBSCAN: each is computed once, and known by the vectors of its documents.

    So a document more in one history makes the clusters of that history alone anew, whatever else moved. A
    question that sees less of a history than another has clusters of its own: a later document changes none
    of an earlier question.

    Args:
      means: document vectors, float32 [n e].
    """

    def __init__(self, means: Matrix, min_cluster_size: int, min_samples: int) -> None:
        self.means = means
        self._cluster = partial(hdbscan, min_cluster_size=min_cluster_size, min_samples=min_samples)
        self._known: dict[bytes, np.ndarray] = {}

    def labels(self, profiles: Sequence[np.ndarray]) -> list[np.ndarray]:
        """For each profile, as rows, the cluster of each document: 0, 1, ... or `NOISE`. One alone is 0."""
        return [self._of(np.ascontiguousarray(self.means[rows], np.float32)) for rows in profiles]

    def _of(self, vectors: np.ndarray) -> np.ndarray:
        key = hashlib.sha256(vectors.tobytes()).digest()
        if key not in self._known:
            self._known[key] = self._cluster(vectors) if len(vectors) > 1 else np.zeros(len(vectors), int)
        return self._known[key]


def alone(labels: np.ndarray) -> np.ndarray:
    """The same labels, each document of noise a cluster of its own."""
    noise = labels == NOISE
    found = labels.copy()
    found[noise] = labels.max(initial=NOISE) + 1 + np.arange(noise.sum())
    return found

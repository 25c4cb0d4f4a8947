"""Slot 3: scored candidates from the histories of the neighbours.

Every retriever scores only rows that `Store.visible` gave it for this example and this user, so that time
and ownership are settled before any ranking. Scores of a neighbour's documents are multiplied by the
neighbour's weight, which is 1 for the asking user.
"""

import hashlib
from collections.abc import Callable, Sequence

import numpy as np

from pbr_jax.config import Config
from pbr_jax.index.per_user import PerUserIndex, Scope
from pbr_jax.pipeline.pipeline import Examples, Neighbour, Query, Ranking, Resources, Retrieve
from pbr_jax.text.bm25 import BM25
from pbr_jax.text.encode import TextEncoder
from pbr_jax.types import Candidate, Example

Score = Callable[[Example, Query, np.ndarray], np.ndarray]
"""(example, query, rows [r]) -> scores [r] of one user's visible documents."""


def none(config: Config, resources: Resources, depth: int) -> Retrieve:
    """No documents: the model answers without a profile."""

    def retrieve(
        examples: Examples, queries: Sequence[Query], neighbours: Sequence[Sequence[Neighbour]]
    ) -> list[Ranking]:
        return [[] for _ in examples]

    return retrieve


def random(config: Config, resources: Resources, depth: int) -> Retrieve:
    """Uniform without replacement, a function of the seed and the example's id alone."""

    def score(example: Example, query: Query, rows: np.ndarray) -> np.ndarray:
        name = hashlib.sha256(f"{config.seed}\0{example.user_id}\0{example.id}".encode()).digest()
        return np.random.default_rng(int.from_bytes(name[:8], "big")).random(len(rows))

    return _scored(resources, depth, score)


def recency(config: Config, resources: Resources, depth: int) -> Retrieve:
    """Newest first. The score is the document's place in time, oldest 0.

    Undated documents count as older than dated ones and keep the order of the profile, whose last entry is
    taken as the newest.
    """

    def score(example: Example, query: Query, rows: np.ndarray) -> np.ndarray:
        order = np.argsort(np.nan_to_num(resources.store.times[rows], nan=-np.inf), kind="stable")
        places = np.empty(len(rows))
        places[order] = np.arange(len(rows))
        return places

    return _scored(resources, depth, score)


def bm25(config: Config, resources: Resources, depth: int) -> Retrieve:
    """BM25 with statistics of the one profile that is searched, as LaMP builds it."""

    def score(example: Example, query: Query, rows: np.ndarray) -> np.ndarray:
        texts = [document.text for document in resources.store.documents(rows)]
        o = config.retrieve
        index = BM25(texts, k1=o.k1, b=o.b, epsilon=o.epsilon, tokenizer=o.tokenizer)
        return index.scores(" ".join(query.texts))

    return _scored(resources, depth, score)


def _scored(resources: Resources, depth: int, score: Score) -> Retrieve:
    """A retriever that scores one user's visible documents at a time."""

    def retrieve(
        examples: Examples, queries: Sequence[Query], neighbours: Sequence[Sequence[Neighbour]]
    ) -> list[Ranking]:
        rankings = []
        for example, query, users in zip(examples, queries, neighbours, strict=True):
            ranking: Ranking = []
            for user in users:
                rows = resources.store.visible(example, user.user_id)
                scores = score(example, query, rows) if len(rows) else np.zeros(0)
                best = np.argsort(-scores, kind="stable")[:depth]
                ranking += _candidates(resources, rows[best], scores[best] * user.weight)
            rankings.append(ranking)
        return rankings

    return retrieve


def dense(config: Config, resources: Resources, depth: int) -> Retrieve:
    """Inner product of the encoder's query and document vectors, exact, inside each user's documents.

    A tuned retriever is the same with another encoder and, where it counts preferences (CFRAG Eq. 5), with
    query vectors that carry the asking user's.
    """
    if resources.encoder is None or resources.embeddings is None:
        raise ValueError("dense retrieval needs an encoder and document embeddings")
    encoder, store = resources.encoder, resources.store
    index = PerUserIndex(resources.embeddings, store.owners)

    def retrieve(
        examples: Examples, queries: Sequence[Query], neighbours: Sequence[Sequence[Neighbour]]
    ) -> list[Ranking]:
        scopes = [
            [Scope(str(store.code(u.user_id)), store.visible(example, u.user_id)) for u in users]
            for example, users in zip(examples, neighbours, strict=True)
        ]
        vectors = _vectors(encoder, queries)
        if resources.personalize is not None:
            vectors = resources.personalize(examples, vectors)
        hits = index.search(vectors, scopes, depth)
        rankings = []
        for users, rows, scores in zip(neighbours, hits.rows, hits.scores, strict=True):
            ranking: Ranking = []
            for place, user in enumerate(users):
                found = rows[place] >= 0
                ranking += _candidates(resources, rows[place][found], scores[place][found] * user.weight)
            rankings.append(ranking)
        return rankings

    return retrieve


def _vectors(encoder: TextEncoder, queries: Sequence[Query]) -> np.ndarray:
    """Vectors [q, d]: an expansion's own where it made one, else the encoded text."""
    encoded = iter(encoder.encode([" ".join(q.texts) for q in queries if q.vector is None], role="query"))
    return np.stack([next(encoded) if query.vector is None else query.vector for query in queries])


def _candidates(resources: Resources, rows: np.ndarray, scores: np.ndarray) -> Ranking:
    documents = resources.store.documents(rows)
    return [Candidate(d, float(s), int(row)) for d, s, row in zip(documents, scores, rows, strict=True)]


METHODS = {
    "none": none,
    "random": random,
    "recency": recency,
    "bm25": bm25,
    "dense": dense,
    "tuned": dense,
}

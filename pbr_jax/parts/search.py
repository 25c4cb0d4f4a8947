"""Dense search inside the histories of some users and in shared documents, for retrievers and expansions."""

from collections.abc import Callable, Sequence

import numpy as np

from pbr_jax.corpus.engine import EngineSearch
from pbr_jax.corpus.search import InScope, Search
from pbr_jax.corpus.store import Store
from pbr_jax.index import Matrix
from pbr_jax.pipeline import Examples, Neighbour, Query, Ranking, RetrieveSlot
from pbr_jax.text.encode import TextEncoder
from pbr_jax.types import Candidate

Personalize = Callable[[Examples, np.ndarray], np.ndarray]
"""Query vectors [e d] to those whose inner product with a document also counts what the user prefers."""


def search(
    store: Store,
    encoder: TextEncoder,
    embeddings: Matrix,
    k: int,
    personalize: Personalize | None = None,
    shared: Search | None = None,
    least_own: float | None = None,
) -> RetrieveSlot:
    """The `k` nearest documents of each user; an expansion's own vector stands in for its texts.

    `shared` searches the documents that belong to nobody, an engine those of users too; where left out, they
    are searched as a history is.
    Of users' documents those are left out whose inner product with the query is below `least_own`.
    """
    own = shared if isinstance(shared, EngineSearch) else InScope(embeddings)

    def retrieve(
        examples: Examples, queries: Sequence[Query], neighbours: Sequence[Sequence[Neighbour]]
    ) -> list[Ranking]:
        vectors = query_vectors(encoder, queries)
        if personalize is not None:
            vectors = personalize(examples, vectors)
        wanted = [
            (q, user, store.visible(example, user.user_id))
            for q, (example, users) in enumerate(zip(examples, neighbours, strict=True))
            for user in users
        ]
        rankings: list[Ranking] = [[] for _ in examples]
        found = {}
        for index, is_shared in ((own, False), (shared or own, True)):
            places = [i for i, (_, user, _) in enumerate(wanted) if (user.user_id == "") == is_shared]
            if places:
                scopes = [wanted[i][2] for i in places]
                depth = max(1, min(k, max(map(len, scopes))))  # there is room for k, found or not
                hits = index.search(vectors[[wanted[i][0] for i in places]], depth, scopes)
                found |= dict(zip(places, zip(*hits)))
        for i, (q, user, _) in enumerate(wanted):
            rows, scores = found[i]
            there = rows >= 0
            if least_own is not None and user.user_id:
                there &= scores >= least_own
            rankings[q] += candidates(store, rows[there], scores[there] * user.weight)
        return rankings

    return retrieve


def query_vectors(encoder: TextEncoder, queries: Sequence[Query]) -> np.ndarray:
    """Vectors [q, d]: an expansion's own where it made one, else the encoded text."""
    encoded = iter(encoder.encode([" ".join(q.texts) for q in queries if q.vector is None], role="query"))
    return np.stack([next(encoded) if query.vector is None else query.vector for query in queries])


def candidates(store: Store, rows: np.ndarray, scores: np.ndarray) -> Ranking:
    """The documents of some rows with their scores."""
    documents = store.documents(rows)
    return [Candidate(d, float(s), int(row)) for d, s, row in zip(documents, scores, rows, strict=True)]

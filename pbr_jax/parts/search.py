"""Dense search inside the histories of some users: what retrievers and expansions share."""

from collections.abc import Callable, Sequence

import numpy as np

from pbr_jax.corpus.store import Store
from pbr_jax.index.per_user import PerUserIndex, Scope
from pbr_jax.pipeline import Examples, Neighbour, Query, Ranking, RetrieveSlot
from pbr_jax.text.encode import TextEncoder
from pbr_jax.types import Candidate

Personalize = Callable[[Examples, np.ndarray], np.ndarray]
"""Query vectors [e d] to those whose inner product with a document also counts what the user prefers."""


def search(
    store: Store, encoder: TextEncoder, embeddings: np.ndarray, k: int, personalize: Personalize | None = None
) -> RetrieveSlot:
    """The `k` nearest documents of each user; an expansion's own vector stands in for its texts."""
    index = PerUserIndex(embeddings, store.owners)

    def retrieve(
        examples: Examples, queries: Sequence[Query], neighbours: Sequence[Sequence[Neighbour]]
    ) -> list[Ranking]:
        scopes = [
            [Scope(str(store.code(u.user_id)), store.visible(example, u.user_id)) for u in users]
            for example, users in zip(examples, neighbours, strict=True)
        ]
        asked = query_vectors(encoder, queries)
        if personalize is not None:
            asked = personalize(examples, asked)
        longest = max((len(scope.rows) for of_query in scopes for scope in of_query), default=0)
        hits = index.search(asked, scopes, max(1, min(k, longest)))  # there is room for k, found or not
        rankings = []
        for users, rows, scores in zip(neighbours, hits.rows, hits.scores, strict=True):
            ranking: Ranking = []
            for place, user in enumerate(users):
                found = rows[place] >= 0
                ranking += candidates(store, rows[place][found], scores[place][found] * user.weight)
            rankings.append(ranking)
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

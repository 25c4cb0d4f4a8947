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
    """A retriever that finds the documents nearest to the query among those that the question may see.

    Args:
      store: the run's store, `run.data` in `needs`.
      encoder: encodes the queries (`vectors.encoder`). A vector that `expand` made is taken as it is.
      embeddings: the documents' vectors (`vectors.documents`).
      k: how many documents are taken of each user that is searched.
      personalize: changes the queries' vectors: `personalize(examples, queries [e d])` returns [e d].
      shared: searches the documents that belong to nobody (`vectors.shared`); without it, all of their
        vectors are compared.
      least_own: leaves out users' documents whose inner product with the query is lower.

    Returns:
      The function that `slot` returns, from examples, queries and neighbours to a ranking for each example.
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
    """The documents of some rows, int64 [r], with their scores, [r], as a ranking in this order."""
    documents = store.documents(rows)
    return [Candidate(d, float(s), int(row)) for d, s, row in zip(documents, scores, rows, strict=True)]

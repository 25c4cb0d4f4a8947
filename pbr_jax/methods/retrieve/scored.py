"""Retrievers that score one user's visible documents at a time: what `random`, `recency` and `bm25` share."""

from collections.abc import Callable, Sequence

import numpy as np

from pbr_jax.index.store import Store
from pbr_jax.parts.search import candidates
from pbr_jax.pipeline import Examples, Neighbour, Query, Ranking, RetrieveSlot
from pbr_jax.types import Example

Score = Callable[[Example, Query, np.ndarray], np.ndarray]
"""(example, query, rows [r]) -> scores [r] of one user's visible documents."""


def scored(store: Store, k: int, score: Score) -> RetrieveSlot:
    """The `k` best of each user; of equal scores the first in the profile."""

    def retrieve(
        examples: Examples, queries: Sequence[Query], neighbours: Sequence[Sequence[Neighbour]]
    ) -> list[Ranking]:
        rankings = []
        for example, query, users in zip(examples, queries, neighbours, strict=True):
            ranking: Ranking = []
            for user in users:
                rows = store.visible(example, user.user_id)
                scores = score(example, query, rows) if len(rows) else np.zeros(0)
                best = np.argsort(-scores, kind="stable")[:k]
                ranking += candidates(store, rows[best], scores[best] * user.weight)
            rankings.append(ranking)
        return rankings

    return retrieve

"""Retrievers that score visible documents: what `random`, `recency` and `bm25` share."""

from collections.abc import Callable, Sequence

import numpy as np

from pbr_jax.corpus.store import Store
from pbr_jax.parts.search import candidates
from pbr_jax.pipeline import Examples, Neighbour, Query, Ranking, RetrieveSlot
from pbr_jax.types import Example

ScoreFn = Callable[[Example, Query, np.ndarray], np.ndarray]
"""(example, query, rows [r]) -> scores [r] of one user's visible documents."""

ScoreAll = Callable[[Example, Query, list[np.ndarray]], list[np.ndarray]]
"""(example, query, rows [r] of each user) -> scores [r] of each user, comparable with one another."""


def scored(store: Store, k: int, score: ScoreFn) -> RetrieveSlot:
    """The `k` best of each user, who is scored alone; of equal scores the first in the profile."""

    def each(example: Example, query: Query, rows: list[np.ndarray]) -> list[np.ndarray]:
        return [score(example, query, own) if len(own) else np.zeros(0) for own in rows]

    return scored_together(store, k, each)


def scored_together(store: Store, k: int, score: ScoreAll) -> RetrieveSlot:
    """The `k` best of each user, where a score looks at the documents of all users who are searched."""

    def retrieve(
        examples: Examples, queries: Sequence[Query], neighbours: Sequence[Sequence[Neighbour]]
    ) -> list[Ranking]:
        rankings = []
        for example, query, users in zip(examples, queries, neighbours, strict=True):
            rows = [store.visible(example, user.user_id) for user in users]
            ranking: Ranking = []
            found = score(example, query, rows) if rows else []
            for user, own, scores in zip(users, rows, found, strict=True):
                best = np.argsort(-scores, kind="stable")[:k]
                ranking += candidates(store, own[best], scores[best] * user.weight)
            rankings.append(ranking)
        return rankings

    return retrieve


def of_documents(store: Store, score: ScoreAll) -> ScoreAll:
    """Passages have the scores of their documents, each of which is scored once, by its first row."""

    def each(example: Example, query: Query, rows: list[np.ndarray]) -> list[np.ndarray]:
        firsts = [store.firsts[own] for own in rows]
        documents = [np.unique(own) for own in firsts]
        found = score(example, query, documents)
        return [
            scores[np.searchsorted(of_user, own)]
            for scores, of_user, own in zip(found, documents, firsts, strict=True)
        ]

    return each

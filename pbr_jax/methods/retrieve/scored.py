"""Builds retrievers from functions that score visible documents, as in `random`, `recency` and `bm25`."""

from collections.abc import Callable, Sequence

import numpy as np

from pbr_jax.base.types import Example
from pbr_jax.corpus.store import Store
from pbr_jax.pipeline import Neighbour, Query, RetrieveSlot
from pbr_jax.stages.search import Scored, Scorer

ScoreFn = Callable[[Example, Query, np.ndarray], np.ndarray]
"""(example, query, rows [r]) -> scores [r] of one user's visible documents."""

ScoreAll = Callable[[Example, Query, list[np.ndarray]], list[np.ndarray]]
"""(example, query, rows [r] of each user) -> scores [r] of each user, comparable across users."""


def scored(store: Store, k: int, score: ScoreFn) -> RetrieveSlot:
    """Builds a retriever that scores the documents of each user separately.

    Args:
      store: the run's store (`run.data` in `needs`).
      k: the number of documents from each searched user.
      score: is called as `score(example, query, rows)` for each searched user with visible documents. `rows`
        are the row numbers of these documents in the store, int64 [r], in the order of the history. It
        returns a score per row, [r]. Higher is better.

    Returns:
      The callable of the slot, which maps examples, queries and neighbours to a ranking per example. Scores
      are multiplied by the neighbour's weight, which is 1 for the asking user. Documents with equal scores
      keep the order of the history.
    """

    def each(example: Example, query: Query, rows: list[np.ndarray]) -> list[np.ndarray]:
        return [score(example, query, own) if len(own) else np.zeros(0) for own in rows]

    return scored_together(store, k, each)


def scored_together(store: Store, k: int, score: ScoreAll) -> RetrieveSlot:
    """Like `scored`, for scores that depend on the documents of all searched users, such as BM25's.

    Args:
      store: the run's store (`run.data` in `needs`).
      k: the number of documents from each searched user.
      score: is called once per question, as `score(example, query, rows)`, where `rows` has an array of row
        numbers for each user. It returns a list of score arrays of the same lengths.
    """

    def one(example: Example, query: Query, users: Sequence[Neighbour]) -> Scored:
        rows = [store.visible(example, user.user_id) for user in users]
        found = []
        for user, own, scores in zip(users, rows, score(example, query, rows) if rows else [], strict=True):
            best = np.argsort(-scores, kind="stable")[:k]
            found.append((own[best], scores[best] * user.weight))
        return Scored.of_users(found)

    return Scorer(store, lambda *asked: [*map(one, *asked)])


def of_documents(store: Store, score: ScoreAll) -> ScoreAll:
    """Gives passages the scores of their documents. Each document is scored once, by its first row."""

    def each(example: Example, query: Query, rows: list[np.ndarray]) -> list[np.ndarray]:
        firsts = [store.firsts[own] for own in rows]
        documents = [np.unique(own) for own in firsts]
        found = score(example, query, documents)
        return [
            scores[np.searchsorted(of_user, own)]
            for scores, of_user, own in zip(found, documents, firsts, strict=True)
        ]

    return each

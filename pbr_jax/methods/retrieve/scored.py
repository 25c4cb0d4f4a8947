"""From scores of visible documents to a retriever, as in `random`, `recency` and `bm25`."""

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
    """A retriever that ranks each user's documents by scores of its own.

    Args:
      store: the run's store, `run.data` in `needs`.
      k: how many documents are taken of each user that is searched.
      score: called as `score(example, query, rows)` for each user that is searched and has documents which
        the question may see. `rows` are their row numbers in the store, int64 [r], in the order of the
        history. Returns one number a row, [r], higher is better.

    Returns:
      The function that `slot` returns, from examples, queries and neighbours to a ranking for each example.
      Scores are multiplied by the neighbour's weight, which is 1 for the asking user. Of equal
      scores the first in the history comes first.
    """

    def each(example: Example, query: Query, rows: list[np.ndarray]) -> list[np.ndarray]:
        return [score(example, query, own) if len(own) else np.zeros(0) for own in rows]

    return scored_together(store, k, each)


def scored_together(store: Store, k: int, score: ScoreAll) -> RetrieveSlot:
    """The same, where a score depends on the documents of all users that are searched, as BM25's does.

    Args:
      store: the run's store, `run.data` in `needs`.
      k: how many documents are taken of each user that is searched.
      score: called once for each question, as `score(example, query, rows)` with a list of arrays of row
        numbers, one for each user. Returns a list of arrays of scores of the same lengths.
    """

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

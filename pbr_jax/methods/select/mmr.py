"""Maximal marginal relevance: candidates that are relevant and unlike those before them.

Carbonell and Goldstein, "The Use of MMR, Diversity-Based Reranking for Reordering Documents and Producing
Summaries", SIGIR 1998, https://doi.org/10.1145/290941.291025. The next document is

    argmax_i  lambda * relevance(i) - (1 - lambda) * max_{j chosen} similarity(i, j)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from pbr_jax.graph import Bound, Node, builds_nodes
from pbr_jax.index import Matrix
from pbr_jax.methods.select.behind import Behind
from pbr_jax.pipeline import Examples, Query, Ranking, SelectSlot, Tally
from pbr_jax.stages import vectors
from pbr_jax.stages.run import Run


@dataclass(frozen=True, kw_only=True)
class MMR(Behind):
    """Maximal marginal relevance. The similarity of documents is the cosine of their vectors from
    `encoder.model`, without training.

    Relevance is the score of the previous selection, scaled to 0 … 1 within a question. Without scaling, the
    effect of `balance` would depend on the kind of score, because BM25's scores, logits and nats are not
    limited to the range of cosines.
    """

    method: Literal["mmr"] = "mmr"
    # lambda, from 0 to 1. 1: relevance alone; 0: the best document, then those least similar to the ones
    # before. At 0.7 the first documents stay, as in the paper's second round
    balance: float = 0.7

    def check(self) -> None:
        super().check()
        self.between("balance", 0, 1)

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        return {**super().needs(run), "embeddings": vectors.documents(run, vectors.encoder(run))}

    def slot(self, tally: Tally, *, first: Bound, embeddings: Matrix) -> SelectSlot:
        before: SelectSlot = first(tally)

        def select(
            examples: Examples, queries: Sequence[Query], rankings: Sequence[Ranking]
        ) -> list[Ranking]:
            return [self._diverse(ranking, embeddings) for ranking in before(examples, queries, rankings)]

        return select

    def _diverse(self, ranking: Ranking, embeddings: Matrix) -> Ranking:
        if not ranking:
            return []
        found = np.asarray(embeddings[np.array([candidate.row for candidate in ranking])], np.float64)
        found /= np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-12)
        relevance = scaled(np.array([candidate.score for candidate in ranking]))
        order, values = marginal(relevance, found, self.balance)
        return [replace(ranking[i], score=float(value)) for i, value in zip(order, values, strict=True)]


def marginal(relevance: np.ndarray, vectors: np.ndarray, balance: float) -> tuple[np.ndarray, np.ndarray]:
    """The order of all candidates by marginal relevance, int [c], and their values [c], which never rise.

    Args:
      relevance: of the candidates, [c]; of equal values the first stands first.
      vectors: of unit length, [c d].
      balance: lambda, 0 to 1.
    """
    left = np.ones(len(relevance), bool)
    closest = np.full(len(relevance), -1.0)  # nothing is chosen that a document could be like
    order, values = np.empty(len(relevance), int), np.empty(len(relevance))
    for place in range(len(relevance)):
        worth = np.where(left, balance * relevance - (1 - balance) * closest, -np.inf)
        best = int(np.argmax(worth if place else relevance))  # the most relevant, also where balance is 0
        order[place], left[best] = best, False
        values[place] = balance * relevance[best] - (1 - balance) * closest[best]
        closest = np.maximum(closest, vectors @ vectors[best])
    return order, values


def scaled(scores: np.ndarray) -> np.ndarray:
    """Scores [c] from 0, the least, to 1, the highest; ones where all are the same."""
    spread = np.ptp(scores)
    return (scores - scores.min()) / spread if spread > 0 else np.ones(len(scores))

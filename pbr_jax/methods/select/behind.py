"""Selections that stand behind another one and order anew what it has ranked.

- `mmr`: Carbonell and Goldstein, "The Use of MMR, Diversity-Based Reranking for Reordering Documents and
  Producing Summaries", SIGIR 1998, https://doi.org/10.1145/290941.291025. The next document is

      argmax_i  lambda * relevance(i) - (1 - lambda) * max_{j chosen} similarity(i, j)

- `recency_prior`: an exponential prior of the age, as Li and Croft, "Time-Based Language Models", CIKM 2003,
  https://doi.org/10.1145/956863.956951. Of a question with candidates i of standardised scores z_i

      score(i) = z_i + weight * 2^(-age_i / half_life)
"""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from pbr_jax.base.types import Example, UserError
from pbr_jax.corpus.store import Store
from pbr_jax.graph import Bound, Node, Slot, builds_nodes
from pbr_jax.index import Matrix
from pbr_jax.methods.select.by_score import TopK, by_score
from pbr_jax.options import Learner, Select, TrainingSplit
from pbr_jax.pipeline import Examples, Queries, Ranking, SelectSlot, Tally
from pbr_jax.stages import vectors
from pbr_jax.stages.run import Run
from pbr_jax.stages.scores import standardised

_DAY = 86_400.0  # seconds


@dataclass(frozen=True, kw_only=True)
class Behind(Select):
    """Base class of selections that follow another selection, which scores the candidates first. Subclasses
    define `reordered`."""

    # the selection that scores the candidates first, with its options. top_k: the retriever's scores
    of: tuple[Select, ...] = (TopK(),)

    def check(self) -> None:
        super().check()
        if len(self.of) != 1:
            raise UserError(f"{self.named('of')} has {len(self.of)} selections, want one, such as top_k")
        if isinstance(self.first, Learner):
            raise UserError(
                f"{self.named('of')} is {self.first.method}, which learns from a stream; take another"
            )

    @property
    def first(self) -> Select:
        """The selection whose scores are read."""
        return self.of[0]

    @property
    def ceiling(self) -> bool:
        return self.first.ceiling

    def learns(self) -> TrainingSplit:
        return self.first.learns() if self.training_split == "unused" else self.training_split

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        return {"first": Slot(self.first, run.changed(select=self.first))}

    @abc.abstractmethod
    def reordered(self, *args: Any, **values: Any) -> Ranking:
        """`reordered(example, ranking, *, name=value …)`: the candidates of the first selection in a new
        order, with new scores, from the values of the other needs."""

    def slot(self, tally: Tally, *, first: Bound, **values: Any) -> SelectSlot:
        before: SelectSlot = first(tally)

        def select(examples: Examples, queries: Queries, rankings: Sequence[Ranking]) -> list[Ranking]:
            ranked = zip(examples, before(examples, queries, rankings), strict=True)
            return [self.reordered(*pair, **values) for pair in ranked]

        return select


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

    def reordered(self, example: Example, ranking: Ranking, *, embeddings: Matrix) -> Ranking:
        if not ranking:
            return []
        units = np.asarray(embeddings[np.array([candidate.row for candidate in ranking])], np.float64)
        units /= np.maximum(np.linalg.norm(units, axis=1, keepdims=True), 1e-12)
        relevance = scaled(np.array([candidate.score for candidate in ranking]))
        order, values = marginal(relevance, units, self.balance)
        return [dataclasses.replace(ranking[i], score=float(v)) for i, v in zip(order, values, strict=True)]


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


@dataclass(frozen=True, kw_only=True)
class RecencyPrior(Behind):
    """The score of another selection plus a prior for newer documents. Ages are counted in days, from the
    document's first moment to the time of the question.

    If a question has no time, or is asked now, ages are counted from the newest document of the asking user
    that the question may see. Documents after that moment have age 0. A document without a date gets the mean
    prior of the question's other candidates.
    """

    method: Literal["recency_prior"] = "recency_prior"
    half_life: float = 30.0  # half-life of the prior, in days
    weight: float = 1.0  # weight of the prior, in standard deviations of a question's scores

    def check(self) -> None:
        super().check()
        self.at_least("weight", 0)
        self.at_least("half_life", 1e-6)

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        return {**super().needs(run), "store": run.data}

    def reordered(self, example: Example, ranking: Ranking, *, store: Store) -> Ranking:
        scores = standardised(np.array([candidate.score for candidate in ranking]))
        return by_score(ranking, scores + self.weight * prior(ages(store, example, ranking), self.half_life))


def ages(store: Store, example: Example, ranking: Ranking) -> np.ndarray:
    """The candidates' ages in days, float64 [c], none negative; nan where there is no date."""
    times = np.array([np.nan if c.document.time is None else c.document.time for c in ranking], np.float64)
    moment = example.time
    if moment is None or not np.isfinite(moment):
        visible = store.times[store.visible(example, example.user_id)]
        visible = visible[~np.isnan(visible)]
        moment = visible.max() if len(visible) else np.nanmax(times) if not np.isnan(times).all() else 0.0
    return np.maximum(moment - times, 0.0) / _DAY


def prior(ages: np.ndarray, half_life: float) -> np.ndarray:
    """2^(-age / half_life), [c]. Undated documents get the mean of the dated ones; 0 if there are none."""
    dated = ~np.isnan(ages)
    values = np.where(dated, np.exp2(-np.where(dated, ages, 0.0) / half_life), 0.0)
    if not len(values) or dated.all():
        return values
    return np.where(dated, values, np.add.reduceat(values, [0]) / max(int(dated.sum()), 1))

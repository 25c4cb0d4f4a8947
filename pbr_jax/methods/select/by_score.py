"""Candidates in the order of new scores: the base of most selections, and those whose scores are simple."""

import abc
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from pbr_jax.base.draws import generator
from pbr_jax.base.types import UserError
from pbr_jax.graph import Node, builds_nodes, constant
from pbr_jax.options import IDLE, Select
from pbr_jax.pipeline import Examples, Queries, Ranking, SelectSlot, Tally
from pbr_jax.stages import late_interaction as late
from pbr_jax.stages.late_interaction import TokenVectors
from pbr_jax.stages.okapi import Analysed, Okapi
from pbr_jax.stages.run import Run
from pbr_jax.text.token_encoder import TokenEncoder


class Batch(NamedTuple):
    """Questions with their queries and candidates."""

    examples: Examples
    queries: Queries
    rankings: Sequence[Ranking]

    @property
    def texts(self) -> list[str]:
        """What is searched for, as one text for each question."""
        return [" ".join(query.texts) for query in self.queries]


@dataclass(frozen=True, kw_only=True)
class ByScore(Select):
    """The base of selections that score each candidate. Subclasses define `scores`."""

    best_first: ClassVar[bool] = False
    """Whether `scores` reads candidates by the retriever's score, whosever they are. Retrievers give those of
    each user in turn."""

    # number of the k documents that come from the user's own history; the others come from other users (CFRAG
    # Figure 7). None: by score alone
    own: int | None = None

    def check(self) -> None:
        super().check()
        self.at_least("own", 0)
        if self.own is not None and (self.k is None or self.own > self.k):
            raise UserError(f"select.own is {self.own} and select.k {self.k}, want own at most k")

    @abc.abstractmethod
    def scores(self, *args: Any, **values: Any) -> list[np.ndarray]:
        """`scores(batch, tally, *, name=value …)`: new scores [r] of the candidates of each question of a
        `Batch`, from the values of the needs."""

    def slot(self, tally: Tally, **values: Any) -> SelectSlot:
        def select(examples: Examples, queries: Queries, rankings: Sequence[Ranking]) -> list[Ranking]:
            if self.best_first:
                rankings = [sorted(ranking, key=lambda candidate: -candidate.score) for ranking in rankings]
            scores = self.scores(Batch(examples, queries, rankings), tally, **values)
            ordered = [by_score(*pair) for pair in zip(rankings, scores, strict=True)]
            if self.own is None or self.k is None:
                return ordered
            return [_divided(r, e.user_id, self.own, self.k) for e, r in zip(examples, ordered, strict=True)]

        return select


def by_score(ranking: Ranking, scores: np.ndarray) -> Ranking:
    """All candidates with new scores, best first. Equal scores keep the order."""
    order = np.argsort(-scores, kind="stable")
    return [dataclasses.replace(ranking[i], score=float(scores[i])) for i in order]


def _divided(ranking: Ranking, user: str, own: int, k: int) -> Ranking:
    """The same candidates, `own` of the first `k` from the user's own history where there are as many.

    What one side lacks the other fills. The first k and the rest are each by score.
    """
    mine = [i for i, c in enumerate(ranking) if c.document.user_id == user]
    others = [i for i, c in enumerate(ranking) if c.document.user_id != user]
    first = [*mine[:own], *others[: k - own]]
    first += [*others[k - own :], *mine[own:]][: k - len(first)] if len(first) < k else []
    kept = set(first)
    return [ranking[i] for i in sorted(kept)] + [c for i, c in enumerate(ranking) if i not in kept]


@dataclass(frozen=True, kw_only=True)
class TopK(ByScore):
    """The candidates with the highest scores. Equal scores keep the retriever's order."""

    by_text: ClassVar[bool] = True

    method: Literal["top_k"] = "top_k"

    def scores(self, batch: Batch, tally: Tally) -> list[np.ndarray]:
        return [np.array([candidate.score for candidate in ranking]) for ranking in batch.rankings]


@dataclass(frozen=True, kw_only=True)
class Random(ByScore):
    """Random candidates, drawn uniformly. The draw depends only on the seed and the question's id."""

    by_text: ClassVar[bool] = True

    method: Literal["random"] = "random"

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        return {"seed": constant("seed", run.config.seed)}

    def scores(self, batch: Batch, tally: Tally, *, seed: int) -> list[np.ndarray]:
        return [
            generator(seed, "select", example.user_id, example.id).random(len(ranking))
            for example, ranking in zip(batch.examples, batch.rankings, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class BM25Lamp(Okapi, ByScore):
    """BM25 as in LaMP's code, with texts split at white space."""

    by_text: ClassVar[bool] = True

    method: Literal["bm25_lamp"] = "bm25_lamp"

    def scores(self, batch: Batch, tally: Tally) -> list[np.ndarray]:
        return bm25_scores(self, batch)


@dataclass(frozen=True, kw_only=True)
class BM25(Analysed, ByScore):
    """BM25 (CFRAG Figure 6). A word's weight depends on its frequency among the candidates."""

    by_text: ClassVar[bool] = True

    method: Literal["bm25"] = "bm25"

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        self.check_analyser()
        return {}

    def scores(self, batch: Batch, tally: Tally) -> list[np.ndarray]:
        return bm25_scores(self, batch)


def bm25_scores(options: Okapi, batch: Batch) -> list[np.ndarray]:
    """BM25's scores of each question's candidates, with the statistics of these."""
    indices = (options.index([candidate.document.text for candidate in r]) for r in batch.rankings)
    return [index.scores(text) for index, text in zip(indices, batch.texts, strict=True)]


@dataclass(frozen=True, kw_only=True)
class LateInteraction(ByScore):
    """Late interaction (ColBERT's MaxSim), ClusterRAG's order. The similarity of each query token to its best
    match in the document is summed."""

    method: Literal["late_interaction"] = "late_interaction"
    # folder of a ColBERT model, or of any encoder, whose token states are then compared without projection.
    # "": encoder.model
    model: str = field(default="", metadata=IDLE)

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        encoder = late.encoder(run, self.model)
        return {"encoder": encoder, "tokens": late.documents(run, encoder)}

    def scores(
        self, batch: Batch, tally: Tally, *, encoder: TokenEncoder, tokens: TokenVectors
    ) -> list[np.ndarray]:
        encoded = encoder.encode(batch.texts, "query")
        return [
            tokens.max_sims(query, [candidate.row for candidate in ranking])
            for query, ranking in zip(encoded, batch.rankings, strict=True)
        ]

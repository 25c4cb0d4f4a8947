"""Newer documents first, other things equal: a prior of a document's age is added to its score.

An exponential prior of the age, as Li and Croft, "Time-Based Language Models", CIKM 2003,
https://doi.org/10.1145/956863.956951. Of a question with candidates i of standardised scores z_i

    score(i) = z_i + weight * 2^(-age_i / half_life)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from pbr_jax.corpus.store import Store
from pbr_jax.graph import Bound, Node, builds_nodes
from pbr_jax.methods.select import recency_fit
from pbr_jax.methods.select.behind import Behind
from pbr_jax.methods.select.recency_fit import Fit, ages, prior
from pbr_jax.options import TrainingSplit
from pbr_jax.pipeline import Examples, Query, Ranking, SelectSlot, Tally
from pbr_jax.stages.run import Run
from pbr_jax.stages.scores import standardised


@dataclass(frozen=True, kw_only=True)
class RecencyPrior(Behind):
    """The score of another selection plus a prior for newer documents. Ages are counted in days, from the
    document's first moment to the time of the question.

    If a question has no time, or is asked now, ages are counted from the newest document of the asking user
    that the question may see. Documents after that moment have age 0. A document without a date gets the mean
    prior of the question's other candidates.
    """

    method: Literal["recency_prior"] = "recency_prior"
    # half-life of the prior, in days. learned: fitted on training questions together with the weight, to make
    # the scores predict relevant documents (or those that the language model finds helpful)
    half_life: float | Literal["learned"] = 30.0
    # weight of the prior, in standard deviations of a question's scores. It is ignored if half_life is
    # learned
    weight: float = 1.0

    def check(self) -> None:
        super().check()
        self.at_least("weight", 0)
        if self.half_life != "learned":
            self.at_least("half_life", 1e-6)

    def learns(self) -> TrainingSplit:
        return "needed" if self.half_life == "learned" else super().learns()

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        learned = {"fit": recency_fit.fitted(run, self.first)} if self.half_life == "learned" else {}
        return {**super().needs(run), "store": run.data, **learned}

    def slot(self, tally: Tally, *, first: Bound, store: Store, fit: Fit | None = None) -> SelectSlot:
        before: SelectSlot = first(tally)
        half_life, weight = (fit.half_life, fit.weight) if fit else (float(self.half_life), self.weight)

        def select(
            examples: Examples, queries: Sequence[Query], rankings: Sequence[Ranking]
        ) -> list[Ranking]:
            found = before(examples, queries, rankings)
            chosen = []
            for example, ranking in zip(examples, found, strict=True):
                scores = standardised(np.array([candidate.score for candidate in ranking]))
                scores = scores + weight * prior(ages(store, example, ranking), half_life)
                best = np.argsort(-scores, kind="stable")
                chosen.append([replace(ranking[i], score=float(scores[i])) for i in best])
            return chosen

        return select

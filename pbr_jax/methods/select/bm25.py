"""BM25 with statistics of the example's candidates (CFRAG Figure 6)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pbr_jax.graph import Node, builds_nodes
from pbr_jax.methods.select.backfill import Curve
from pbr_jax.methods.select.by_score import ByScore, ScoreFn, by_score
from pbr_jax.pipeline import Examples, Query, Ranking, SelectSlot, Tally
from pbr_jax.stages.okapi import Analysed, Okapi
from pbr_jax.stages.run import Run


@dataclass(frozen=True, kw_only=True)
class BM25(Analysed, ByScore):
    """BM25. A word's weight depends on its frequency among the candidates."""

    method: Literal["bm25"] = "bm25"

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        self.check_analyser()
        return self.sharing(run)

    def slot(self, tally: Tally, *, backfill_gains: Curve | None = None) -> SelectSlot:
        return by_score(self, by_terms(self), backfill_gains)


@dataclass(frozen=True, kw_only=True)
class BM25Lamp(Okapi, ByScore):
    """BM25 as in LaMP's code, with texts split at white space."""

    method: Literal["bm25_lamp"] = "bm25_lamp"

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        return self.sharing(run)

    def slot(self, tally: Tally, *, backfill_gains: Curve | None = None) -> SelectSlot:
        return by_score(self, by_terms(self), backfill_gains)


def by_terms(options: Okapi) -> ScoreFn:
    """BM25's scores of each example's candidates."""

    def score(examples: Examples, queries: Sequence[Query], rankings: Sequence[Ranking]) -> list[np.ndarray]:
        found = []
        for query, ranking in zip(queries, rankings, strict=True):
            index = options.index([candidate.document.text for candidate in ranking])
            found.append(index.scores(" ".join(query.texts)))
        return found

    return score

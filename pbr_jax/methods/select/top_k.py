"""Candidates by the retriever's score."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pbr_jax.graph import Node, builds_nodes
from pbr_jax.methods.select.backfill import Curve
from pbr_jax.methods.select.by_score import ByScore, by_score
from pbr_jax.pipeline import Examples, Query, Ranking, SelectSlot, Tally
from pbr_jax.stages.run import Run


@dataclass(frozen=True, kw_only=True)
class TopK(ByScore):
    """The candidates with the highest scores. Equal scores keep the retriever's order."""

    method: Literal["top_k"] = "top_k"

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        return self.sharing(run)

    def slot(self, tally: Tally, *, backfill_gains: Curve | None = None) -> SelectSlot:
        def score(
            examples: Examples, queries: Sequence[Query], rankings: Sequence[Ranking]
        ) -> list[np.ndarray]:
            return [np.array([candidate.score for candidate in ranking]) for ranking in rankings]

        return by_score(self, score, backfill_gains)

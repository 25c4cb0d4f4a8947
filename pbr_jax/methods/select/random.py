"""Candidates in a random order: the floor that a selection among the same candidates must beat."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pbr_jax.base.types import Example
from pbr_jax.graph import Node, builds_nodes, constant
from pbr_jax.methods.select.backfill import Curve
from pbr_jax.methods.select.by_score import ByScore, by_score
from pbr_jax.pipeline import Examples, Query, Ranking, SelectSlot, Tally
from pbr_jax.stages.run import Run


@dataclass(frozen=True, kw_only=True)
class Random(ByScore):
    """Random candidates, drawn uniformly. The draw depends only on the seed and the question's id."""

    method: Literal["random"] = "random"

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        return {"seed": constant("seed", run.config.seed), **self.sharing(run)}

    def slot(self, tally: Tally, *, seed: int, backfill_gains: Curve | None = None) -> SelectSlot:
        def drawn(example: Example, count: int) -> np.ndarray:
            name = hashlib.sha256(f"{seed}\0select\0{example.user_id}\0{example.id}".encode()).digest()
            return np.random.default_rng(int.from_bytes(name[:8], "big")).random(count)

        def score(
            examples: Examples, queries: Sequence[Query], rankings: Sequence[Ranking]
        ) -> list[np.ndarray]:
            return [drawn(example, len(ranking)) for example, ranking in zip(examples, rankings, strict=True)]

        return by_score(self, score, backfill_gains)

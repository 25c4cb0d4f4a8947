"""The retriever's best documents in an order drawn by lot: what their order in the prompt is worth."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pbr_jax.graph import Node, given
from pbr_jax.methods.select.by_score import ByScore
from pbr_jax.methods.select.own_share import Curve
from pbr_jax.methods.select.top_k import TopK
from pbr_jax.parts.run import Run
from pbr_jax.pipeline import Examples, Query, Ranking, SelectSlot, Tally


@dataclass(frozen=True, kw_only=True)
class Shuffled(ByScore):
    """The documents of `top_k` in random order, a function of seed and question alone; then the rest."""

    method: Literal["shuffled"] = "shuffled"

    def needs(self, run: Run) -> Mapping[str, Node]:
        return {"seed": given("seed", run.config.seed), **self.sharing(run)}

    def slot(self, tally: Tally, *, seed: int, gains: Curve | None = None) -> SelectSlot:
        best = TopK(k=self.k, own=self.own).slot(tally, gains=gains)

        def select(
            examples: Examples, queries: Sequence[Query], rankings: Sequence[Ranking]
        ) -> list[Ranking]:
            ordered = best(examples, queries, rankings)
            return [
                _shuffled(ranking, self.k, f"{seed}\0{example.user_id}\0{example.id}")
                for example, ranking in zip(examples, ordered, strict=True)
            ]

        return select


def _shuffled(ranking: Ranking, k: int | None, name: str) -> Ranking:
    generator = np.random.default_rng(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big"))
    first = ranking[:k]
    return [first[i] for i in generator.permutation(len(first))] + ranking[len(first) :]

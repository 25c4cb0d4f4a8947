"""The retriever's best documents in an order drawn by lot: what their order in the prompt is worth."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pbr_jax.graph import Node, given
from pbr_jax.options import Select
from pbr_jax.parts.run import Run
from pbr_jax.pipeline import Examples, Query, Ranking, SelectSlot, Tally


@dataclass(frozen=True, kw_only=True)
class Shuffled(Select):
    """The best `k` candidates in random order, a function of seed and question alone; then the rest."""

    method: Literal["shuffled"] = "shuffled"

    def needs(self, run: Run) -> Mapping[str, Node]:
        return {"seed": given("seed", run.config.seed)}

    def slot(self, tally: Tally, *, seed: int) -> SelectSlot:
        def select(
            examples: Examples, queries: Sequence[Query], rankings: Sequence[Ranking]
        ) -> list[Ranking]:
            found = []
            for example, ranking in zip(examples, rankings, strict=True):
                best = sorted(ranking, key=lambda candidate: -candidate.score)
                found.append(_shuffled(best, self.k, f"{seed}\0{example.user_id}\0{example.id}"))
            return found

        return select


def _shuffled(ranking: Ranking, k: int | None, name: str) -> Ranking:
    generator = np.random.default_rng(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big"))
    first = ranking[:k]
    return [first[i] for i in generator.permutation(len(first))] + ranking[len(first) :]

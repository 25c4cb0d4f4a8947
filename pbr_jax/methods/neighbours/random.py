"""Anybody: the control of choices of users (CFRAG Figure 5) and, without `own`, of personalization."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar, Literal

import numpy as np

from pbr_jax.base.draws import generator
from pbr_jax.corpus.store import Store
from pbr_jax.graph import Node, builds_nodes, constant
from pbr_jax.options import Neighbours, TrainingSplit
from pbr_jax.pipeline import Examples, Neighbour, NeighboursSlot, Tally
from pbr_jax.stages.run import Run


@dataclass(frozen=True, kw_only=True)
class Random(Neighbours):
    """Random other users with documents that the question may see, drawn uniformly without replacement.
    The draw depends only on the seed and the question."""

    training_split: ClassVar[TrainingSplit] = "welcome"

    method: Literal["random"] = "random"
    own: bool = True  # whether the asking user is one of the m. off: only other users, a control

    @property
    def others(self) -> int:
        return self.m - self.own

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        return {"store": run.data, "seed": constant("seed", run.config.seed)}

    def slot(self, tally: Tally, *, store: Store, seed: int) -> NeighboursSlot:
        names = store.users

        def neighbours(examples: Examples) -> list[list[Neighbour]]:
            found = []
            for example in examples:
                drawn = generator(seed, "neighbours", example.user_id, example.training, example.id)
                others = (names[i] for i in _drawn(drawn, len(names), self.others + 1))
                lending = (
                    name for name in others if name != example.user_id and len(store.visible(example, name))
                )
                own = [example.user_id] * self.own
                found.append([Neighbour(name) for name in [*own, *islice(lending, self.others)]])
            return found

        return neighbours


def _drawn(rng: np.random.Generator, count: int, first: int) -> Iterator[int]:
    """All numbers below `count` in a random order; those behind the first few are drawn when they are asked
    for."""
    drawn = rng.choice(count, min(first, count), replace=False)
    yield from drawn.tolist()
    yield from rng.permutation(np.setdiff1d(np.arange(count), drawn)).tolist()

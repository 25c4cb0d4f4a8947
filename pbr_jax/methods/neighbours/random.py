"""Random users: the control of choices of users (CFRAG Figure 5) and, without `own`, of personalization."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import ClassVar, Literal

import numpy as np

from pbr_jax.base.draws import generator
from pbr_jax.base.types import Example
from pbr_jax.corpus.store import Store
from pbr_jax.graph import Node, builds_nodes, constant
from pbr_jax.options import Neighbours, TrainingSplit, added
from pbr_jax.pipeline import Examples, Neighbour, NeighboursSlot, Tally
from pbr_jax.stages.run import Run

_CANDIDATES = 16  # users who lend, of whom `matched` takes those that are most alike
_SAMPLED = 20  # newest documents of a history whose mean length stands for all


@dataclass(frozen=True, kw_only=True)
class Random(Neighbours):
    """Random other users with documents that the question may see, drawn uniformly without replacement.
    The draw depends only on the seed and the question."""

    training_split: ClassVar[TrainingSplit] = "welcome"

    method: Literal["random"] = "random"
    own: bool = True  # whether the asking user is one of the m. off: only other users, a control
    # whether the other users are, among 16 random ones, those whose histories are most like the asking user's
    # in the number of documents that the prompt can hold, and then in the length of documents
    matched: bool = field(default=False, metadata=added(False))

    @property
    def others(self) -> int:
        return self.m - self.own

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        nodes = {"store": run.data, "seed": constant("seed", run.config.seed)}
        if self.matched:
            config = run.config
            nodes["most"] = constant("most", getattr(config.select, "k", None) or config.retrieve.k)
        return nodes

    def slot(self, tally: Tally, *, store: Store, seed: int, most: int = 0) -> NeighboursSlot:
        def neighbours(examples: Examples) -> list[list[Neighbour]]:
            chosen = []
            for example in examples:
                rng = generator(seed, "neighbours", example.user_id, example.training, example.id)
                lenders = _lenders(store, example, rng, self.others + 1)
                if self.matched:
                    candidates = list(islice(lenders, max(_CANDIDATES, self.others)))
                    lenders = iter(_alike(store, example, candidates, most))
                own = [example.user_id] * self.own
                chosen.append([Neighbour(name) for name in [*own, *islice(lenders, self.others)]])
            return chosen

        return neighbours


def _lenders(store: Store, example: Example, rng: np.random.Generator, first: int) -> Iterator[str]:
    """Other users with documents that the question may see, in a random order."""
    names = store.users
    for i in _drawn(rng, len(names), first):
        if names[i] != example.user_id and len(store.visible(example, names[i])):
            yield names[i]


def _alike(store: Store, example: Example, candidates: Sequence[str], most: int) -> list[str]:
    """The candidates, those first whose histories are most like the asking user's (`Random.matched`)."""

    def shape(user: str) -> tuple[int, float]:
        rows = store.visible(example, user)
        texts = [len(document.text) for document in store.documents(rows[-_SAMPLED:])]
        return min(most, len(rows)), float(np.log(np.mean(texts) + 1)) if texts else 0.0

    count, length = shape(example.user_id)

    def distance(user: str) -> tuple[int, float]:
        other_count, other_length = shape(user)
        return abs(other_count - count), abs(other_length - length)

    return sorted(candidates, key=distance)


def _drawn(rng: np.random.Generator, count: int, first: int) -> Iterator[int]:
    """All numbers below `count` in a random order. Those after the first few are drawn only when needed."""
    drawn = rng.choice(count, min(first, count), replace=False)
    yield from drawn.tolist()
    yield from rng.permutation(np.setdiff1d(np.arange(count), drawn)).tolist()

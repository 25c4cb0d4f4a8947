"""Users of highest cosine with the asking user, by the means of their documents or a trained encoder.

Shi et al., "Retrieval Augmented Generation with Collaborative Filtering for Personalized Text Generation"
(CFRAG), 2025, section 4.1.4.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from pbr_jax.corpus.search import EngineSearch, Kind, over
from pbr_jax.corpus.store import Store
from pbr_jax.graph import Node, builds_nodes
from pbr_jax.index import engines
from pbr_jax.index.base import unit
from pbr_jax.methods.neighbours.moments import Moments
from pbr_jax.options import Neighbours, TrainingSplit
from pbr_jax.pipeline import Examples, Neighbour, NeighboursSlot, Tally
from pbr_jax.stages import users as parts
from pbr_jax.stages.run import Run
from pbr_jax.stages.users import Users


@dataclass(frozen=True, kw_only=True)
class Similar(Neighbours):
    """The most similar users, as vectors; subclasses say whose vectors."""

    training_split: ClassVar[TrainingSplit] = "welcome"

    skip: int = 0  # number of nearest users that are skipped first. m of them in CFRAG Figure 5
    # number of moments at which dated histories are encoded again. A question uses the last one before it
    snapshots: int = 8
    # how users are searched: by an engine that searches in memory. scann: approximate, for tens of thousands
    index: Kind = "exact"

    def check(self) -> None:
        super().check()
        self.at_least("skip", 0)
        self.at_least("snapshots", 1)

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        """Alone (m = 1) nobody is compared with anybody."""
        others = {"users": parts.users(run)} if self.m > 1 else {}
        return {"store": run.data, **others}

    @builds_nodes
    def check_run(self, run: Run) -> None:
        if self.index != "auto" and self.m > 1:
            engines.load(self.index).check_installed()

    def slot(self, tally: Tally, *, store: Store, users: Users | None = None) -> NeighboursSlot:
        names, moments = store.users, Moments(store, self.snapshots)
        pool = lru_cache(maxsize=1)(lambda moment: _pool(_of(users).at(moment), self.index))

        def neighbours(examples: Examples) -> list[list[Neighbour]]:
            found = [[Neighbour(example.user_id)] for example in examples]
            if users is None or not examples:
                return found
            vectors = unit(users.asking(examples))
            for moment, some in moments.groups(examples):
                among = pool(moment)
                if not len(among.codes):
                    continue
                # One more than asked for: the asking user is found too, and left out.
                nearest = among.vectors.search(vectors[some], self.skip + self.m)
                for i, rows in zip(some, nearest.rows, strict=True):
                    own = examples[i].user_id
                    others = [names[code] for code in among.codes[rows[rows >= 0]] if names[code] != own]
                    found[i] += [Neighbour(name) for name in others[self.skip :][: self.m - 1]]
            return found

        return neighbours


@dataclass(frozen=True, kw_only=True)
class Contrastive(Similar):
    """The most similar users, by vectors of the trained encoder (`user_encoder`)."""

    method: Literal["contrastive"] = "contrastive"


@dataclass(frozen=True, kw_only=True)
class Mean(Similar):
    """The most similar users, by the means of their documents' vectors. Nothing is trained."""

    method: Literal["mean"] = "mean"

    @builds_nodes
    def users(self, run: Run) -> Node:
        return parts.means(run)


class _Pool(NamedTuple):
    """The users that had written something at a moment."""

    vectors: EngineSearch
    codes: np.ndarray  # of the users, row by row


def _of(users: Users | None) -> Users:
    if users is None:
        raise ValueError("similar users are found by their vectors; none were given")
    return users


def _pool(vectors: np.ndarray, kind: Kind) -> _Pool:
    codes = np.flatnonzero(vectors.any(axis=1))
    return _Pool(over(unit(vectors[codes]), kind), codes)

"""The newest documents."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pbr_jax.base.types import Example
from pbr_jax.corpus.store import Store
from pbr_jax.graph import Node, builds_nodes
from pbr_jax.methods.retrieve.scored import scored_together
from pbr_jax.options import Retrieve
from pbr_jax.pipeline import Query, RetrieveSlot, Tally
from pbr_jax.stages.run import Run


@dataclass(frozen=True, kw_only=True)
class Recency(Retrieve):
    """The newest documents first. The score is the rank in time among all searched documents; the oldest has
    0.

    Undated documents count as older than dated ones. They keep the order of the profile, whose last entry is
    the newest. If neither date nor profile decides, that is for documents at the same distance from the ends
    of several profiles, the first user's document is the newest (the asking user's, then the nearest
    neighbour's).
    """

    method: Literal["recency"] = "recency"

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        return {"store": run.data}

    def slot(self, tally: Tally, *, store: Store) -> RetrieveSlot:
        def score(example: Example, query: Query, rows: list[np.ndarray]) -> list[np.ndarray]:
            sizes = [len(own) for own in rows]
            users = np.repeat(np.arange(len(rows)), sizes)
            return np.split(in_time(store.times[np.concatenate(rows)], users), np.cumsum(sizes)[:-1])

        return scored_together(store, self.k, score)


def in_time(times: np.ndarray, users: np.ndarray) -> np.ndarray:
    """Each document's place in time, oldest 0, float64 [n], by `Recency`'s rules.

    Args:
      times: of the documents, nan where there is no date; the users' profiles one after the other.
      users: places of their users, int [n], ascending.
    """
    from_end = np.concatenate([np.arange(size)[::-1] for size in np.bincount(users, minlength=1)])
    places = np.empty(len(times))
    places[np.lexsort((-users, -from_end, np.nan_to_num(times, nan=-np.inf)))] = np.arange(len(times))
    return places

"""The newest documents."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pbr_jax.graph import Node
from pbr_jax.index.store import Store
from pbr_jax.methods.retrieve.scored import scored
from pbr_jax.options import Retrieve
from pbr_jax.parts.run import Run
from pbr_jax.pipeline import Query, RetrieveSlot, Tally
from pbr_jax.types import Example


@dataclass(frozen=True, kw_only=True)
class Recency(Retrieve):
    """Newest first. The score is the document's place in time, oldest 0.

    Undated documents count as older than dated ones and keep the order of the profile, whose last entry is
    taken as the newest.
    """

    method: Literal["recency"] = "recency"

    def needs(self, run: Run) -> Mapping[str, Node]:
        return {"store": run.data}

    def slot(self, tally: Tally, *, store: Store) -> RetrieveSlot:
        def score(example: Example, query: Query, rows: np.ndarray) -> np.ndarray:
            order = np.argsort(np.nan_to_num(store.times[rows], nan=-np.inf), kind="stable")
            places = np.empty(len(rows))
            places[order] = np.arange(len(rows))
            return places

        return scored(store, self.k, score)

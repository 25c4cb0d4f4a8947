"""Random documents: the floor that a retriever must beat."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pbr_jax.base.draws import generator
from pbr_jax.base.types import Example
from pbr_jax.corpus.store import Store
from pbr_jax.graph import Node, builds_nodes, constant
from pbr_jax.methods.retrieve.scored import scored
from pbr_jax.options import Retrieve
from pbr_jax.pipeline import Query, RetrieveSlot, Tally
from pbr_jax.stages.run import Run


@dataclass(frozen=True, kw_only=True)
class Random(Retrieve):
    """Random documents, drawn uniformly without replacement. The draw depends only on the seed and the
    question's id."""

    method: Literal["random"] = "random"

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        return {"store": run.data, "seed": constant("seed", run.config.seed)}

    def slot(self, tally: Tally, *, store: Store, seed: int) -> RetrieveSlot:
        def score(example: Example, query: Query, rows: np.ndarray) -> np.ndarray:
            return generator(seed, example.user_id, example.id).random(len(rows))

        return scored(store, self.k, score)

"""Dense retrieval: inner product of query and document vectors, exact, inside each user's documents."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pbr_jax.corpus.store import Store
from pbr_jax.graph import Node
from pbr_jax.options import Retrieve
from pbr_jax.parts import vectors
from pbr_jax.parts.run import Run
from pbr_jax.parts.search import search
from pbr_jax.pipeline import RetrieveSlot, Tally
from pbr_jax.text.encode import TextEncoder


@dataclass(frozen=True, kw_only=True)
class Dense(Retrieve):
    """Any BERT-family encoder (`encoder.model`), as it comes."""

    method: Literal["dense"] = "dense"

    def encoder(self, run: Run) -> Node:
        return vectors.encoder(run)

    def needs(self, run: Run) -> Mapping[str, Node]:
        return {"store": run.data, **vectors.searched(run.changed(retrieve=self))}

    def slot(
        self, tally: Tally, *, store: Store, encoder: TextEncoder, embeddings: np.ndarray
    ) -> RetrieveSlot:
        return search(store, encoder, embeddings, self.k)

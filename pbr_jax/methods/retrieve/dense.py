"""Dense retrieval: inner product of query and document vectors, exact, inside each user's documents."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pbr_jax.corpus.search import Kind, Search
from pbr_jax.corpus.store import Store
from pbr_jax.graph import Node, builds_nodes
from pbr_jax.index import Matrix
from pbr_jax.options import added
from pbr_jax.pipeline import RetrieveSlot, Tally
from pbr_jax.stages import vectors
from pbr_jax.stages.run import Run
from pbr_jax.stages.search import Searching, search
from pbr_jax.text.encode import TextEncoder


@dataclass(frozen=True, kw_only=True)
class Dense(Searching):
    """Dense retrieval with any BERT-family encoder (`encoder.model`), without training."""

    method: Literal["dense"] = "dense"
    # index of the shared documents. auto: exact, or scann from 50,000 documents on if it is installed. Users'
    # histories are always scored in full, except that lancedb indexes large ones
    index: Kind = "auto"
    # least inner product of the query and a user's own document. Shared documents have no such bound. None:
    # no bound
    least_own: float | None = field(default=None, metadata=added(None))

    @builds_nodes
    def encoder(self, run: Run) -> Node:
        return vectors.encoder(run)

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        found = vectors.searched(run.changed(retrieve=self))
        return {"store": run.data, **found, "shared": vectors.shared(run, found["embeddings"], self.index)}

    def slot(
        self,
        tally: Tally,
        *,
        store: Store,
        encoder: TextEncoder,
        embeddings: Matrix,
        shared: Search | None = None,
    ) -> RetrieveSlot:
        return search(
            store, encoder, embeddings, self.k, shared=shared, least_own=self.least_own, names=self.names
        )

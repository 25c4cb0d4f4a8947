"""Dense retrieval with the mean of past queries taken from each query: a control of what learns from labels.

It needs no labels and trains nothing. Where questions are in another language than documents, or of another
kind, their vectors share a direction that says nothing of what is asked, and this takes it away.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pbr_jax.base.files import write_text
from pbr_jax.corpus.search import Kind, Search
from pbr_jax.corpus.store import Store
from pbr_jax.graph import Bound, Node, Slot, builds_nodes
from pbr_jax.index import Matrix
from pbr_jax.methods.expand.none import Nothing
from pbr_jax.options import Learner
from pbr_jax.pipeline import RetrieveSlot, Tally
from pbr_jax.stages import vectors
from pbr_jax.stages.run import Run
from pbr_jax.stages.search import Personalize, Searching, expanded, query_vectors, search, without_names
from pbr_jax.text.encode import TextEncoder

_STATE = "queries.json"


@dataclass(frozen=True, kw_only=True)
class Centred(Learner, Searching):
    """Dense retrieval after the mean of past queries of all users learned from is subtracted from each query.
    The length of the query's vector is restored.

    With a query expansion, the queries and their mean are those that the expansion produces.
    """

    method: Literal["centred"] = "centred"
    index: Kind = "auto"  # index of the shared documents, as for dense

    @builds_nodes
    def encoder(self, run: Run) -> Node:
        return vectors.encoder(run)

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        run.learns_from_others("retrieve.method centred")
        found = vectors.searched(run.changed(retrieve=self))
        expand = run.config.expand
        return {
            "store": run.data,
            **found,
            "shared": vectors.shared(run, found["embeddings"], self.index),
            **({} if isinstance(expand, Nothing) else {"expand": Slot(expand, run)}),
        }

    def slot(
        self,
        tally: Tally,
        *,
        state: Path,
        store: Store,
        encoder: TextEncoder,
        embeddings: Matrix,
        shared: Search | None = None,
        expand: Bound | None = None,
    ) -> RetrieveSlot:
        centred = _centring(_read(state))
        return search(store, encoder, embeddings, self.k, centred, shared, names=self.names)

    def observe(
        self, block: Any, *, store: Store, encoder: TextEncoder, expand: Bound | None = None, **values: Any
    ) -> list[Any]:
        queries = without_names(store, self.names)(block.examples, expanded(block.examples, expand))
        return query_vectors(encoder, queries).tolist()

    def learn(self, blocks: Any, *, state: Path, out: Path, **values: Any) -> None:
        past = _read(state)
        for block in blocks[past["blocks"] :]:  # the state has those before
            total = np.sum(block.observations, axis=0)
            if past["count"]:
                total = total + past["sum"]
            past = {
                "blocks": past["blocks"] + 1,
                "count": past["count"] + len(block.observations),
                "sum": total.tolist(),
            }
        write_text(out / _STATE, json.dumps(past))


def _read(state: Path) -> dict[str, Any]:
    """How many blocks and questions were learned from, and the sum of their vectors."""
    file = state / _STATE
    return json.loads(file.read_text()) if file.exists() else {"blocks": 0, "count": 0, "sum": []}


def _centring(past: Mapping[str, Any]) -> Personalize | None:
    if not past["count"]:
        return None
    mean = np.array(past["sum"]) / past["count"]
    return lambda examples, queries: centred(queries, mean)


def centred(queries: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Vectors [e d] less a mean [d], of the lengths that they had; one that is the mean stays as it is."""
    moved = queries - mean
    before, after = (np.linalg.norm(found, axis=1, keepdims=True) for found in (queries, moved))
    there = after > 1e-6 * before
    return np.where(there, moved * (before / np.where(there, after, 1.0)), queries).astype(np.float32)

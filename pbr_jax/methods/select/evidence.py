"""The documents that the data call relevant: what a perfect retriever would show, never a system."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pbr_jax.base.types import Example
from pbr_jax.corpus.store import Store
from pbr_jax.graph import Node, builds_nodes
from pbr_jax.options import Select
from pbr_jax.pipeline import Examples, Query, Ranking, SelectSlot, Tally
from pbr_jax.stages.labels import is_relevant
from pbr_jax.stages.run import Run
from pbr_jax.stages.search import candidates


@dataclass(frozen=True, kw_only=True)
class Evidence(Select):
    """All relevant documents that the question may see, including those that were not retrieved.

    Candidates come first, in the retriever's order, then the others in the order of the history. If the data
    names no relevant documents, nothing is selected. A document cut into passages is included once, as the
    retrieved passage or otherwise its first one.
    """

    method: Literal["evidence"] = "evidence"

    @property
    def ceiling(self) -> bool:
        return True

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        return {"store": run.data}

    def slot(self, tally: Tally, *, store: Store) -> SelectSlot:
        def rows(example: Example, ranking: Ranking) -> np.ndarray:
            seen = [store.visible(example, example.user_id)]
            seen += [store.visible(example, "")] if store.has_shared else []
            known = [candidate.row for candidate in ranking]
            allowed = list(dict.fromkeys([*known, *np.concatenate(seen).tolist()]))
            documents = zip(allowed, store.documents(allowed), strict=True) if any(example.relevant) else ()
            found = np.array([row for row, document in documents if is_relevant(example, document)], int)
            first = np.sort(np.unique(store.firsts[found], return_index=True)[1])
            return found[first][: self.k]

        def select(
            examples: Examples, queries: Sequence[Query], rankings: Sequence[Ranking]
        ) -> list[Ranking]:
            found = [rows(*pair) for pair in zip(examples, rankings, strict=True)]
            return [candidates(store, own, -np.arange(len(own), dtype=float)) for own in found]

        return select

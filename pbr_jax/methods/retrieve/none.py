"""No documents: the language model answers without a profile (zero-shot)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from pbr_jax.options import Retrieve
from pbr_jax.pipeline import Examples, Neighbour, Query, Ranking, RetrieveSlot, Tally


@dataclass(frozen=True, kw_only=True)
class Nothing(Retrieve):
    """No documents are retrieved."""

    method: Literal["none"] = "none"

    def slot(self, tally: Tally) -> RetrieveSlot:
        def retrieve(
            examples: Examples, queries: Sequence[Query], neighbours: Sequence[Sequence[Neighbour]]
        ) -> list[Ranking]:
            return [[] for _ in examples]

        return retrieve

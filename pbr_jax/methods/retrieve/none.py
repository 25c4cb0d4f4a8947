"""No documents: the language model answers without a profile (zero-shot)."""

from dataclasses import dataclass
from typing import Literal

from pbr_jax.options import Retrieve
from pbr_jax.pipeline import Examples, Queries, Ranking, RetrieveSlot, Searched, Tally


@dataclass(frozen=True, kw_only=True)
class Nothing(Retrieve):
    """No documents are retrieved."""

    method: Literal["none"] = "none"

    def slot(self, tally: Tally) -> RetrieveSlot:
        def retrieve(examples: Examples, queries: Queries, neighbours: Searched) -> list[Ranking]:
            return [[] for _ in examples]

        return retrieve

"""The query as it is."""

from dataclasses import dataclass
from typing import Literal

from pbr_jax.options import Expand
from pbr_jax.pipeline import Examples, ExpandSlot, Query, Tally


@dataclass(frozen=True, kw_only=True)
class Nothing(Expand):
    """No query expansion."""

    method: Literal["none"] = "none"

    def slot(self, tally: Tally) -> ExpandSlot:
        def expand(examples: Examples) -> list[Query]:
            return [Query((example.query,)) for example in examples]

        return expand

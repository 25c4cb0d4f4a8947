"""The asking user alone."""

from dataclasses import dataclass
from typing import Literal

from pbr_jax.options import Neighbours
from pbr_jax.pipeline import Examples, Neighbour, NeighboursSlot, Tally


@dataclass(frozen=True, kw_only=True)
class Self(Neighbours):
    """Only the asking user's own history is searched."""

    method: Literal["self"] = "self"

    @property
    def others(self) -> int:
        return 0

    @property
    def searched(self) -> int:
        return 1

    def slot(self, tally: Tally) -> NeighboursSlot:
        def neighbours(examples: Examples) -> list[list[Neighbour]]:
            return [[Neighbour(example.user_id)] for example in examples]

        return neighbours

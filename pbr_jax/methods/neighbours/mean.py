"""Similar users by the means of their documents' vectors (CFRAG Table 3, row 2)."""

from dataclasses import dataclass
from typing import Literal

from pbr_jax.graph import Node, builds_nodes
from pbr_jax.methods.neighbours.similar import Similar
from pbr_jax.stages import users
from pbr_jax.stages.run import Run


@dataclass(frozen=True, kw_only=True)
class Mean(Similar):
    """The most similar users, by the means of their documents' vectors. Nothing is trained."""

    method: Literal["mean"] = "mean"

    @builds_nodes
    def users(self, run: Run) -> Node:
        return users.means(run)

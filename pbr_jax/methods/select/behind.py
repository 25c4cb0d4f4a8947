"""Selections that stand behind another one and order anew what it has ranked: what `mmr` and `recency_prior`
share."""

from collections.abc import Mapping
from dataclasses import dataclass

from pbr_jax.base.types import UserError
from pbr_jax.graph import Node, Slot, builds_nodes
from pbr_jax.methods.select.top_k import TopK
from pbr_jax.options import Learner, Select, TrainingSplit
from pbr_jax.stages.run import Run


@dataclass(frozen=True, kw_only=True)
class Behind(Select):
    """Base class of selections that follow another selection, which scores the candidates first."""

    # the selection that scores the candidates first, with its options. top_k: the retriever's scores
    of: tuple[Select, ...] = (TopK(),)

    def check(self) -> None:
        super().check()
        if len(self.of) != 1:
            raise UserError(f"{self.named('of')} has {len(self.of)} selections, want one, such as top_k")
        if isinstance(self.first, Learner):
            raise UserError(
                f"{self.named('of')} is {self.first.method}, which learns from a stream; take another"
            )

    @property
    def first(self) -> Select:
        """The selection whose scores are read."""
        return self.of[0]

    @property
    def ceiling(self) -> bool:
        return self.first.ceiling

    def learns(self) -> TrainingSplit:
        return self.first.learns()

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        return {"first": Slot(self.first, run.changed(select=self.first))}

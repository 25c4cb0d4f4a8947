"""The options of a stream of questions."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from pbr_jax.base.types import UserError
from pbr_jax.options.base import IDLE, Options, added


@dataclass(frozen=True, kw_only=True)
class Stream(Options):
    """Questions that arrive in blocks. Each block is answered before methods learn from it.

    Under `cross_users`, folds of users replace the blocks, and each fold is answered with what the other
    folds have taught. `cross_units` does the same for the tuned generator, and for methods that otherwise
    learn from a training split.
    """

    section: ClassVar[str] = "stream"

    size: int | None = None  # number of questions in a block. None: no blocks
    # order of arrival. released: as in the data; shuffled: by the seed of the run, for data released user by
    # user; by_unit: units (articles, dialogues or otherwise users) in random order, each with all its
    # questions; shifted: a random half of the units, then the other half, each shuffled; by_round: the first
    # question of every user, then the second of every user, and so on, with no user twice in a block
    order: Literal["released", "shuffled", "by_unit", "shifted", "by_round"] = "released"
    # prequential: block by block. cross_users: folds of users, for methods that learn from a stream.
    # cross_units: folds of units, for methods trained on a training split; no such split is needed then
    protocol: Literal["prequential", "cross_users", "cross_units"] = field(
        default="prequential", metadata=added("prequential")
    )
    # number of folds of users or units, drawn by the seed. None: one for each user (leave one user out), or
    # with cross_units one for each unit, at most 10
    folds: int | None = field(default=None, metadata=added(None))
    keep: int | None = field(default=None, metadata=IDLE)  # number of newest states kept on disk. None: all

    @property
    def active(self) -> bool:
        """Whether there is a stream."""
        return self.size is not None or self.protocol != "prequential"

    def check(self) -> None:
        self.at_least("size", 1)
        self.at_least("keep", 1)
        self.at_least("folds", 2)
        if self.protocol != "prequential":
            if self.size is not None or self.order != "released":
                raise UserError(
                    f"stream.protocol is {self.protocol}, whose folds have all questions of their users in "
                    "no order; set stream.size to none and stream.order to released, or take prequential"
                )
            if self.protocol == "cross_units" and self.keep is not None:
                raise UserError(
                    f"stream.keep is {self.keep}, and stream.protocol cross_units keeps no states; leave "
                    "stream.keep out"
                )
        elif self.folds is not None:
            raise UserError(
                f"stream.folds is {self.folds}, and stream.protocol prequential has none; take cross_users "
                "or cross_units, or leave stream.folds out"
            )
        elif self.size is None and (self.order, self.keep) != ("released", None):
            raise UserError("stream.size is none, so there is no stream; set it, or leave stream.* out")

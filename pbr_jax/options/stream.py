"""The options of a stream of questions."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from pbr_jax.options.base import IDLE, Options
from pbr_jax.types import UserError


@dataclass(frozen=True, kw_only=True)
class Stream(Options):
    """Questions as they arrive, in blocks: each is answered before methods learn from it."""

    section: ClassVar[str] = "stream"

    size: int | None = None  # questions of a block; None: no stream
    # of arrival; shuffled: drawn by the run's seed, for data that are released user by user
    order: Literal["released", "shuffled"] = "released"
    keep: int | None = field(default=None, metadata=IDLE)  # latest states kept on disk; None: all

    def check(self) -> None:
        self.at_least("size", 1)
        self.at_least("keep", 1)
        if self.size is None and (self.order, self.keep) != ("released", None):
            raise UserError("stream.size is none, so there is no stream; set it, or leave stream.* out")

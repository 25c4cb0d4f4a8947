"""Options of a training: how long, in what batches, what chooses its step, and how gradients move it."""

import re
from dataclasses import dataclass, field
from typing import Any, Literal

from pbr_jax.options.base import IDLE, Options, added
from pbr_jax.types import UserError


@dataclass(frozen=True, kw_only=True)
class Optimizer(Options):
    """How gradients move parameters."""

    name: Literal["adam", "adamw", "sgd"] = "adamw"
    learning_rate: float = 1e-3  # at its peak
    # of the heads, which start from random weights where all else is pretrained; None: as all else
    head_learning_rate: float | None = None
    schedule: Literal["constant", "linear", "cosine"] = "constant"  # after the warm-up; the others fall to 0
    warmup: float = 0.0  # share of all steps in which the learning rate rises from 0
    weight_decay: float = 0.0  # adam, sgd: added to the gradient (L2); adamw: decoupled
    clip: float | None = 1.0  # largest global norm of the gradients; None: not clipped
    b1: float = 0.9
    b2: float = 0.999
    frozen: str = ""  # regular expression: parameters whose path begins with a match do not move

    def check(self) -> None:
        self.at_least("learning_rate", 0)
        self.at_least("head_learning_rate", 0)
        self.between("warmup", 0, 1)
        self.at_least("weight_decay", 0)
        self.at_least("clip", 1e-12)
        try:
            re.compile(self.frozen)
        except re.error as error:
            raise UserError(f"frozen is {self.frozen!r}, no regular expression: {error}") from error


@dataclass(frozen=True, kw_only=True)
class Training(Options):
    """One trained part: how long, in what batches, and when to look whether it helps."""

    epochs: int = 1  # 0: the parameters before training, a control
    batch_size: int = 64  # examples of one step, over all devices and hosts
    accumulate: int | None = 1  # parts that a batch is computed in; None: up to 4 on one CPU, else 1
    dtype: Literal["float32", "bfloat16"] = "float32"  # of the computation; parameters stay float32
    # share held out to choose the best step; 0: the last is taken. Of the users, where the user encoder is
    # trained; of the users, from 8 to half of them, where a reader is tuned; of the informative questions,
    # and at least 8, where a retriever or reranker is tuned
    selection: float = 0.1
    # what those prefer. reward: what the training raises, of the choices that parameters make; of a question
    # it is one noisy value. rank_correlation: Spearman's, of scores with the values of all candidates, inside
    # a question; only where candidates have values (retriever, reranker, PURPLE, which asks each alone)
    select_by: Literal["reward", "rank_correlation"] = field(default="reward", metadata=added("reward"))
    evaluate_every: int | None = None  # steps; None: once an epoch
    patience: int | None = 3  # evaluations without a better one before training stops; None: it never does
    checkpoint_every: int | None = field(default=None, metadata=IDLE)  # steps; None: with every evaluation
    devices: int | None = None  # that divide a batch; None: all
    # where losses go, beside metrics.jsonl
    track: Literal["none", "tensorboard", "wandb"] = field(default="none", metadata=IDLE)
    optimizer: Optimizer = field(default_factory=Optimizer)

    def check(self) -> None:
        for name in ("batch_size", "accumulate", "evaluate_every", "patience", "checkpoint_every"):
            self.at_least(name, 1)
        self.at_least("epochs", 0)
        self.at_least("devices", 1)
        self.between("selection", 0, 0.9)

    def check_no_values(self, who: str) -> None:
        """Raises UserError where candidates' values are to choose the step. `who`: a training without any."""
        if self.select_by != "reward":
            raise UserError(
                f"{who}.select_by is {self.select_by}, and this training has no values of candidates; set "
                "it to reward"
            )


def tuning(**changes: Any) -> Training:
    """The training of an encoder that is tuned rather than made: few epochs, small steps, new heads aside.

    Both rates are of those that CFRAG's paper searches (section 5.1.4): at the tower's, a head of random
    weights stays what it is.
    """
    optimizer = Optimizer(name="adam", learning_rate=1e-5, head_learning_rate=1e-3)
    defaults = {"epochs": 2, "batch_size": 8, "accumulate": None, "selection": 0.2, "optimizer": optimizer}
    return Training(**{**defaults, **changes})

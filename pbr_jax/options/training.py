"""Options of training: its length, its batches, the choice of its best step, and the optimizer."""

import re
from dataclasses import dataclass, field
from typing import Any, Literal

from pbr_jax.base.types import UserError
from pbr_jax.options.base import IDLE, Options, added


@dataclass(frozen=True, kw_only=True)
class Optimizer(Options):
    """How gradients update parameters."""

    name: Literal["adam", "adamw", "sgd"] = "adamw"  # the optimizer
    learning_rate: float = 1e-3  # peak learning rate
    # learning rate of the heads, which start from random weights. None: learning_rate
    head_learning_rate: float | None = None
    # learning rate after the warm-up. linear and cosine fall to 0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup: float = 0.0  # share of all steps in which the learning rate rises from 0, from 0 to 1
    weight_decay: float = 0.0  # adam, sgd: added to the gradient (L2); adamw: decoupled
    clip: float | None = 1.0  # maximum global norm of the gradients. None: no clipping
    b1: float = 0.9  # adam, adamw: decay rate of the mean of the gradients
    b2: float = 0.999  # adam, adamw: decay rate of the mean of the squared gradients
    # regular expression. Parameters whose path matches it from the start are not trained. "": none
    frozen: str = ""

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
    """How one part is trained: its length, its batches, and how its best step is chosen."""

    epochs: int = 1  # number of passes over the training examples. 0: the untrained parameters, a control
    batch_size: int = 64  # number of examples in one step, over all devices and hosts
    # number of parts in which the gradient of a batch is computed. None: up to 4 on one CPU, otherwise 1
    accumulate: int | None = 1
    dtype: Literal["float32", "bfloat16"] = "float32"  # type of the computation. Parameters stay float32
    # share held out to choose the best step, from 0 to 0.9. 0: no choice; the last step is taken. User
    # encoder: share of the users. Generator: share of the users, from 8 users to half of them. PURPLE: share
    # of the users, with at least 8 questions. Retriever or reranker: share of the informative questions, at
    # least 8
    selection: float = 0.1
    # what the chosen step maximizes. reward: the objective of the training; for a single question this is a
    # noisy value. rank_correlation: Spearman's correlation of scores and values over all candidates of a
    # question. It needs values of candidates (retriever, reranker, PURPLE, which asks for each alone)
    select_by: Literal["reward", "rank_correlation"] = field(default="reward", metadata=added("reward"))
    evaluate_every: int | None = None  # number of steps between evaluations. None: one epoch
    # number of evaluations without improvement before training stops. None: it never stops early
    patience: int | None = 3
    # number of steps between checkpoints. None: one with every evaluation
    checkpoint_every: int | None = field(default=None, metadata=IDLE)
    devices: int | None = None  # number of devices over which a batch is divided. None: all
    # where losses are logged, in addition to metrics.jsonl
    track: Literal["none", "tensorboard", "wandb"] = field(default="none", metadata=IDLE)
    optimizer: Optimizer = field(default_factory=Optimizer)  # how gradients update parameters

    def check(self) -> None:
        for name in ("batch_size", "accumulate", "evaluate_every", "patience", "checkpoint_every"):
            self.at_least(name, 1)
        self.at_least("epochs", 0)
        self.at_least("devices", 1)
        self.between("selection", 0, 0.9)

    def check_no_values(self, who: str) -> None:
        """Raises UserError if values of candidates should choose the step, but `who` has none."""
        if self.select_by != "reward":
            raise UserError(
                f"{who}.select_by is {self.select_by}, and this training has no values of candidates; set "
                "it to reward"
            )


def tuning(**changes: Any) -> Training:
    """Training options for tuning a pretrained encoder: few epochs, and a higher learning rate for new heads.

    Both rates are among those that CFRAG's paper searches (section 5.1.4). At the tower's rate, a head with
    random weights would hardly change.
    """
    optimizer = Optimizer(name="adam", learning_rate=1e-5, head_learning_rate=1e-3)
    defaults = {"epochs": 2, "batch_size": 8, "accumulate": None, "selection": 0.2, "optimizer": optimizer}
    return Training(**{**defaults, **changes})

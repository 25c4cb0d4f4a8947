"""The options of LUF's loss."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pbr_jax.options.base import Options
from pbr_jax.options.training import Optimizer, Training
from pbr_jax.types import UserError


@dataclass(frozen=True, kw_only=True)
class LUFLoss(Options):
    """The weighted sum of three losses of labelled documents (LUF section 2.2); the paper gives no number."""

    section: ClassVar[str] = "retrieve.loss"

    strict: float = 1.0  # weight of Eq. 2, lambda 1: the share of the documents that hold the answer
    flaccid: float = 1.0  # weight of Eq. 3, lambda 2: divergence from the labels' grades
    hard: float = 1.0  # weight of Eq. 4, lambda 3: the margin over hard negatives
    temperature: float = 0.05  # tau of Eq. 2 and 3; of cosines, whose softmax is nearly flat at 1
    margin: float = 0.1  # gamma of Eq. 4, of cosines
    power: float = 1.0  # of 1 / rank in the weights of Eq. 4, which add up to 1
    positives: int = 4  # best-ranked documents with the answer, whose mean score is Eq. 4's s(q, d+)
    hard_negatives: int = 10  # best-ranked irrelevant documents of Eq. 4
    # batch: the documents of all three losses are those that are relevant to a question of the batch, so that
    # none is only pushed away. labelled: all that were labelled, as printed, which in a closed collection
    # punishes what the next questions look for
    negatives: Literal["batch", "labelled"] = "batch"
    mask: bool = False  # whether a question's own related documents are left out of Eq. 2, not negatives

    def check(self) -> None:
        for name in ("strict", "flaccid", "hard", "power"):
            self.at_least(name, 0)
        self.at_least("temperature", 1e-3)
        self.at_least("margin", 0)
        self.at_least("positives", 1)
        self.at_least("hard_negatives", 1)
        if not (self.strict or self.flaccid or self.hard):
            raise UserError(
                f"{self.named('strict')}, flaccid and hard are all 0, so there is nothing to learn; set one"
            )


def adapting(**changes: Any) -> Training:
    """The training of LUF's retriever: batches of 32 questions, four epochs, the last step taken.

    The rates are a tower's and, as that of a head, a map's.
    """
    defaults = {
        "epochs": 4, "batch_size": 32, "selection": 0.0, "patience": None,
        "optimizer": Optimizer(learning_rate=5e-5, head_learning_rate=3e-4),
    }  # fmt: skip
    return Training(**{**defaults, **changes})

"""The options of LUF's loss."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pbr_jax.base.types import UserError
from pbr_jax.options.base import Options
from pbr_jax.options.training import Optimizer, Training


@dataclass(frozen=True, kw_only=True)
class LUFLoss(Options):
    """A weighted sum of three losses over labelled documents (LUF section 2.2). The paper does not give
    these values."""

    section: ClassVar[str] = "retrieve.loss"

    # lambda 1: weight of Eq. 2, which raises the probability of the documents that hold the answer
    strict: float = 1.0
    flaccid: float = 1.0  # lambda 2: weight of Eq. 3, the divergence from the grades of the labels
    hard: float = 1.0  # lambda 3: weight of Eq. 4, the margin over hard negatives
    # tau of Eq. 2 and 3, by which cosines are divided. At 1 their softmax is nearly uniform
    temperature: float = 0.05
    margin: float = 0.1  # gamma of Eq. 4, a difference of cosines
    power: float = 1.0  # exponent of 1 / rank in the weights of Eq. 4, which sum to 1
    # number of best-ranked documents with the answer. Their mean score is s(q, d+) of Eq. 4
    positives: int = 4
    hard_negatives: int = 10  # number of best-ranked irrelevant documents in Eq. 4
    # documents in the three losses. batch: those relevant to some question of the batch, so that no document
    # is only a negative; labelled: all labelled ones, as printed in the paper. In a closed collection,
    # labelled lowers the scores of documents that later questions need
    negatives: Literal["batch", "labelled"] = "batch"
    # whether a question's own related documents are left out of Eq. 2. Otherwise they are negatives there
    mask: bool = False

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
    """Training options of LUF's retriever: batches of 32 questions, four epochs, and the last step.

    `learning_rate` is for a tower, and `head_learning_rate` for a map.
    """
    defaults = {
        "epochs": 4, "batch_size": 32, "selection": 0.0, "patience": None,
        "optimizer": Optimizer(learning_rate=5e-5, head_learning_rate=3e-4),
    }  # fmt: skip
    return Training(**{**defaults, **changes})

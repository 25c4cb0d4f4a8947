"""The options of the language model that answers, frozen or tuned to the task."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from pbr_jax.base.types import UserError
from pbr_jax.options.base import Options, TrainingSplit
from pbr_jax.options.training import Optimizer, Training

Documents = Literal["none", "own", "others", "hybrid", "neighbours", "own_neighbours", "pipeline"]
Map = Literal["query", "key", "value", "output", "gate", "up", "down"]


@dataclass(frozen=True, kw_only=True)
class TunedGenerator(Options):
    """The model that answers, scores targets and gives feedback. It is frozen, or tuned on the training
    split.

    A small frozen model gains from any documents that show it the form of an answer. Tuning removes this gain
    from all rows alike. The remaining gain from documents is the value of the user's own words.
    """

    section: ClassVar[str] = "generator"

    # frozen: no weights are trained; lora: low-rank matrices beside the frozen weights; full: all weights
    method: Literal["frozen", "lora", "full"] = "frozen"
    rank: int = 8  # lora: rank of the matrices
    alpha: float = 32.0  # lora: the low-rank update is multiplied by alpha / rank
    # lora: dropout probability of the inputs to the low-rank matrices, from 0 to 0.9; decoder-only models
    dropout: float = 0.05
    targets: tuple[Map, ...] = ("query", "value")  # lora: linear maps that get low-rank matrices
    # which documents training prompts show. Each question is learned once with each item of this list; with
    # "none own own", two thirds of the prompts have own documents. own, others: the nearest documents of the
    # user, or of random training users; hybrid: half of each. neighbours: documents of the most similar user
    # in the cohort (`neighbours.method cohorts` with its defaults); own_neighbours: half own, half
    # neighbours. pipeline: what the config's own pipeline retrieves with the frozen model. With pipeline,
    # others includes the evaluated users
    documents: tuple[Documents, ...] = ("none", "own")
    # number of items of `documents` used for each question, drawn by the seed. None: all
    per_question: int | None = None
    k: int = 3  # number of documents in such a prompt
    # number of training questions, those held out included, drawn by the seed. None: all
    limit: int | None = 300
    # whether layers are recomputed for their gradients. This takes less memory and a third more computation
    remat: bool = False
    # how the generator is trained
    training: Training = field(
        default_factory=lambda: Training(
            epochs=1, batch_size=8, accumulate=None, optimizer=Optimizer(name="adamw", learning_rate=5e-4)
        )
    )

    def check(self) -> None:
        self.at_least("rank", 1)
        self.at_least("k", 1)
        self.at_least("limit", 2)
        self.at_least("per_question", 1)
        self.between("dropout", 0, 0.9)
        self.training.check_no_values("generator.training")
        if not self.alpha > 0:
            raise UserError(f"generator.alpha is {self.alpha}, want a positive number")
        if not self.targets:
            raise UserError(
                "generator.targets is empty, want one or more of query, key, value, output, gate, up, down"
            )
        if not self.documents:
            raise UserError(
                "generator.documents is empty, want one or more of none, own, others, hybrid, neighbours, "
                "own_neighbours, pipeline"
            )
        if self.per_question is not None and self.per_question > len(self.documents):
            raise UserError(
                f"generator.per_question is {self.per_question}, and generator.documents names "
                f"{len(self.documents)}; want no more than these"
            )

    @property
    def is_tuned(self) -> bool:
        """Whether the model is trained."""
        return self.method != "frozen"

    def learns(self) -> TrainingSplit:
        """How it uses the training split: without the evaluated split, so that one generator serves every
        evaluation, except if the config's pipeline retrieves the documents of training prompts."""
        if not self.is_tuned:
            return "unused"
        return "needed" if "pipeline" in self.documents else "apart"

"""The options of the language model that answers: as it comes, or tuned to the task."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from pbr_jax.options.base import Options, TrainingSplit
from pbr_jax.options.training import Optimizer, Training
from pbr_jax.types import UserError

Documents = Literal["none", "own", "others", "hybrid", "neighbours", "own_neighbours", "pipeline"]
Map = Literal["query", "key", "value", "output", "gate", "up", "down"]


@dataclass(frozen=True, kw_only=True)
class TunedGenerator(Options):
    """The model that answers, scores targets and gives feedback; frozen, or tuned on the training split.

    A frozen small model gains from any documents that show it the form of an answer. Tuning takes that gain
    away from all rows alike: what documents still add is what the user's own words are worth.
    """

    section: ClassVar[str] = "generator"

    # lora: narrow matrices beside frozen weights are trained; full: all weights
    method: Literal["frozen", "lora", "full"] = "frozen"
    rank: int = 8
    alpha: float = 32.0  # products are multiplied with alpha / rank
    dropout: float = 0.05  # of what the narrow matrices read; decoder-only models
    # the linear maps that get them: query, key, value, output, gate, up, down
    targets: tuple[Map, ...] = ("query", "value")
    # what stands in training prompts: each question is learned once with each of these, so that
    # "none own own" is two thirds with own documents. own, others: the nearest of the user's or of random
    # training users' documents; hybrid: half of each; neighbours: of the most similar user's of the cohort
    # (`neighbours.method cohorts` at its defaults); own_neighbours: half of each; pipeline: what the config's
    # own pipeline finds (with the frozen model); beside pipeline the evaluated users are among the others
    documents: tuple[Documents, ...] = ("none", "own")
    per_question: int | None = None  # of these, drawn by the seed for each question; None: all
    k: int = 3  # documents in such a prompt
    limit: int | None = 300  # training questions learned from and held out, drawn by the seed; None: all
    remat: bool = False  # layers are computed again for their gradients: less memory, a third more work
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
        """Whether the model learns."""
        return self.method != "frozen"

    def learns(self) -> TrainingSplit:
        """What it takes of the training split: all of it, apart from the evaluated one, so that one generator
        serves whatever is evaluated; with the evaluated one where the pipeline itself finds documents."""
        if not self.is_tuned:
            return "unused"
        return "needed" if "pipeline" in self.documents else "apart"

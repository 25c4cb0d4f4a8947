"""What both tuned methods of CFRAG share, the retriever and the reranker: training on the feedback."""

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from pbr_jax.corpus.store import Store
from pbr_jax.graph import Node, Stage, builds_nodes
from pbr_jax.methods.expand.none import Nothing
from pbr_jax.methods.generate.ipa import Ipa
from pbr_jax.methods.select.by_score import TopK
from pbr_jax.options import Distillation, Method, Retrieve, Training, TrainingSplit, tuning
from pbr_jax.pipeline import Examples
from pbr_jax.stages import feedback
from pbr_jax.stages.rankings import Questions
from pbr_jax.stages.run import Run, enable_compilation_cache
from pbr_jax.stages.together import by_rows
from pbr_jax.stages.trained import check_training, is_saved, load_saved, save_fitted
from pbr_jax.stages.users import Users


@dataclass(frozen=True, kw_only=True)
class Distilled(Method):
    """A method with an encoder that is trained on the feedback, for a user or for all."""

    training_split: ClassVar[TrainingSplit] = "needed"

    user_layers: int = 2  # number of layers that map user embeddings (MLP_1, MLP_2). The released code has 1
    # how training fits the scores to the feedback
    distillation: Distillation = field(default_factory=Distillation)
    training: Training = field(default_factory=tuning)  # how the encoder is trained

    def check(self) -> None:
        super().check()
        self.at_least("user_layers", 1)

    @builds_nodes
    def check_training(self, run: Run) -> None:
        """Raises UserError before any work if this cannot be trained."""
        check_training(self.training)

    @builds_nodes
    def distilled(self, run: Run, label: str, retrieve: Retrieve, model: Mapping[str, Node]) -> Stage:
        """The stage of the trained parameters. `model`: the inputs of `scorer`, and `users` where they count.

        Candidates are those of `retrieve` for the training questions.
        """
        values = feedback.feedback(
            run, label, expand=Nothing(), retrieve=retrieve, select=TopK(), generate=Ipa.like(run)
        )
        options = (self, feedback.questions(run), run.config.seed, feedback.least_range(run), label)
        return Stage(
            label,
            options,
            {"store": run.data, "lessons": values, **model},
            _train,
            load_saved,
            check=partial(self.check_training, run),
            together=by_rows,
        )

    def queries(self, store: Store, examples: Examples) -> list[str]:
        """The texts of questions as they are learned from."""
        return [example.query for example in examples]

    @abc.abstractmethod
    def scorer(self, *args: Any, **model: Any) -> Callable[..., Any]:
        """`scorer(*, seed, name=value …)`: `train.retriever.scorer` or another one, with all of its arguments
        but queries, users, feedback and texts."""


def _train(
    folder: Path,
    options: Distilled,
    questions: Questions,
    seed: int,
    least: float,
    label: str,
    *,
    store: Store,
    lessons: feedback.Feedbacks,
    users: Users | None = None,
    **model: Any,
) -> None:
    if is_saved(folder):
        return
    from pbr_jax.train.distillation import distill

    enable_compilation_cache()
    examples = list(questions.read(store))
    judged = lessons.read(examples)
    scorer = options.scorer(seed=seed, **model)(
        options.queries(store, examples),
        None if users is None else users.asking(examples),
        judged,
        lambda rows: [document.text for document in store.documents(rows)],
    )
    user_ids, how = [example.user_id for example in examples], (options.distillation, options.training)
    fitted = distill(scorer, judged, *how, folder, seed=seed, user_ids=user_ids, least=least)
    save_fitted(fitted, folder, label)

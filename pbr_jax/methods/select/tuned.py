"""CFRAG: a cross-encoder that knows who asks, tuned on what the language model makes of each document.

Shi et al., "Retrieval Augmented Generation with Collaborative Filtering for Personalized Text Generation",
2025, section 4.3, Eq. 9 to 12.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

import jax

from pbr_jax.base.types import Params
from pbr_jax.corpus.store import Store
from pbr_jax.graph import Node, Stage, Value, builds_nodes
from pbr_jax.methods.expand.none import Nothing
from pbr_jax.methods.generate.ipa import Ipa
from pbr_jax.methods.select.backfill import Curve
from pbr_jax.methods.select.by_score import ByScore
from pbr_jax.methods.select.cross_encoder import judged
from pbr_jax.methods.select.top_k import TopK
from pbr_jax.models import cross_encoder
from pbr_jax.models.pretrained import fingerprint, locate
from pbr_jax.options import IDLE, Distillation, Training, TrainingSplit, tuning
from pbr_jax.pipeline import SelectSlot, Tally
from pbr_jax.stages import feedback, users
from pbr_jax.stages.rankings import Questions
from pbr_jax.stages.reranking import Reranker
from pbr_jax.stages.run import Run, enable_compilation_cache, once
from pbr_jax.stages.together import by_rows
from pbr_jax.stages.trained import check_training, is_saved, load_saved, save_fitted
from pbr_jax.stages.users import Users


@dataclass(frozen=True, kw_only=True)
class Tuned(ByScore):
    """A cross-encoder that starts from `model` and is trained on `feedback`.

    CFRAG, Eq. 9 and 10.
    """

    training_split: ClassVar[TrainingSplit] = "needed"

    method: Literal["tuned"] = "tuned"
    # model that training starts from: the folder of a reranker or of a plain encoder
    model: str = field(default="all-MiniLM-L6-v2", metadata=IDLE)
    max_length: int = 256  # maximum length of query and document together, in tokens
    users: bool = True  # whether scores depend on the user (e_u in Eq. 10)
    user_layers: int = 2  # number of layers that map user embeddings (MLP_2). The released code has 1
    # how training fits the scores to the feedback
    distillation: Distillation = field(default_factory=Distillation)
    training: Training = field(default_factory=tuning)  # how the cross-encoder is trained

    def check(self) -> None:
        super().check()
        self.at_least("max_length", 8)
        self.at_least("user_layers", 1)

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        known = self._users(run)
        params = self.params(run)
        told, encoder = (self.max_length, self.user_layers), run.config.encoder
        needs = {"params": params, **known}
        # What the model is, the key of its tuned parameters says.
        options = (self.model, *told, encoder.dtype)
        loaded = Value("tuned reranker", options, needs, _load, identity=lambda: (*told, *encoder.narrow))
        return {"reranker": loaded, **self.sharing(run)}

    @once
    def params(self, run: Run) -> Stage:
        """Parameters of the cross-encoder, tuned on what the config's retriever finds."""
        found = feedback.feedback(
            run,
            "reranker",
            expand=Nothing(),
            retrieve=run.config.retrieve,
            select=TopK(),
            generate=Ipa.like(run),
        )
        base = Value("weights", (self.model,), {}, locate, identity=lambda: fingerprint(locate(self.model)))
        return Stage(
            "reranker",
            (
                dataclasses.replace(self, k=None, own=None),
                feedback.questions(run),
                run.config.seed,
                feedback.least_range(run),
            ),
            {"store": run.data, "lessons": found, "model": base, **self._users(run)},
            _train,
            load_saved,
            check=partial(check_training, self.training),
            together=by_rows,
        )

    @builds_nodes
    def _users(self, run: Run) -> dict[str, Node]:
        return {"users": users.users(run)} if self.users else {}

    def slot(self, tally: Tally, *, reranker: Reranker, backfill_gains: Curve | None = None) -> SelectSlot:
        return judged(self, reranker, backfill_gains)


def _train(
    folder: Path,
    options: Tuned,
    asked: Questions,
    seed: int,
    least: float,
    *,
    store: Store,
    lessons: feedback.Feedbacks,
    model: Path,
    users: Users | None = None,
) -> None:
    if is_saved(folder):
        return
    from pbr_jax.train import reranker
    from pbr_jax.train.distillation import distill

    enable_compilation_cache()
    examples = list(asked.read(store))
    values = lessons.read(examples)
    scorer = reranker.scorer(
        [example.query for example in examples],
        None if users is None else users.asking(examples),
        values,
        lambda rows: [document.text for document in store.documents(rows)],
        model,
        max_length=options.max_length,
        user_layers=options.user_layers,
        seed=seed,
    )
    user_ids = [example.user_id for example in examples]
    fitted = distill(
        scorer, values, options.distillation, options.training, folder,
        seed=seed, user_ids=user_ids, least=least,
    )  # fmt: skip
    save_fitted(fitted, folder, "reranker")


def _load(
    model: str,
    max_length: int,
    user_layers: int,
    dtype: str,
    *,
    params: Params,
    users: Users | None = None,
) -> Reranker:
    folder, width = locate(model), 0 if users is None else users.dim
    _, _, config = cross_encoder.load(folder, jax.random.key(0), user_width=width, user_layers=user_layers)
    config = dataclasses.replace(config, head=False)
    return Reranker(cross_encoder.cross_encoder(config), params, config, folder, max_length, users, dtype)

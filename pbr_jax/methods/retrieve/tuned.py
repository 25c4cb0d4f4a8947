"""Dense retrieval tuned on what the language model makes of each document, for a user or for all.

Shi et al., "Retrieval Augmented Generation with Collaborative Filtering for Personalized Text Generation"
(CFRAG), 2025, section 4.2; without users (alpha 0) it is ROPG: Salemi et al., "Optimization Methods for
Personalizing Large Language Models through Retrieval Augmentation", 2024.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np

from pbr_jax.base.types import Params, UserError
from pbr_jax.corpus.search import Kind, Search
from pbr_jax.corpus.store import Store
from pbr_jax.graph import Node, Stage, Value, builds_nodes
from pbr_jax.index import Matrix
from pbr_jax.methods.expand.none import Nothing
from pbr_jax.methods.generate.ipa import Ipa
from pbr_jax.methods.retrieve.dense import Dense
from pbr_jax.methods.select.top_k import TopK
from pbr_jax.models.dual_encoder import dual_encoder, personalize
from pbr_jax.options import Distillation, Retrieve, Training, TrainingSplit, tuning
from pbr_jax.pipeline import Examples, RetrieveSlot, Tally
from pbr_jax.stages import feedback, users, vectors
from pbr_jax.stages.rankings import Questions
from pbr_jax.stages.run import Run, enable_compilation_cache, once
from pbr_jax.stages.search import Personalize, search
from pbr_jax.stages.together import by_rows
from pbr_jax.stages.trained import check_training, is_saved, load_saved, save_fitted
from pbr_jax.stages.users import Users
from pbr_jax.text.encode import TextEncoder


@dataclass(frozen=True, kw_only=True)
class Tuned(Retrieve):
    """A dual encoder that starts from `encoder.model` and is trained on `feedback`.

    CFRAG, Eq. 3 to 5.
    """

    training_split: ClassVar[TrainingSplit] = "needed"

    method: Literal["tuned"] = "tuned"
    # weight of the user's preference relative to the query (CFRAG Eq. 5). 0: the user is ignored
    alpha: float = 0.1
    # similarity of query and document. dot: without scaling the vectors to unit length, as in ROPG's code;
    # set encoder.normalize no
    similarity: Literal["cosine", "dot"] = "cosine"
    user_layers: int = 2  # number of layers that map user embeddings (MLP_1). The released code has 1
    index: Kind = "auto"  # index of the shared documents, as for dense
    # how training fits the scores to the feedback
    distillation: Distillation = field(default_factory=Distillation)
    training: Training = field(default_factory=tuning)  # how the encoder is trained

    def check(self) -> None:
        super().check()
        self.between("alpha", 0, 1)
        self.at_least("user_layers", 1)
        if self.similarity == "dot" and self.alpha:
            raise UserError(
                f"retrieve.similarity is dot and retrieve.alpha {self.alpha}; users' preferences are cosines "
                "(CFRAG Eq. 4): set alpha to 0, or similarity to cosine"
            )

    @builds_nodes
    def encoder(self, run: Run) -> Node:
        return vectors.tuned(run, self.params(run), self.similarity == "cosine")

    @once
    def params(self, run: Run) -> Stage:
        """Parameters of the dual encoder, tuned on what the untuned one finds."""
        dense = Dense(k=self.k)
        needs = {
            "store": run.data,
            "encoder": vectors.encoder(run),
            "lessons": feedback.feedback(
                run, "retriever", expand=Nothing(), retrieve=dense, select=TopK(), generate=Ipa.like(run)
            ),
        }
        if self.alpha:
            needs["users"] = users.users(run)
        return Stage(
            "retriever",
            (
                dataclasses.replace(self, k=Retrieve.k, index=Tuned.index),
                feedback.questions(run),
                run.config.seed,
                feedback.least_range(run),
            ),
            needs,
            _train,
            load_saved,
            check=partial(_check, self, run.config.encoder.normalize),
            together=by_rows,
        )

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        needs = {"store": run.data, **vectors.searched(run.changed(retrieve=self))}
        needs["shared"] = vectors.shared(run, needs["embeddings"], self.index)
        if self.alpha:
            known = {"params": self.params(run), "users": users.users(run), "encoder": needs["encoder"]}
            needs["prefer"] = Value("preferences", (self.alpha, self.user_layers), known, _preferences)
        return needs

    def slot(
        self,
        tally: Tally,
        *,
        store: Store,
        encoder: TextEncoder,
        embeddings: Matrix,
        shared: Search | None = None,
        prefer: Personalize | None = None,
    ) -> RetrieveSlot:
        return search(store, encoder, embeddings, self.k, prefer, shared)


def _check(options: Tuned, normalize: str) -> None:
    check_training(options.training)
    if options.similarity == "dot" and normalize != "no":
        raise UserError(
            f"retrieve.similarity is dot and encoder.normalize {normalize}; the candidates that it learns "
            "from would be others: set encoder.normalize to no"
        )


def _train(
    folder: Path,
    options: Tuned,
    asked: Questions,
    seed: int,
    least: float,
    *,
    store: Store,
    encoder: TextEncoder,
    lessons: feedback.Feedbacks,
    users: Users | None = None,
) -> None:
    if is_saved(folder):
        return
    from pbr_jax.train import retriever
    from pbr_jax.train.distillation import distill

    enable_compilation_cache()
    examples = list(asked.read(store))
    values = lessons.read(examples)
    scorer = retriever.scorer(
        [example.query for example in examples],
        None if users is None else users.asking(examples),
        values,
        lambda rows: [document.text for document in store.documents(rows)],
        encoder,
        alpha=options.alpha,
        similarity=options.similarity,
        user_layers=options.user_layers,
        seed=seed,
    )
    user_ids = [example.user_id for example in examples]
    fitted = distill(
        scorer, values, options.distillation, options.training, folder,
        seed=seed, user_ids=user_ids, least=least,
    )  # fmt: skip
    save_fitted(fitted, folder, "retriever")


def _preferences(
    alpha: float, user_layers: int, *, params: Params, users: Users, encoder: TextEncoder
) -> Personalize:
    from pbr_jax.train.retriever import model_config

    config = model_config(encoder, user_layers, users.dim)
    project = jax.jit(lambda params, users: dual_encoder(config).apply(params, users=users).users)

    def prefer(examples: Examples, queries: np.ndarray) -> np.ndarray:
        preferred = project(params, jnp.asarray(users.asking(examples)))
        return np.asarray(personalize(jnp.asarray(queries), preferred, alpha))

    return prefer

"""Dense retrieval tuned on what the language model makes of each document, for a user or for all.

Shi et al., "Retrieval Augmented Generation with Collaborative Filtering for Personalized Text Generation"
(CFRAG), 2025, section 4.2; without users (alpha 0) it is ROPG: Salemi et al., "Optimization Methods for
Personalizing Large Language Models through Retrieval Augmentation", 2024.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from pbr_jax.base.types import Params, UserError
from pbr_jax.corpus.search import Kind, Search
from pbr_jax.corpus.store import Store
from pbr_jax.graph import Node, Stage, Value, builds_nodes
from pbr_jax.index import Matrix
from pbr_jax.methods.retrieve.dense import Dense
from pbr_jax.methods.select.distilled import Distilled
from pbr_jax.models.dual_encoder import dual_encoder, personalize
from pbr_jax.options import Retrieve
from pbr_jax.pipeline import Examples, Query, RetrieveSlot, Tally
from pbr_jax.stages import users, vectors
from pbr_jax.stages.run import Run, once
from pbr_jax.stages.search import Personalize, Searching, search, without_names
from pbr_jax.stages.users import Users
from pbr_jax.text.encode import TextEncoder


@dataclass(frozen=True, kw_only=True)
class Tuned(Distilled, Searching):
    """A dual encoder that starts from `encoder.model` and is trained on `feedback` (CFRAG, Eq. 3 to 5)."""

    method: Literal["tuned"] = "tuned"
    # weight of the user's preference relative to the query (CFRAG Eq. 5). 0: the user is ignored
    alpha: float = 0.1
    # similarity of query and document. dot: without scaling the vectors to unit length, as in ROPG's code;
    # set encoder.normalize no
    similarity: Literal["cosine", "dot"] = "cosine"
    index: Kind = "auto"  # index of the shared documents, as for dense

    def check(self) -> None:
        super().check()
        self.between("alpha", 0, 1)
        if self.similarity == "dot" and self.alpha:
            raise UserError(
                f"retrieve.similarity is dot and retrieve.alpha {self.alpha}; users' preferences are cosines "
                "(CFRAG Eq. 4): set alpha to 0, or similarity to cosine"
            )

    @builds_nodes
    def check_training(self, run: Run) -> None:
        super().check_training(run)
        normalize = run.config.encoder.normalize
        if self.similarity == "dot" and normalize != "no":
            raise UserError(
                f"retrieve.similarity is dot and encoder.normalize {normalize}; the candidates that it "
                "learns from would be others: set encoder.normalize to no"
            )

    @builds_nodes
    def encoder(self, run: Run) -> Node:
        return vectors.tuned(run, self.params(run), self.similarity == "cosine")

    @once
    def params(self, run: Run) -> Stage:
        """Parameters of the dual encoder, tuned on what the untuned one finds."""
        model = {"encoder": vectors.encoder(run), **({"users": users.users(run)} if self.alpha else {})}
        options = dataclasses.replace(self, k=Retrieve.k, index=Tuned.index)
        return options.distilled(run, "retriever", Dense(k=self.k, names=self.names), model)

    def queries(self, store: Store, examples: Examples) -> list[str]:
        asked = [Query((text,)) for text in super().queries(store, examples)]
        return [query.texts[0] for query in without_names(store, self.names)(examples, asked)]

    def scorer(self, *, seed: int, encoder: TextEncoder) -> Callable[..., Any]:
        from pbr_jax.train import retriever

        how = {"alpha": self.alpha, "similarity": self.similarity, "user_layers": self.user_layers}
        return partial(retriever.scorer, encoder=encoder, **how, seed=seed)

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        needs = {"store": run.data, **vectors.searched(run.changed(retrieve=self))}
        needs["shared"] = vectors.shared(run, needs["embeddings"], self.index)
        if self.alpha:
            inputs = {"params": self.params(run), "users": users.users(run), "encoder": needs["encoder"]}
            needs["prefer"] = Value("preferences", (self.alpha, self.user_layers), inputs, _preferences)
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
        return search(store, encoder, embeddings, self.k, prefer, shared, names=self.names)


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

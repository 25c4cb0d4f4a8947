"""A cross-encoder reads query and document together: as it was pretrained, or tuned as in CFRAG.

Shi et al., "Retrieval Augmented Generation with Collaborative Filtering for Personalized Text Generation",
2025, section 4.3, Eq. 9 to 12.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import jax
import numpy as np

from pbr_jax.base.types import Params, UserError
from pbr_jax.graph import Node, Stage, Value, builds_nodes
from pbr_jax.methods.select.by_score import Batch, ByScore
from pbr_jax.methods.select.distilled import Distilled
from pbr_jax.models import cross_encoder
from pbr_jax.models.pretrained import fingerprint, locate, read_tensors
from pbr_jax.options import IDLE, Encoder
from pbr_jax.pipeline import Tally
from pbr_jax.stages import users
from pbr_jax.stages.reranking import Reranker
from pbr_jax.stages.run import Run, once
from pbr_jax.stages.users import Users


@dataclass(frozen=True, kw_only=True)
class _Reranking(ByScore):
    """Candidates in the order of a reranker's scores."""

    # folder of a reranker, or for tuned of a plain encoder too. The default is a plain encoder
    model: str = field(default="all-MiniLM-L6-v2", metadata=IDLE)
    max_length: int = 256  # maximum length of query and document together, in tokens

    def check(self) -> None:
        super().check()
        self.at_least("max_length", 8)

    def scores(self, batch: Batch, tally: Tally, *, reranker: Reranker) -> list[np.ndarray]:
        pairs = [
            [(text, candidate.document.text) for candidate in ranking]
            for text, ranking in zip(batch.texts, batch.rankings, strict=True)
        ]
        return reranker.scores(batch.examples, pairs)


@dataclass(frozen=True, kw_only=True)
class CrossEncoder(_Reranking):
    """A pretrained reranker (such as bge-reranker) scores each pair of query and candidate.

    An encoder without a scoring head is refused.
    """

    by_text: ClassVar[bool] = True

    method: Literal["cross_encoder"] = "cross_encoder"

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        return {"reranker": pretrained(self.model, self.max_length, run.config.encoder)}


def is_pretrained(model: str) -> bool:
    """Whether a model's folder has a head that was trained to judge; False where there is no such folder."""
    try:
        return cross_encoder.has_head(read_tensors(locate(model)))
    except UserError:
        return False


@builds_nodes
def pretrained(model: str, max_length: int, encoder: Encoder) -> Node:
    """A cross-encoder with the head that it was trained with; one without is refused before any work.
    `encoder`: the run's, whose number format the cross-encoder has too."""
    return Value(
        "reranker",
        (model, max_length, encoder.dtype),
        {},
        _load,
        identity=lambda: [fingerprint(locate(model)), max_length, *encoder.narrow],
        check=lambda: _load(model, max_length, encoder.dtype),
    )


def _load(model: str, max_length: int, dtype: str) -> Reranker:
    folder = locate(model)
    loaded, params, config = cross_encoder.load(folder, jax.random.key(0), user_width=None)
    return Reranker(loaded, params, config, folder, max_length, None, dtype)


@dataclass(frozen=True, kw_only=True)
class Tuned(Distilled, _Reranking):
    """A cross-encoder that starts from `model` and is trained on `feedback` (CFRAG, Eq. 9 and 10)."""

    method: Literal["tuned"] = "tuned"
    users: bool = True  # whether scores depend on the user (e_u in Eq. 10)

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        needs = {"params": self.params(run), **self._users(run)}
        sizes, encoder = (self.max_length, self.user_layers), run.config.encoder
        # What the model is, the key of its tuned parameters says.
        options = (self.model, *sizes, encoder.dtype)
        loaded = Value(
            "tuned reranker", options, needs, _load_tuned, identity=lambda: (*sizes, *encoder.narrow)
        )
        return {"reranker": loaded}

    @once
    def params(self, run: Run) -> Stage:
        """Parameters of the cross-encoder, tuned on what the config's retriever finds."""
        base = Value("weights", (self.model,), {}, locate, identity=lambda: fingerprint(locate(self.model)))
        options = dataclasses.replace(self, k=None, own=None)
        return options.distilled(run, "reranker", run.config.retrieve, {"model": base, **self._users(run)})

    @builds_nodes
    def _users(self, run: Run) -> dict[str, Node]:
        return {"users": users.users(run)} if self.users else {}

    def scorer(self, *, seed: int, model: Path) -> Callable[..., Any]:
        from pbr_jax.train import reranker

        sizes = {"max_length": self.max_length, "user_layers": self.user_layers}
        return partial(reranker.scorer, folder=model, **sizes, seed=seed)


def _load_tuned(
    model: str, max_length: int, user_layers: int, dtype: str, *, params: Params, users: Users | None = None
) -> Reranker:
    folder, width = locate(model), 0 if users is None else users.dim
    _, _, config = cross_encoder.load(folder, jax.random.key(0), user_width=width, user_layers=user_layers)
    config = dataclasses.replace(config, head=False)
    return Reranker(cross_encoder.cross_encoder(config), params, config, folder, max_length, users, dtype)

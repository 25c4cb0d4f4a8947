"""A cross-encoder's score of query and document, as it was pretrained."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import jax
import numpy as np

from pbr_jax.base.types import UserError
from pbr_jax.graph import Node, Value, builds_nodes
from pbr_jax.methods.select.backfill import Curve
from pbr_jax.methods.select.by_score import ByScore, by_score
from pbr_jax.models import cross_encoder
from pbr_jax.models.pretrained import fingerprint, locate, read_tensors
from pbr_jax.options import IDLE, Encoder
from pbr_jax.pipeline import Examples, Query, Ranking, SelectSlot, Tally
from pbr_jax.stages.reranking import Reranker
from pbr_jax.stages.run import Run


@dataclass(frozen=True, kw_only=True)
class CrossEncoder(ByScore):
    """A pretrained reranker (such as bge-reranker) scores each pair of query and candidate."""

    method: Literal["cross_encoder"] = "cross_encoder"
    # folder of a reranker. The default is an encoder without a scoring head, so it is refused
    model: str = field(default="all-MiniLM-L6-v2", metadata=IDLE)
    max_length: int = 256  # maximum length of query and document together, in tokens

    def check(self) -> None:
        super().check()
        self.at_least("max_length", 8)

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        return {"reranker": pretrained(self.model, self.max_length, run.config.encoder), **self.sharing(run)}

    def slot(self, tally: Tally, *, reranker: Reranker, backfill_gains: Curve | None = None) -> SelectSlot:
        return judged(self, reranker, backfill_gains)


def is_pretrained(model: str) -> bool:
    """Whether a model's folder has a head that was trained to judge; False where there is no such folder."""
    try:
        return cross_encoder.has_head(read_tensors(locate(model)))
    except UserError:
        return False


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


def judged(options: ByScore, reranker: Reranker, backfill_gains: Curve | None = None) -> SelectSlot:
    """Candidates in the order of the reranker's scores."""

    def score(examples: Examples, queries: Sequence[Query], rankings: Sequence[Ranking]) -> list[np.ndarray]:
        pairs = [
            [(" ".join(query.texts), candidate.document.text) for candidate in ranking]
            for query, ranking in zip(queries, rankings, strict=True)
        ]
        return reranker.scores(examples, pairs)

    return by_score(options, score, backfill_gains)

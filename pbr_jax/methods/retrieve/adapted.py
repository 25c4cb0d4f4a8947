"""Dense retrieval with what LUF's retriever has learned elsewhere; it learns no more."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import jax
import numpy as np

from pbr_jax.base.file_hashes import file_hash
from pbr_jax.base.types import Params, UserError
from pbr_jax.corpus.search import Kind
from pbr_jax.graph import Node, Value, builds_nodes
from pbr_jax.methods.retrieve import luf_state
from pbr_jax.models import bert
from pbr_jax.models.rules import flatten
from pbr_jax.options import IDLE, Retrieve
from pbr_jax.pipeline import RetrieveSlot, Tally
from pbr_jax.stages import vectors
from pbr_jax.stages.run import Run
from pbr_jax.text.encode import TextEncoder


@dataclass(frozen=True, kw_only=True)
class Adapted(Retrieve):
    """A saved state of LUF's retriever (`pbr-jax export`), on any data. It needs the encoder that the
    training started from."""

    method: Literal["adapted"] = "adapted"
    state: str = field(default="", metadata=IDLE)  # folder of the state
    index: Kind = "auto"  # index of the shared documents, as for dense
    least_own: float | None = None  # least cosine of the query and a user's own document. None: no bound

    @builds_nodes
    def encoder(self, run: Run) -> Node:
        return vectors.encoder(run)

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        encoder = vectors.encoder(run)
        embeddings = vectors.documents(run, encoder)
        folder = Path(self.state)
        return {
            "store": run.data,
            "encoder": encoder,
            "embeddings": embeddings,
            "shared": vectors.shared(run, embeddings, self.index),
            "adapted": Value(
                "adapted",
                (folder,),
                {"encoder": encoder},
                _read,
                identity=partial(_content, folder),
                check=lambda: _read(folder, encoder=encoder.value),
            ),
        }

    def slot(self, tally: Tally, *, adapted: Path, **values: Any) -> RetrieveSlot:
        return luf_state.searching(adapted, self.k, self.index, self.least_own, **values)


def _content(folder: Path) -> list[str]:
    """The hashes of a state's files."""
    luf_state.read(folder)
    return [file_hash(file) for file in luf_state.files(folder)]


def _read(folder: Path, *, encoder: TextEncoder) -> Path:
    """The folder. Raises UserError where its state began with another encoder, or is damaged: others may have
    written it."""
    found = luf_state.read(folder)
    if found.encoder != encoder.fingerprint:
        raise UserError(
            f"retrieve.state {folder} was learned with the encoder {str(found.encoder)[:16]}, and "
            f"encoder.model with its options is {encoder.fingerprint[:16]}; set the encoder that it was "
            "learned with"
        )
    params, moves = luf_state.params(folder), found.moves
    if params is None and found.questions == 0:
        return folder
    if moves not in get_args(luf_state.Moves) or _forms(params) != _forms(_wanted(moves, encoder)):
        raise UserError(
            f"retrieve.state {folder} lacks the parameters of moves {moves!r:.40} for this encoder; export "
            "it again"
        )
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params)):
        raise UserError(f"retrieve.state {folder} holds NaN or infinity; export it again")
    return folder


def _wanted(moves: luf_state.Moves, encoder: TextEncoder) -> Params:
    if moves == "map":
        return {"map": jax.ShapeDtypeStruct((encoder.dim, encoder.dim), np.float32)}
    return {"tower": jax.eval_shape(bert.bert(encoder.bert_config).init, jax.random.key(0))}


def _forms(params: Params | None) -> dict[str, tuple[Any, ...]]:
    """Shapes and kinds by path."""
    return {path: (leaf.shape, leaf.dtype) for path, leaf in flatten(params or {}).items()}

"""Dense retrieval with what LUF's retriever has learned elsewhere; it learns no more."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pbr_jax.corpus.search import Kind
from pbr_jax.graph import Node, Value
from pbr_jax.hashes import file_hash
from pbr_jax.methods.retrieve import luf_state
from pbr_jax.options import IDLE, Retrieve
from pbr_jax.parts import vectors
from pbr_jax.parts.run import Run
from pbr_jax.pipeline import RetrieveSlot, Tally
from pbr_jax.text.encode import TextEncoder
from pbr_jax.types import UserError


@dataclass(frozen=True, kw_only=True)
class Adapted(Retrieve):
    """A state of LUF's retriever (`pbr-jax export`) on any data, with the encoder that it began with."""

    method: Literal["adapted"] = "adapted"
    state: str = field(default="", metadata=IDLE)  # the folder
    index: Kind = "auto"  # of shared documents, as in dense
    least_own: float | None = None  # least cosine of users' own documents; None: of any

    def encoder(self, run: Run) -> Node:
        return vectors.encoder(run)

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
    """The folder. Raises UserError where its state begins with another encoder."""
    found = luf_state.read(folder).encoder
    if found != encoder.fingerprint:
        raise UserError(
            f"retrieve.state {folder} was learned with the encoder {found[:16]}, and encoder.model with its "
            f"options is {encoder.fingerprint[:16]}; set the encoder that it was learned with"
        )
    return folder

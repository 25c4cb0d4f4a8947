"""A state of LUF's retriever on disk, the search with it, and `adapted`: the search with one from elsewhere.

`luf.json` says what has moved, and from which encoder; `luf.safetensors` has the moved parameters, and is not
there as long as nothing was learned.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import jax
import numpy as np

from pbr_jax.base.file_hashes import file_hash
from pbr_jax.base.files import write_text
from pbr_jax.base.types import Params, UserError
from pbr_jax.corpus.search import Kind, Search, shared_search
from pbr_jax.corpus.store import Store
from pbr_jax.corpus.vectors import Vectors, VectorStore
from pbr_jax.graph import Node, Value, builds_nodes
from pbr_jax.index import Matrix
from pbr_jax.index.base import unit
from pbr_jax.models import bert
from pbr_jax.models.params_file import load_params, save_params
from pbr_jax.models.pretrained import read_json
from pbr_jax.models.rules import flatten
from pbr_jax.options import IDLE, Encoder
from pbr_jax.pipeline import Examples, RetrieveSlot, Tally
from pbr_jax.stages import vectors
from pbr_jax.stages.run import Run
from pbr_jax.stages.search import Searching, search
from pbr_jax.text.encode import TextEncoder
from pbr_jax.text.speakers import Names

Moves = Literal["query_tower", "map", "both"]
HEADER, _PARAMS = "luf.json", "luf.safetensors"


class State(NamedTuple):
    """What was learned.

    `encoder` is the fingerprint of the encoder that it began with. `questions` is how many it was last
    learned from, in `steps`, with the mean loss of the first and the last of them.
    """

    moves: Moves
    encoder: str
    questions: int = 0
    steps: int = 0
    losses: tuple[float, float] | None = None


def write(folder: Path, state: State, params: Params | None = None) -> None:
    """Writes a state, whose last file comes whole or not at all."""
    if params is not None:
        save_params(params, folder / _PARAMS)
    write_text(folder / HEADER, json.dumps(state._asdict()) + "\n")


def copy(state: Path, out: Path) -> None:
    """Copies a state, for nothing was learned."""
    for file in files(state):
        shutil.copyfile(file, out / file.name)


def files(folder: Path) -> list[Path]:
    """The files of a state, the last one written last."""
    return [folder / name for name in (_PARAMS, HEADER) if (folder / name).is_file()]


def read(folder: Path) -> State:
    """Raises UserError for a folder that holds no state, or one of a method that is not LUF's retriever."""
    found = read_json(folder / HEADER) if (folder / HEADER).is_file() else None
    if not isinstance(found, dict) or not {"moves", "encoder"} <= set(found) <= set(State._fields):
        raise UserError(
            f"{folder} holds no state of retrieve.method luf (its {HEADER} is absent or another's); set "
            "retrieve.state to a folder that `pbr-jax export` wrote, or to one of a stream's states"
        )
    return State(**found)


def params(folder: Path) -> Params | None:
    """The moved parameters: `map` [d d] or `tower`; None where nothing was learned."""
    return load_params(folder / _PARAMS) if (folder / _PARAMS).is_file() else None


def check_encoder(encoder: TextEncoder) -> None:
    """Raises UserError where inner products of an encoder's vectors are no cosines."""
    if not encoder.settings.normalize:
        raise UserError(
            "retrieve.method luf compares by cosine, and the encoder's vectors are not of unit length; set "
            "encoder.normalize to yes"
        )


def searching(
    folder: Path,
    k: int,
    index: Kind,
    least_own: float | None,
    *,
    store: Store,
    encoder: TextEncoder,
    embeddings: Matrix,
    shared: Search,
    names: Names = "keep",
) -> RetrieveSlot:
    """The search with a state. `encoder`, `embeddings` and `shared` are of the encoder as it came."""
    moves = read(folder).moves
    if not (folder / _PARAMS).is_file():
        return search(store, encoder, embeddings, k, None, shared, least_own, names)
    if moves == "map":
        found = params(folder)
        assert found is not None
        return search(store, encoder, embeddings, k, mapping(found), shared, least_own, names)
    moved = _moved(encoder.config, folder / _PARAMS, file_hash(folder / _PARAMS))
    if moves == "both":
        embeddings, shared = searched(store, moved, index)
    return search(store, moved, embeddings, k, None, shared, least_own, names)


def searched(store: Store, encoder: TextEncoder, index: Kind) -> tuple[Matrix, Search]:
    """An encoder's vectors of a store's documents, and the search in the shared ones."""
    embeddings = Vectors(store, VectorStore(encoder))
    return embeddings, shared_search(store, embeddings, index)


def mapping(found: Params) -> Any:
    """Query vectors [e d] to their images under the map, of unit length (`stages.search.Personalize`)."""
    matrix = np.asarray(found["map"])

    def mapped(examples: Examples, queries: np.ndarray) -> np.ndarray:
        return unit(np.stack([query @ matrix for query in queries]))  # each alone: the same in any batch

    return mapped


@lru_cache(maxsize=2)
def _moved(options: Encoder, file: Path, content: str) -> TextEncoder:
    """The encoder with another tower, known by the hash of its file."""
    return TextEncoder(options, tuned=(load_params(file)["tower"], content))


@dataclass(frozen=True, kw_only=True)
class Adapted(Searching):
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

    def slot(
        self,
        tally: Tally,
        *,
        store: Store,
        encoder: TextEncoder,
        embeddings: Matrix,
        shared: Search,
        adapted: Path,
    ) -> RetrieveSlot:
        known = {"store": store, "encoder": encoder, "embeddings": embeddings, "shared": shared}
        return searching(adapted, self.k, self.index, self.least_own, names=self.names, **known)


def _content(folder: Path) -> list[str]:
    """The hashes of a state's files."""
    read(folder)
    return [file_hash(file) for file in files(folder)]


def _read(folder: Path, *, encoder: TextEncoder) -> Path:
    """The folder. Raises UserError where its state began with another encoder, or is damaged: others may have
    written it."""
    state = read(folder)
    if state.encoder != encoder.fingerprint:
        raise UserError(
            f"retrieve.state {folder} was learned with the encoder {str(state.encoder)[:16]}, and "
            f"encoder.model with its options is {encoder.fingerprint[:16]}; set the encoder that it was "
            "learned with"
        )
    moved, moves = params(folder), state.moves
    if moved is None and state.questions == 0:
        return folder
    if moves not in get_args(Moves) or _forms(moved) != _forms(_wanted(moves, encoder)):
        raise UserError(
            f"retrieve.state {folder} lacks the parameters of moves {moves!r:.40} for this encoder; export "
            "it again"
        )
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(moved)):
        raise UserError(f"retrieve.state {folder} holds NaN or infinity; export it again")
    return folder


def _wanted(moves: Moves, encoder: TextEncoder) -> Params:
    if moves == "map":
        return {"map": jax.ShapeDtypeStruct((encoder.dim, encoder.dim), np.float32)}
    return {"tower": jax.eval_shape(bert.bert(encoder.bert_config).init, jax.random.key(0))}


def _forms(params: Params | None) -> dict[str, tuple[Any, ...]]:
    """Shapes and kinds by path."""
    return {path: (leaf.shape, leaf.dtype) for path, leaf in flatten(params or {}).items()}

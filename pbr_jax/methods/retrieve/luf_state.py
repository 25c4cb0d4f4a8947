"""A state of LUF's retriever on disk, and the search with it.

`luf.json` says what has moved, and from which encoder; `luf.safetensors` has the moved parameters, and is not
there as long as nothing was learned.
"""

import json
import shutil
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from pbr_jax.base.file_hashes import file_hash
from pbr_jax.base.files import write_text
from pbr_jax.base.types import Params, UserError
from pbr_jax.corpus.search import Kind, Search, shared_search
from pbr_jax.corpus.store import Store
from pbr_jax.corpus.vectors import Vectors, VectorStore
from pbr_jax.index import Matrix
from pbr_jax.index.base import unit
from pbr_jax.models.params_file import load_params, save_params
from pbr_jax.models.pretrained import read_json
from pbr_jax.options import Encoder
from pbr_jax.pipeline import Examples, RetrieveSlot
from pbr_jax.stages.search import search
from pbr_jax.text.encode import TextEncoder

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
    **values: Any,
) -> RetrieveSlot:
    """The search with a state. `encoder`, `embeddings` and `shared` are of the encoder as it came; other
    values are not used."""
    moves = read(folder).moves
    if not (folder / _PARAMS).is_file():
        return search(store, encoder, embeddings, k, shared=shared, least_own=least_own)
    if moves == "map":
        found = params(folder)
        assert found is not None
        return search(store, encoder, embeddings, k, mapping(found), shared, least_own)
    moved = _moved(encoder.config, folder / _PARAMS, file_hash(folder / _PARAMS))
    if moves == "both":
        embeddings, shared = searched(store, moved, index)
    return search(store, moved, embeddings, k, shared=shared, least_own=least_own)


def searched(store: Store, encoder: TextEncoder, index: Kind) -> tuple[Matrix, Search]:
    """An encoder's vectors of a store's documents, and the search in the shared ones."""
    embeddings = Vectors(store, VectorStore(encoder))
    return embeddings, shared_search(store, embeddings, index)


def mapping(found: Params) -> Any:
    """Query vectors [e d] to their images under the map, of unit length (`stages.search.Personalize`)."""
    matrix = np.asarray(found["map"])

    def mapped(examples: Examples, vectors: np.ndarray) -> np.ndarray:
        return unit(np.stack([vector @ matrix for vector in vectors]))  # each alone: the same in any batch

    return mapped


@lru_cache(maxsize=2)
def _moved(options: Encoder, file: Path, content: str) -> TextEncoder:
    """The encoder with another tower, known by the hash of its file."""
    return TextEncoder(options, tuned=(load_params(file)["tower"], content))

"""Texts as vectors: the text encoder, and the vectors of all documents."""

from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from pbr_jax.corpus.store import Store
from pbr_jax.corpus.vectors import embed_to_file
from pbr_jax.graph import Node, Stage, Value
from pbr_jax.models.pretrained import fingerprint, locate
from pbr_jax.options import Encoder
from pbr_jax.parts.run import Run, enable_compilation_cache, once
from pbr_jax.text.encode import TextEncoder
from pbr_jax.types import Params


@once
def encoder(run: Run) -> Node:
    """The text encoder as it comes."""
    options = run.config.encoder
    return Value("encoder", (options,), {}, _encoder, identity=partial(_told, options))


def _told(options: Encoder) -> list[Any]:
    """The size of a batch can move the last bit of a vector."""
    return [_encoder(options).fingerprint, options.batch_tokens]


@once
def tuned(run: Run, params: Stage, unit: bool = True) -> Node:
    """The text encoder with another `tower` in its parameters; `unit`: its vectors are of unit length."""
    needs = {"params": params, "untuned": encoder(run)}
    return Value("tuned encoder", (run.config.encoder, params, unit), needs, _tuned, identity=lambda: unit)


@once
def documents(run: Run, encoder: Node, label: str = "embed") -> Node:
    """The encoder's vectors of all documents, float32 [n d], row by row as in the store, memory-mapped."""
    return Stage("embed", (), {"store": run.data, "encoder": encoder}, _embed, _vectors, label=label)


def searched(run: Run) -> dict[str, Node]:
    """The encoder whose vectors the config's retriever searches (else as it comes), and those vectors."""
    plain, own = encoder(run), run.config.retrieve.encoder(run)
    if own is None or own is plain:
        return {"encoder": plain, "embeddings": documents(run, plain)}
    return {"encoder": own, "embeddings": documents(run, own, "embed_tuned")}


def _encoder(options: Encoder) -> TextEncoder:
    return _loaded(options, fingerprint(locate(options.model)))


@lru_cache(maxsize=2)
def _loaded(options: Encoder, content: str) -> TextEncoder:
    """Sweeps share the loaded weights, as long as the same lie there."""
    return TextEncoder(options)


def _tuned(options: Encoder, stage: Stage, unit: bool, *, params: Params, untuned: Any) -> TextEncoder:
    return TextEncoder(options, tuned=(params["tower"], stage.key), unit=unit)


def _embed(folder: Path, *, store: Store, encoder: TextEncoder) -> None:
    enable_compilation_cache()
    embed_to_file(encoder, (text for _, text in store.texts()), store.rows, folder / "documents.npy")


def _vectors(folder: Path) -> np.ndarray:
    return np.load(folder / "documents.npy", mmap_mode="r")

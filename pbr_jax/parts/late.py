"""Late interaction: the encoder of tokens, and the token vectors of all documents."""

import os
from collections.abc import Sequence
from functools import cached_property, lru_cache, partial
from pathlib import Path

import numpy as np

from pbr_jax.graph import Given, Node, Stage
from pbr_jax.index.store import Store
from pbr_jax.models.pretrained import fingerprint, locate
from pbr_jax.parts.run import Run, chunks, enable_compilation_cache, once, progress
from pbr_jax.text.token_encoder import TokenEncoder, max_sims, mean_vectors

_CHUNK = 1024  # documents in a file


@once
def encoder(run: Run, model: str, query_length: int | None, document_length: int | None) -> Node:
    """The encoder of tokens; `model` "": the run's text encoder."""
    told = (model or run.config.encoder.model, query_length, document_length)
    return Given(
        "token encoder",
        told,
        {},
        _encoder,
        identity=lambda: [fingerprint(locate(told[0])), query_length, document_length],
        check=partial(_encoder, *told),
    )


def _encoder(model: str, query_length: int | None, document_length: int | None) -> TokenEncoder:
    return _loaded(model, query_length, document_length, fingerprint(locate(model)))


@lru_cache(maxsize=2)
def _loaded(model: str, query_length: int | None, document_length: int | None, content: str) -> TokenEncoder:
    """Sweeps share the loaded weights, as long as the same lie there."""
    return TokenEncoder(model, query_length=query_length, document_length=document_length)


@once
def documents(run: Run, encoder: Node) -> Stage:
    """The token vectors of all documents, row by row as in the store."""
    return Stage("token_vectors", (), {"store": run.data, "encoder": encoder}, _embed, TokenVectors)


def _embed(folder: Path, *, store: Store, encoder: TokenEncoder) -> None:
    enable_compilation_cache()
    total = store.summary.documents
    pieces = progress(chunks(store.texts(), _CHUNK), "token vectors", -(-total // _CHUNK))
    for number, texts in enumerate(pieces):
        if (folder / _name(number, "means")).exists():  # by an attempt that was killed
            continue
        tokens = encoder.encode(texts, "document")
        # float16: no more than 5e-4 of a value is lost, and half of the disk.
        flat = np.concatenate(tokens).astype(np.float16)
        _save(folder / _name(number, "tokens"), flat)
        _save(folder / _name(number, "ends"), np.cumsum([len(of_text) for of_text in tokens]))
        _save(folder / _name(number, "means"), mean_vectors(tokens, encoder.dim))  # last: now all are there


def _name(number: int, kind: str) -> str:
    return f"{kind}-{number:06d}.npy"


def _save(path: Path, array: np.ndarray) -> None:
    """Writes an array whole or not at all."""
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        np.save(file, array, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


class TokenVectors:
    """Token vectors on disk, memory-mapped."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getitem__(self, row: int) -> np.ndarray:
        """One document's, float32 [t e]."""
        tokens, ends = self._piece(row // _CHUNK)
        place = row % _CHUNK
        start = ends[place - 1] if place else 0
        return np.asarray(tokens[start : ends[place]], np.float32)

    @cached_property
    def means(self) -> np.ndarray:
        """The unit mean of each document's token vectors, float32 [n e]."""
        files = sorted(self._folder.glob("means-*.npy"))
        return (
            np.concatenate([np.load(file, allow_pickle=False) for file in files])
            if files
            else np.zeros((0, 1))
        )

    def max_sims(self, query: np.ndarray, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        """Late interaction of a query's tokens [s e] with each of these documents, float32 [r]."""
        return max_sims(query, [self[int(row)] for row in rows])

    def _piece(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        if number not in self._pieces:
            files = (self._folder / _name(number, kind) for kind in ("tokens", "ends"))
            tokens, ends = (np.load(file, mmap_mode="r", allow_pickle=False) for file in files)
            self._pieces[number] = tokens, ends
        return self._pieces[number]

    @cached_property
    def _pieces(self) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        return {}

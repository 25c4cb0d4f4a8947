"""Late interaction: the encoder of tokens, and the token vectors of all documents.

Vectors of many texts lie on disk: ragged, in half precision, memory-mapped. A text takes 2 bytes x tokens x
width: 49 kB with 64 tokens of all-MiniLM-L6-v2.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache, partial
from pathlib import Path

import numpy as np

from pbr_jax.base import terminal
from pbr_jax.corpus.store import Store
from pbr_jax.graph import Node, Stage, Value
from pbr_jax.index.base import Matrix, unit
from pbr_jax.models.pretrained import fingerprint, locate
from pbr_jax.stages.run import Run, chunks, enable_compilation_cache, keep_measures, once
from pbr_jax.text.token_encoder import TokenEncoder, max_sims, mean_vectors

_TOGETHER = 1024  # texts of one file
_OPEN = 64  # files that are open at once


class Ragged:
    """What `keep` has written, by the texts' numbers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getitem__(self, row: int) -> np.ndarray:
        """One text's vectors, float16 [t e]."""
        part, place = divmod(row, _TOGETHER)
        end = self._ends[part][place]
        return self._vectors(part)[end - self.lengths[row] : end]

    def read(self, rows: Sequence[int] | np.ndarray) -> list[np.ndarray]:
        """The vectors of each of these texts."""
        return [self[int(row)] for row in rows]

    @cached_property
    def lengths(self) -> np.ndarray:
        """Tokens of each text, int [n]."""
        return np.concatenate([np.zeros(0, np.int64), *self._parts("lengths")])

    @cached_property
    def _ends(self) -> list[np.ndarray]:
        return [np.cumsum(lengths) for lengths in self._parts("lengths")]

    @cached_property
    def _vectors(self) -> Callable[[int], np.ndarray]:
        """Opens a file of vectors; the last few stay open, as memory maps of a process are limited."""
        return lru_cache(maxsize=_OPEN)(
            lambda part: np.load(self._folder / _name("vectors", part), mmap_mode="r", allow_pickle=False)
        )

    def _parts(self, kind: str) -> list[np.ndarray]:
        return [np.load(path, allow_pickle=False) for path in sorted(self._folder.glob(f"{kind}-*.npy"))]


def keep(
    folder: Path,
    texts: Iterable[str],
    total: int,
    encode: Callable[[Sequence[str]], Sequence[np.ndarray]],
    label: str,
    means: Callable[[Sequence[np.ndarray]], np.ndarray] | None = None,
) -> None:
    """Writes a file of vectors for every so many texts; after a kill it goes on behind the last whole one.

    Args:
      texts, total: what is encoded, and how many.
      encode: gives each text's vectors [t e].
      label: of the progress bar.
      means: of each text, kept beside its vectors.
    """
    enable_compilation_cache()
    with terminal.bar(desc=label, total=total) as bar:
        for part, some in enumerate(chunks(texts, _TOGETHER)):
            bar.update(len(some))
            if (folder / _name("lengths", part)).exists():
                continue
            vectors = encode(some)
            # float16: no more than 5e-4 of a value is lost, and half of the disk.
            _save(folder / _name("vectors", part), np.concatenate(vectors).astype(np.float16))
            if means is not None:
                _save(folder / _name("means", part), means(vectors))
            lengths = np.array([len(of_text) for of_text in vectors], np.int64)
            _save(folder / _name("lengths", part), lengths)  # last: now all are there


def _name(kind: str, part: int) -> str:
    return f"{kind}-{part:06}.npy"


def _save(path: Path, array: np.ndarray) -> None:
    """Writes an array whole or not at all."""
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        np.save(file, array, allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


@once
def encoder(run: Run, model: str) -> Node:
    """The encoder of tokens; `model` "": the run's text encoder."""
    model = model or run.config.encoder.model
    return Value(
        "token encoder",
        (model,),
        {},
        _encoder,
        identity=lambda: fingerprint(locate(model)),
        check=partial(_encoder, model),
    )


def _encoder(model: str) -> TokenEncoder:
    return _loaded(model, fingerprint(locate(model)))


@lru_cache(maxsize=2)
def _loaded(model: str, content: str) -> TokenEncoder:
    """Sweeps share the loaded weights, as long as the same lie there."""
    return TokenEncoder(model)


@once
def documents(run: Run, encoder: Node) -> Stage:
    """The token vectors of all documents, row by row as in the store."""
    return Stage("token_vectors", (), {"store": run.documents, "encoder": encoder}, _embed, TokenVectors)


def _embed(folder: Path, *, store: Store, encoder: TokenEncoder) -> None:
    encode = partial(encoder.encode, role="document")
    means = partial(mean_vectors, dim=encoder.dim)
    keep(folder, (text for _, text in store.texts()), store.rows, encode, "token vectors", means)
    keep_measures(folder, encoder.cut(text for _, text in store.texts()))


class TokenVectors(Ragged):
    """Token vectors of documents on disk, and what late interaction makes of them."""

    def __getitem__(self, row: int) -> np.ndarray:
        """One document's, float32 [t e]."""
        return np.asarray(super().__getitem__(row), np.float32)

    @cached_property
    def means(self) -> np.ndarray:
        """The unit mean of each document's token vectors, float32 [n e]."""
        parts = self._parts("means")
        return np.concatenate(parts) if parts else np.zeros((0, 1))

    def max_sims(self, query: np.ndarray, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        """Late interaction of a query's tokens [s e] with each of these documents, float32 [r]."""
        return max_sims(query, self.read(rows))


class PooledVectors:
    """Documents as one vector each, float32 [n e]: MaxSim of one vector with one is their cosine."""

    def __init__(self, vectors: Matrix) -> None:
        self.means = vectors

    def max_sims(self, query: np.ndarray, rows: Sequence[int] | np.ndarray) -> np.ndarray:
        """The cosine of a query's unit vector [1 e] with each of these documents, float32 [r]."""
        return unit(self.means[rows]) @ query[0]

"""Late interaction: the encoder of tokens, and the token vectors of all documents."""

from collections.abc import Sequence
from functools import cached_property, lru_cache, partial
from pathlib import Path

import numpy as np

from pbr_jax.corpus.store import Store
from pbr_jax.graph import Node, Stage, Value
from pbr_jax.index.base import Matrix, unit
from pbr_jax.models.pretrained import fingerprint, locate
from pbr_jax.stages import token_vectors as ragged
from pbr_jax.stages.run import Run, once
from pbr_jax.text.token_encoder import TokenEncoder, max_sims, mean_vectors


@once
def encoder(run: Run, model: str, query_length: int | None, document_length: int | None) -> Node:
    """The encoder of tokens; `model` "": the run's text encoder."""
    told = (model or run.config.encoder.model, query_length, document_length)
    return Value(
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
    return Stage("token_vectors", (), {"store": run.documents, "encoder": encoder}, _embed, TokenVectors)


def _embed(folder: Path, *, store: Store, encoder: TokenEncoder) -> None:
    encode = partial(encoder.encode, role="document")
    means = partial(mean_vectors, dim=encoder.dim)
    ragged.keep(folder, (text for _, text in store.texts()), store.rows, encode, "token vectors", means)


class TokenVectors(ragged.Ragged):
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

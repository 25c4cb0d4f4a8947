"""What moves when LUF's retriever learns: a map of query vectors, the tower of queries, or that of both."""

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from pbr_jax.base.types import Params
from pbr_jax.losses import encode_in_chunks
from pbr_jax.models import bert
from pbr_jax.models.dual_encoder import Tokens, dual_encoder
from pbr_jax.text.encode import TextEncoder
from pbr_jax.text.padding import row_sizes
from pbr_jax.train.luf import Moving
from pbr_jax.train.retriever import model_config, token_arrays
from pbr_jax.train.sharding import Batch

DocumentVectors = Callable[[np.ndarray], np.ndarray]
"""Rows of the store to vectors [c d]."""

Texts = Callable[[np.ndarray], list[str]]
"""Rows of the store to the documents' texts."""


def mapped(vectors: np.ndarray, documents: DocumentVectors, start: Params | None = None) -> Moving:
    """A linear map of query vectors, from the identity; documents keep theirs.

    Args:
      vectors: of the questions, [n d].
      start: `map`, [d d]; None: the identity.
    """
    dim = vectors.shape[1]

    def arrays(questions: np.ndarray, rows: np.ndarray) -> Batch:
        return {"vectors": vectors[questions], "documents": _padded(documents, rows, dim)}

    def embed(params: Params, batch: dict[str, Array], key: Array | None) -> tuple[Array, Array]:
        return bert.unit_length(batch["vectors"] @ params["map"]), batch["documents"]

    return Moving(lambda: start or {"map": jnp.eye(dim)}, arrays, embed, heads=("map",))


def query_tower(
    encoder: TextEncoder, queries: Sequence[str], documents: DocumentVectors, start: Params | None = None
) -> Moving:
    """The tower for queries alone; documents keep theirs. `start`: its `tower`; None: the encoder's."""
    apply = dual_encoder(model_config(encoder, 1, None)).apply
    tokens = token_arrays(encoder, queries, "query")

    def arrays(questions: np.ndarray, rows: np.ndarray) -> Batch:
        return _tokens("query", tokens, questions) | {"documents": _padded(documents, rows, encoder.dim)}

    def embed(params: Params, batch: dict[str, Array], key: Array | None) -> tuple[Array, Array]:
        texts = Tokens(batch["query_ids"], batch["query_mask"])
        found = apply(params, queries=texts, key=key, rows=batch["row"])
        return found.queries, batch["documents"]

    return Moving(lambda: start or _tower(encoder), arrays, embed)


def both(encoder: TextEncoder, queries: Sequence[str], texts: Texts, start: Params | None = None) -> Moving:
    """One tower for queries and documents, which is computed for so many documents at a time as there are
    questions. `start`: its `tower`; None: the encoder's."""
    apply = dual_encoder(model_config(encoder, 1, None)).apply
    tokens = token_arrays(encoder, queries, "query")

    def arrays(questions: np.ndarray, rows: np.ndarray) -> Batch:
        read = token_arrays(encoder, texts(rows[rows >= 0]), "document")
        places = np.maximum(np.cumsum(rows >= 0) - 1, 0)  # any text where there is no document
        found = _tokens("query", tokens, questions) | _tokens("document", read, places)
        return found | {"document_row": rows.astype(np.int32)}

    def embed(params: Params, batch: dict[str, Array], key: Array | None) -> tuple[Array, Array]:
        asked = Tokens(batch["query_ids"], batch["query_mask"])

        def encode(params: Params, some: tuple[Array, ...]) -> Float[Array, "k d"]:
            ids, mask, rows = some
            return apply(params, documents=Tokens(ids, mask), key=key, rows=rows).documents

        read = batch["document_ids"], batch["document_mask"], batch["document_row"]
        documents = encode_in_chunks(encode, params, read, chunk_size=len(asked.ids))
        return apply(params, queries=asked, key=key, rows=batch["row"]).queries, documents

    return Moving(lambda: start or _tower(encoder), arrays, embed)


def _tower(encoder: TextEncoder) -> Params:
    return {"tower": bert.load(encoder.folder)[1]}


def _tokens(name: str, tokens: Tokens, chosen: np.ndarray) -> Batch:
    """Tokens of some texts, in rows of few lengths."""
    ids, mask = tokens.ids[chosen], tokens.mask[chosen]
    longest = int(mask.sum(axis=1).max(initial=1))
    width = next(size for size in row_sizes(longest) if size >= longest)
    pad = ((0, 0), (0, max(0, width - ids.shape[1])))
    return {f"{name}_ids": np.pad(ids, pad)[:, :width], f"{name}_mask": np.pad(mask, pad)[:, :width]}


def _padded(documents: DocumentVectors, rows: np.ndarray, dim: int) -> np.ndarray:
    """Vectors of the documents of these rows; zeros for the rows -1."""
    vectors = np.zeros((len(rows), dim), np.float32)
    vectors[rows >= 0] = documents(rows[rows >= 0])
    return vectors

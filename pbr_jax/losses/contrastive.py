"""Contrastive losses, and variants for batches that do not fit in memory.

If arrays are sharded over devices, each query is contrasted with the documents of all devices. Gradient
accumulation over small batches adds no negatives. `encode_in_chunks` computes the gradients of a large batch
in the memory of one chunk.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from pbr_jax.base.types import Params
from pbr_jax.losses.reduction import masked_logsumexp


def info_nce(
    query_embeddings: Float[Array, "q d"],
    document_embeddings: Float[Array, "c d"],
    positives: Bool[Array, "q c"] | None = None,
    *,
    temperature: float | Float[Array, ""],
    where: Bool[Array, "q c"] | None = None,
) -> Float[Array, " q"]:
    r"""InfoNCE: minus the log of the positives' share of the softmax over a query's documents.

    .. math:: -\log \frac{\sum_{c \in P_q} \exp(s_{qc} / \tau)}{\sum_c \exp(s_{qc} / \tau)},
       \quad s_{qc} = \sum_d q_d c_d

    Several positives are summed inside the logarithm, so one positive with a high score is enough.

    Args:
      query_embeddings, document_embeddings: vectors whose inner products are the scores s.
      positives: True for the positives P of each query. None: document i is the positive of query i, and
        documents after the first q are negatives of all queries.
      temperature: tau, which divides the scores.
      where: False for padding and for false negatives.

    Returns:
      One float32 value per query. A query without positives or without negatives has value and gradient 0.

    LUF (anonymous ACL submission), Eq. 2; with one positive, van den Oord, Li and Vinyals,
    https://arxiv.org/abs/1807.03748, 2018, Eq. 4.

    >>> import jax.numpy as jnp
    >>> queries, documents = jnp.eye(2), jnp.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    >>> [round(float(x), 4) for x in info_nce(queries, documents, temperature=1.0)]  # log(1 + 2 / e)
    [0.5514, 0.5514]
    """
    q, c = len(query_embeddings), len(document_embeddings)
    if positives is None:
        _check_one_positive_each(q, c)
        positives = jnp.eye(q, c, dtype=bool)
    if where is None:
        where = jnp.ones((q, c), bool)
    return _minus_log_share(*_log_sums(query_embeddings, document_embeddings, positives, where, temperature))


def symmetric_info_nce(
    first: Float[Array, "b d"],
    second: Float[Array, "b d"],
    *,
    temperature: float | Float[Array, ""],
    where: Bool[Array, "b b"] | None = None,
) -> Float[Array, " b"]:
    r"""Mean of `info_nce` in both directions: from first to second views and from second to first.

    .. math:: \tfrac12 \left( \mathrm{info\_nce}(x, y)_b + \mathrm{info\_nce}(y, x)_b \right)

    `where[i, j]` is False if first view i and second view j are not contrasted. The loss of a masked pair is
    0. For unit vectors, twice this loss is that of Shi et al. (CFRAG), https://arxiv.org/abs/2504.05731,
    2025, Eq. 2, with the positive included in the denominator.
    """
    there = info_nce(first, second, temperature=temperature, where=where)
    back = info_nce(second, first, temperature=temperature, where=None if where is None else where.T)
    return (there + back) / 2


def nt_xent(
    first: Float[Array, "b d"],
    second: Float[Array, "b d"],
    *,
    temperature: float | Float[Array, ""],
    where: Bool[Array, "b b"] | None = None,
) -> Float[Array, " b"]:
    r"""NT-Xent: contrasts two views of each user with both views of all other users, by cosine.

    .. math::
       \ell(i, j) = -\log \frac{\exp(\cos(v_i, v_j) / \tau)}{\sum_{k \ne i} \exp(\cos(v_i, v_k) / \tau)}

    over the 2b views v, where j is the other view of the user of view i. The denominator includes the
    positive, but not the view itself.

    Args:
      first, second: the two views of each user. They need not be unit vectors; the cosine of a zero vector
        is 0.
      temperature: tau, which divides the cosines.
      where: False for pairs of users that are not negatives of each other, and in rows and columns of
        padding.

    Returns:
      One float32 value per user, the mean over the two views. A user who is masked or alone in the batch has
      value and gradient 0.

    Chen et al. (SimCLR), https://arxiv.org/abs/2002.05709, 2020, Eq. 1; the released code of CFRAG.
    """
    b = len(first)
    itself = jnp.eye(2 * b, dtype=bool)
    views = jnp.concatenate([first, second])
    seen = ~itself if where is None else jnp.tile(where, (2, 2)) & ~itself
    views = _unit(jnp.where((seen.any(axis=0) | seen.any(axis=1))[:, None], views, 0.0))
    losses = _minus_log_share(*_log_sums(views, views, jnp.roll(itself, b, axis=1), seen, temperature))
    return losses.reshape(2, b).mean(axis=0)


def encode_in_chunks(
    apply: Callable[[Params, Any], Float[Array, "k d"]], params: Params, inputs: Any, *, chunk_size: int
) -> Float[Array, "n d"]:
    """`apply(params, inputs)`, computed and differentiated for `chunk_size` rows at a time.

    Only the embeddings are stored between the forward and backward pass. Each chunk is encoded again in the
    backward pass. So any loss of the embeddings has the gradients of the whole batch, in the memory of one
    chunk.

    Args:
      apply: encodes each row independently of the others. Pass dropout keys among the inputs, so that both
        passes use the same dropout.
      inputs: a pytree of arrays. The first axis of each array has n rows.
      chunk_size: rows per chunk; must divide n. A value above n means n.

    Gao et al. (GradCache), https://arxiv.org/abs/2101.06983, 2021.
    """
    chunks = _in_chunks(inputs, chunk_size)
    encode = jax.checkpoint(apply, prevent_cse=False)
    embeddings = jax.lax.map(lambda chunk: encode(params, chunk), chunks)
    return embeddings.swapaxes(0, 1).reshape(-1, embeddings.shape[-1])


def _log_sums(
    queries: Float[Array, "q d"],
    documents: Float[Array, "c d"],
    positives: Bool[Array, "q c"],
    where: Bool[Array, "q c"],
    temperature: float | Float[Array, ""],
) -> tuple[Float[Array, " q"], Float[Array, " q"], Bool[Array, " q"]]:
    """Log-sums of the positives and of all documents, and whether a query has a positive at all."""
    # What takes part nowhere may hold NaN, and 0 times NaN would be the gradient of all others.
    queries = jnp.where(where.any(axis=1)[:, None], queries, 0.0)
    documents = jnp.where(where.any(axis=0)[:, None], documents, 0.0)
    full = "highest" if queries.dtype == jnp.float32 else None  # an accelerator would shorten it
    products = jnp.einsum("qd,cd->qc", queries, documents, precision=full, preferred_element_type=jnp.float32)
    logits = products / temperature
    positives = positives & where
    return masked_logsumexp(logits, positives), masked_logsumexp(logits, where), positives.any(axis=1)


def _minus_log_share(
    right: Float[Array, " q"], everything: Float[Array, " q"], some: Bool[Array, " q"]
) -> Float[Array, " q"]:
    return jnp.where(some, everything, 0.0) - jnp.where(some, right, 0.0)


def _unit(vectors: Float[Array, "b d"]) -> Float[Array, "b d"]:
    """Vectors of length 1, in float32; a zero vector stays, with finite gradients."""
    vectors = vectors.astype(jnp.float32)
    squares = jnp.square(vectors).sum(axis=-1, keepdims=True)
    return vectors / jnp.sqrt(jnp.where(squares == 0, 1.0, squares))


def _in_chunks(rows: Any, chunk_size: int) -> Any:
    """Arrays [n ...] as [n/k k ...], where k is the chunk size. The rows of a chunk stand n/k apart: of
    rows that are sharded over devices, each device then holds its part of every chunk, and none waits for
    another's."""
    n = len(jax.tree.leaves(rows)[0])
    k = min(chunk_size, n)
    if k < 1 or n % k:
        raise ValueError(f"found {n} rows and a chunk_size of {chunk_size}; give one that divides {n}")
    return jax.tree.map(lambda x: x.reshape(k, n // k, *x.shape[1:]).swapaxes(0, 1), rows)


def _check_one_positive_each(q: int, c: int) -> None:
    if c < q:
        raise ValueError(
            f"found {q} queries and {c} documents; without positives, document i is the positive of "
            f"query i: give {q} documents or more, or say which are positives"
        )

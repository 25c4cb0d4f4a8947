"""The k best scores of a row: where every ranking comes from, and its numpy twin.

Both agree on the order: higher score first, and of equal scores the lower position. All ranking goes
through them, so that two runs, two numbers of devices and two indices list documents alike.
"""

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jaxtyping import Float, Int

from pbr_jax.index.base import Matrix, check_k


def top_k(scores: Float[Array, "*b n"], k: int) -> tuple[Float[Array, "*b {k}"], Int[Array, "*b {k}"]]:
    """The `k` highest of `n` scores and where they stand, best first, ties to the lower position.

    A score of -inf means "not allowed": its position is -1, as is that of places beyond `n`. Scores
    of fewer than 32 bits are ranked as float32.

    Two things about `lax.top_k` are mended here. It orders -0.0 before 0.0 although they are equal.
    And on CPU it is 80 times slower when its result is sliced inside the same jit, because the
    slice hides the pattern that the compiler replaces by its fast path; the barrier keeps it.
    """
    check_k(k)
    if scores.dtype.itemsize < 4:
        scores = scores.astype(jnp.float32)
    n = scores.shape[-1]
    values, rows = lax.top_k(jnp.where(scores == 0, 0, scores), min(k, n))
    # One barrier each: a barrier over the pair crashes the partitioner of programs on several devices.
    values, rows = lax.optimization_barrier(values), lax.optimization_barrier(rows)
    rows = jnp.where(values == -jnp.inf, -1, rows)
    pad = [(0, 0)] * (scores.ndim - 1) + [(0, max(k - n, 0))]
    return (jnp.pad(values, pad, constant_values=-jnp.inf), jnp.pad(rows, pad, constant_values=-1))


def top_positions(scores: Float[np.ndarray, " n"], k: int) -> Int[np.ndarray, " m"]:
    """Positions of the `m = min(k, n)` highest scores on the host, best first, ties to the lower position."""
    check_k(k)
    if len(scores) <= max(4 * k, 256):  # sorting a few is cheaper than partitioning them first
        return np.argsort(-scores, kind="stable")[:k]
    kth = np.partition(scores, len(scores) - k)[len(scores) - k]
    candidates = np.flatnonzero(scores >= kth)  # in row order, and with all ties of the k-th
    return candidates[np.argsort(-scores[candidates], kind="stable")[:k]]


def nearest(
    vectors: Matrix, rows: np.ndarray, query: Float[np.ndarray, " d"], k: int
) -> tuple[Int[np.ndarray, " m"], Float[np.ndarray, " m"]]:
    """The `m = min(k, distinct rows)` rows with the highest dot product with `query`, and their scores.

    Ties are resolved by the lower row. This is for few rows, such as one user's documents: up to some
    thousands it is faster on the host than a transfer to a device (benchmarks/RESULTS.md).

    Dot products are computed individually (`np.vecdot`). In a matrix product, the last bit would depend on
    neighbouring rows. So equal vectors have equal scores, and the score of a document does not depend on the
    other documents in the search.
    """
    rows = np.asarray(rows, np.int64)
    if len(rows) == 0:
        return rows, np.empty(0, np.float32)
    if len(rows) > 1 and not (rows[1:] > rows[:-1]).all():
        rows = np.unique(rows)  # ascending, so that the lower position is the lower row
    first, last = int(rows[0]), int(rows[-1])
    adjacent = last - first + 1 == len(rows)  # then a view serves, and a memory map is read in one go
    documents = np.asarray(vectors[first : last + 1] if adjacent else vectors[rows], np.float32)
    scores = np.vecdot(documents, query)
    best = top_positions(scores, k)
    return rows[best], scores[best]

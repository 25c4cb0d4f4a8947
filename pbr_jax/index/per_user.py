"""Exact search among a few rows, such as one user's documents.

It uses numpy on the host. A history has 10 to 1,000 documents, and for so few rows this is faster than a
transfer to a device (measured in benchmarks/RESULTS.md).

Dot products are computed individually (`np.vecdot`). In a matrix product, the last bit would depend on
neighbouring rows. So equal vectors have equal scores, and the score of a document does not depend on the
other documents in the search.
"""

import numpy as np
from jaxtyping import Float, Int

from pbr_jax.index.base import Matrix
from pbr_jax.index.top_k import top_positions


def nearest(
    vectors: Matrix, rows: np.ndarray, query: Float[np.ndarray, " d"], k: int
) -> tuple[Int[np.ndarray, " m"], Float[np.ndarray, " m"]]:
    """The `m = min(k, distinct rows)` rows with the highest dot product with `query`, and their scores.

    Ties are resolved by the lower row.
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

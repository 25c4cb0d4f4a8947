"""Batches of questions that share labelled documents (LUF Eq. 1)."""

from collections.abc import Sequence

import numpy as np


def overlap_batches(documents: Sequence[np.ndarray], size: int) -> list[np.ndarray]:
    """Divides questions into batches of `size`, such that questions of a batch share documents.

    .. math:: \\mathrm{Batch}(q_i) = \\arg\\max_B \\sum_{q_j \\in B} |D_i \\cap D_j|

    The algorithm is greedy. A batch starts with the unassigned question that has the most documents. The
    question with the largest total overlap with the batch is then added until the batch is full. Ties are
    resolved by order of arrival.

    Args:
      documents: for each question in order of arrival, the distinct rows that are labelled relevant.
      size: questions per batch; the last batch has the rest.

    Returns:
      The indices of the questions of each batch, int64.

    LUF (anonymous ACL submission), Eq. 1. The paper does not specify how to find the maximum.
    """
    sizes = np.array([len(rows) for rows in documents], np.int64)
    shared = _Sharing(documents)
    free, batches = np.ones(len(documents), bool), []
    while free.any():
        batch = [int(np.argmax(np.where(free, sizes, -1)))]
        free[batch[0]] = False
        overlap = shared.with_question(batch[0])
        while len(batch) < size and free.any():
            batch.append(int(np.argmax(np.where(free, overlap, -1))))
            free[batch[-1]] = False
            overlap += shared.with_question(batch[-1])
        batches.append(np.array(batch, np.int64))
    return batches


class _Sharing:
    """How many documents each question has in common with another one."""

    def __init__(self, documents: Sequence[np.ndarray]) -> None:
        self._documents, self._count = documents, len(documents)
        pairs = [(int(row), place) for place, rows in enumerate(documents) for row in rows]
        asking: dict[int, list[int]] = {}
        for row, place in pairs:
            asking.setdefault(row, []).append(place)
        self._asking = {row: np.array(places, np.int64) for row, places in asking.items()}

    def with_question(self, place: int) -> np.ndarray:
        """The number of documents that each question shares with this one, int64 [questions]."""
        rows = self._documents[place]
        if not len(rows):
            return np.zeros(self._count, np.int64)
        places = np.concatenate([self._asking[int(row)] for row in rows])
        return np.bincount(places, minlength=self._count)

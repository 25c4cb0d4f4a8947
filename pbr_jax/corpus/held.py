"""Documents that were read last, kept in memory: retrievers that are fused read the same ones."""

from collections.abc import Callable, Sequence

import numpy as np

from pbr_jax.base.types import Document

MOST = 16_000_000  # characters of texts; what a process holds of them is a few times as many bytes


class Held:
    """Documents by their rows, all of which go when their texts are longer than `most` characters together.

    For stores that nobody writes to: what was deleted would still be found here.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most, self._size = most, 0
        self._documents: dict[int, Document] = {}

    def read(
        self, rows: Sequence[int] | np.ndarray, read: Callable[[list[int]], dict[int, Document]]
    ) -> list[Document]:
        """The documents of rows, in their order; `read` reads those that are not here."""
        wanted = np.asarray(rows, np.int64).tolist()
        held = self._documents  # another thread may put a new one in its place
        found = {row: held[row] for row in wanted if row in held}
        if missing := [row for row in dict.fromkeys(wanted) if row not in found]:
            new = read(missing)
            found |= new
            self._keep(new)
        return [found[row] for row in wanted]

    def _keep(self, new: dict[int, Document]) -> None:
        size = sum(len(document.text) for document in new.values())
        if self._size + size > self._most:
            self._documents, self._size = {}, 0
        if size <= self._most:
            self._documents.update(new)
            self._size += size

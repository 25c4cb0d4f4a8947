"""Documents that are kept in memory: each read once, in the order asked, until they are too many."""

import numpy as np
import pytest

from pbr_jax.base.types import Document, UserError
from pbr_jax.corpus.store import Held


# of texts of 4 characters; at 8 a third one empties what is held
@pytest.mark.parametrize(
    ("most", "reads"), [(100, [[3, 1], [2]]), (8, [[3, 1], [2], [1], [3]]), (0, [[3, 1], [2, 3], [1], [3]])]
)
def test_documents_are_read_once_until_they_are_too_many(most: int, reads: list[list[int]]):
    asked: list[list[int]] = []

    def read(rows: list[int]) -> dict[int, Document]:
        asked.append(rows)
        return {row: Document(str(row), "a", "text") for row in rows}

    held = Held(most)
    for rows in [[3, 1, 3], [2, 3], [1], [3], []]:
        assert [d.id for d in held.read(np.array(rows, np.int64), read)] == [str(row) for row in rows]
    assert asked == reads


def test_an_error_leaves_nothing_behind():
    held = Held()

    def read(rows: list[int]) -> dict[int, Document]:
        raise UserError("row 1 holds no document")

    with pytest.raises(UserError):
        held.read([1], read)
    assert held.read([1], lambda rows: {1: Document("x", "a", "t")})[0].id == "x"

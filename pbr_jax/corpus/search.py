"""Search over vectors: `search(queries, k, scopes)`, whichever index finds the rows.

An index only proposes rows. Here those that the asking example may not see are taken out, and the rest are
scored one dot product at a time, so that scores and order do not depend on the index. Where fewer than `k`
are left, everything in scope is scored: visibility is exact, and so is the number of results.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Float

from pbr_jax.index import ExactIndex, Found, Matrix, ScannIndex, nearest
from pbr_jax.index import scann as scann_index
from pbr_jax.index.base import check_k, check_matrix

T = TypeVar("T")

Kind = Literal["auto", "exact", "per_user", "scann", "lancedb"]
Scopes = Sequence[np.ndarray]
"""For each query, the rows that may be returned for it."""

APPROXIMATE_FROM = 50_000  # vectors in a collection; auto takes ScaNN from here on, where it is installed
_ROWS = "rows.npy"
SLACK = 2  # times k: rows that an index proposes whose search is exact
_REBUILT = 0.1  # of the rows added since; below, they are scored beside those that the index proposes


@runtime_checkable
class Search(Protocol):
    """What finds the best rows."""

    def search(self, queries: Float[np.ndarray, "q d"], k: int, scopes: Scopes) -> Found:
        """The `k` rows of highest dot product in each query's scope, best first, ties to the lower row."""
        ...


class InScope:
    """Scores all rows in scope: for histories, which hold 10 to 1,000 documents (`per_user`)."""

    def __init__(self, vectors: Matrix) -> None:
        self._vectors = vectors

    def search(self, queries: Float[np.ndarray, "q d"], k: int, scopes: Scopes) -> Found:
        return scored(self._vectors, queries, k, scopes)


class Collection:
    """One collection of vectors behind an index, for scopes that are most of it.

    Rows beyond those that the index was built from, such as documents added since, are found at once; when
    there are many, the index is built anew.

    Args:
      vectors: float32 [n d], by row.
      rows: gives the collection's rows, ascending.
      kind: exact or scann; auto by their number.
      folder: of a saved index of these rows, where there is one.
    """

    def __init__(
        self, vectors: Matrix, rows: Callable[[], np.ndarray], kind: Kind = "auto", folder: Path | None = None
    ) -> None:
        self._vectors, self._current, self._folder = vectors, rows, folder
        self._kind: Kind = kind
        self._index: ExactIndex | ScannIndex | None = None
        self._rows = np.zeros(0, np.int64)

    def search(self, queries: Float[np.ndarray, "q d"], k: int, scopes: Scopes | None = None) -> Found:
        """As `Search.search`; without scopes every row may be returned."""
        check_k(k)
        every = [self._current()] * len(queries) if scopes is None else of_each(scopes, ascending)
        last = max((rows[-1] for rows in every if len(rows)), default=-1)
        if self._index is None or (last > _last(self._rows) and self._has_grown()):
            self._build()
        proposed = self._proposed(queries, k)
        found = []
        for rows, some in zip(every, proposed, strict=True):
            some = np.sort(some[among(some, rows)])
            added = rows[np.searchsorted(rows, _last(self._rows), side="right") :]
            enough = len(some) + len(added) >= min(k, len(rows))
            found.append(np.concatenate([some, added]) if enough else rows)
        return scored(self._vectors, queries, k, found)

    def _has_grown(self) -> bool:
        rows = self._current()
        added = len(rows) - np.searchsorted(rows, _last(self._rows), side="right")
        return bool(added > _REBUILT * len(self._rows))

    def _build(self) -> None:
        rows = self._current()
        first, self._rows = self._index is None, rows
        part = _Rows(self._vectors, rows)
        if chosen(self._kind, len(rows)) == "exact":
            self._index = ExactIndex(part)
        elif first and self._folder is not None and ScannIndex.is_saved(self._folder):
            self._index = ScannIndex.load(self._folder)
            self._rows = np.load(self._folder / _ROWS, allow_pickle=False)
        else:
            self._index = ScannIndex(part)

    def _proposed(self, queries: np.ndarray, k: int) -> list[np.ndarray]:
        """For each query, rows among which its best are."""
        if isinstance(self._index, ScannIndex):
            places = self._index.candidates(queries, k)
        else:
            assert self._index is not None
            places = self._index.search(queries, min(SLACK * k, max(len(self._rows), 1))).rows
        return [self._rows[some[some >= 0]] for some in places]


class _Rows:
    """Some rows of a matrix as a matrix."""

    def __init__(self, vectors: Matrix, rows: np.ndarray) -> None:
        self._vectors, self._rows = vectors, rows

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self._rows), self._vectors.shape[1]

    def __getitem__(self, places: Any) -> np.ndarray:
        return self._vectors[self._rows[places]]


def chosen(kind: Kind, count: int) -> Literal["exact", "scann"]:
    """The index for a collection of so many vectors."""
    if kind == "lancedb":
        raise ValueError("LanceDB is no index of a Collection; use corpus.engine.shared_search")
    if kind == "auto":
        return "scann" if count >= APPROXIMATE_FROM and scann_index.is_installed() else "exact"
    return "scann" if kind == "scann" else "exact"


def save_index(vectors: Matrix, rows: np.ndarray, kind: Kind, folder: Path) -> None:
    """Builds an index of a collection and saves it for `Collection`, if it takes long to build."""
    if chosen(kind, len(rows)) == "scann":
        np.save(folder / _ROWS, rows, allow_pickle=False)
        ScannIndex(_Rows(vectors, rows)).save(folder)


def scored(vectors: Matrix, queries: np.ndarray, k: int, rows: Scopes) -> Found:
    """The `k` best of each query's rows."""
    check_k(k)
    queries = check_matrix(queries, vectors.shape[1], "queries")
    found = Found(np.full((len(queries), k), -1, np.int64), np.full((len(queries), k), -np.inf, np.float32))
    for q, some in enumerate(rows):
        best, scores = nearest(vectors, some, queries[q], k)
        found.rows[q, : len(best)], found.scores[q, : len(best)] = best, scores
    return found


def ascending(rows: np.ndarray) -> np.ndarray:
    return rows if (rows[1:] > rows[:-1]).all() else np.unique(rows)


def of_each(scopes: Scopes, work: Callable[[np.ndarray], T]) -> list[T]:
    """What `work` gives for each scope. Of an array that stands for many queries, such as all rows of a
    collection, it is asked once."""
    scopes = list(scopes)
    distinct = {id(rows): rows for rows in scopes}
    found = {key: work(rows) for key, rows in distinct.items()}
    return [found[id(rows)] for rows in scopes]


def _last(rows: np.ndarray) -> int:
    """The last of ascending rows; -1: there is none."""
    return int(rows[-1]) if len(rows) else -1


def among(some: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Which of some rows are among ascending rows, bool [s]."""
    places = np.minimum(np.searchsorted(rows, some), len(rows) - 1)
    return rows[places] == some if len(rows) else np.zeros(len(some), bool)

"""Search over vectors: `search(queries, k, scopes)`, whichever engine finds the rows.

An engine only proposes rows. Here those that the asking example may not see are taken out, and the rest are
scored one dot product at a time, so that scores and order do not depend on the engine. Where fewer than `k`
are left, everything in scope is scored: visibility is exact, and so is the number of results.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Float

from pbr_jax.base.types import UserError
from pbr_jax.corpus.schema import GONE
from pbr_jax.corpus.store import Store
from pbr_jax.corpus.vectors import Vectors
from pbr_jax.index import Engine, Found, Matrix, Rows, engines, nearest
from pbr_jax.index.base import among, check_k, check_matrix

T = TypeVar("T")

if TYPE_CHECKING:
    Kind = str
else:
    Kind = Literal[("auto", "per_user", *engines.ENGINES)]
Scopes = Sequence[np.ndarray]
"""For each query, the rows that may be returned for it."""


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


class EngineSearch:
    """Search among the rows that an engine proposes; it follows what is added and deleted.

    Args:
      engine: proposes rows.
      vectors: float32 [n d], by row.
      current: gives the rows that the engine is to hold.
    """

    def __init__(self, engine: Engine, vectors: Matrix, current: Callable[[], Rows]) -> None:
        self.engine, self._vectors, self._current = engine, vectors, current

    def search(self, queries: Float[np.ndarray, "q d"], k: int, scopes: Scopes | None = None) -> Found:
        """As `Search.search`; without scopes every row may be returned."""
        check_k(k)
        queries = check_matrix(queries, self._vectors.shape[1], "queries")
        current = self._current()
        found = [current.rows] * len(queries) if scopes is None else of_each(scopes, ascending)
        wide = [q for q, rows in enumerate(found) if len(rows) > max(self.engine.direct, k)]
        if wide and self.engine.follow(current):
            proposed = self.engine.nearest(queries[wide], k, [found[q] for q in wide])
            for q, some in zip(wide, proposed, strict=True):
                some = np.unique(some[among(some, found[q])])
                found[q] = some if len(some) >= k else found[q]
        return scored(self._vectors, queries, k, found)

    def follow(self, label: str) -> None:
        """Brings the engine to the present rows, with a progress bar."""
        self.engine.follow(self._current(), label)


def over(vectors: Matrix, kind: str) -> EngineSearch:
    """The search among all rows of a matrix. UserError for an engine that can only search on disk."""
    engine = engines.load(engines.for_size(len(vectors)) if kind == "auto" else kind)
    if engine.everything:
        raise UserError(f"the engine {kind} searches a store's documents, and nothing else; take exact")
    rows = Rows(np.arange(len(vectors)), vectors)
    return EngineSearch(engine(None, vectors.shape[1]), vectors, lambda: rows)


def shared_search(store: Store, vectors: Vectors, kind: str) -> Search:
    """The search in a store's shared documents, and in users' documents if the engine holds them.

    An engine's files lie beside the vectors. Their name is the hash of the store's content, or for a living
    store that of its file.
    """
    if kind == "per_user":
        return InScope(vectors)
    name = engines.for_size(len(store.columns.shared.rows)) if kind == "auto" else kind
    engine = engines.load(name)
    identity = hashlib.sha256(store.identity.encode()).hexdigest()[:16]
    folder = engines.folder(vectors.folder, name, identity) if engine.saves else None

    def current() -> Rows:
        columns = store.columns
        owners = columns.table["user"]
        rows = np.flatnonzero(owners != GONE) if engine.everything else columns.shared.rows
        return Rows(rows, vectors, vectors.places, columns.generation, owners, columns.table["until"])

    return EngineSearch(engine(folder, vectors.shape[1]), vectors, current)


def holds_users(search: Search) -> bool:
    """Whether a search finds users' documents too, not only shared ones."""
    return isinstance(search, EngineSearch) and search.engine.everything


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

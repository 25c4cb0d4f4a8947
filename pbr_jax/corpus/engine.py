"""Search in the documents of a store, users' and shared ones, through an engine with their vectors on disk.

The engine's table is a copy of what the store and the vectors' cache hold. It is compared with the store when
that has changed, and follows. Which rows may be returned is a condition on owner, date and row; the engine
applies it before it searches. As with the other indices, what it proposes is scored anew, one dot product at
a time.
"""

import hashlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Float

from pbr_jax.base import terminal
from pbr_jax.corpus.columns import Columns
from pbr_jax.corpus.schema import GONE
from pbr_jax.corpus.search import (
    SLACK,
    Collection,
    InScope,
    Kind,
    Scopes,
    Search,
    among,
    ascending,
    of_each,
    scored,
)
from pbr_jax.corpus.store import Store
from pbr_jax.corpus.vectors import Vectors
from pbr_jax.index import Found
from pbr_jax.index.base import check_k, check_matrix
from pbr_jax.index.lance import LanceTable, table_folder

DIRECT = 5_000  # rows in scope, up to which scoring all of them takes no more CPU than asking the engine
_ADDED = 65_536  # rows at once
_NEAR = 1e-5  # relative; scores closer than that may be ties


class EngineSearch:
    """The `k` nearest in scope, exact up to `index.lance.APPROXIMATE_FROM` rows, ties to the lower row.

    Args:
      store: whose documents are searched.
      vectors: theirs; the table lies beside them in the cache.
    """

    def __init__(self, store: Store, vectors: Vectors) -> None:
        self._store, self._vectors = store, vectors
        self._table = LanceTable(table_folder(vectors.folder, _name(store)), vectors.shape[1])

    def search(self, queries: Float[np.ndarray, "q d"], k: int, scopes: Scopes) -> Found:
        """As `Search.search`."""
        check_k(k)
        queries = check_matrix(queries, self._vectors.shape[1], "queries")
        found = of_each(scopes, ascending)
        columns, conditions = self._store.columns, dict[str, list[int]]()
        wide = [q for q, rows in enumerate(found) if len(rows) > self._fewest(k)]
        if wide and self.follow(columns):
            told = of_each([found[q] for q in wide], partial(condition, columns))
            for q, where in zip(wide, told, strict=True):
                conditions.setdefault(where, []).append(q)
        for where, places in conditions.items():
            rows = found[places[0]]
            for q, proposed in zip(places, self._proposed(queries[places], k, where, len(rows)), strict=True):
                some = np.unique(proposed[among(proposed, rows)])
                found[q] = some if len(some) >= k else rows
        return scored(self._vectors, queries, k, found)

    def _fewest(self, k: int) -> int:
        return max(DIRECT, SLACK * k)

    def _proposed(self, queries: np.ndarray, k: int, where: str, within: int) -> list[np.ndarray]:
        """Rows among which each query's best are: more where those that are left out may be ties."""
        wanted = min(SLACK * k, within)
        while True:
            rows, scores = self._table.nearest(queries, wanted, where, within)
            last, worst = scores[:, k - 1], scores[:, -1]
            tied = np.isfinite(worst) & (worst >= last - _NEAR * np.maximum(np.abs(last), 1))
            if wanted == within or not tied.any():
                return [some[some >= 0] for some in rows]
            wanted = min(8 * wanted, within)

    def follow(self, columns: Columns, label: str = "") -> bool:
        """Brings the table to a state of the store; False where it is of a later one, which stays."""
        header = self._table.header
        if (header.generation, header.size) == (columns.generation, len(self._table)):
            return True
        with self._table.writing():
            if self._table.header.generation > columns.generation:
                return False
            held = self._table.column("row")
            twice = held[1:][held[1:] == held[:-1]]  # a process died while it deleted
            living = np.flatnonzero(columns.table["user"] != GONE)
            if len(gone := np.union1d(np.setdiff1d(held, living), twice)):
                self._table.delete("row", gone)
            self._add(np.setdiff1d(living, np.setdiff1d(held, twice)), columns, label)
            self._table.index()
            self._table.write_header(columns.generation)
        return True

    def _add(self, rows: np.ndarray, columns: Columns, label: str) -> None:
        for some in _parts(rows, label):
            vectors, places = self._vectors[some], self._vectors.places(some)
            there = places >= 0  # what was deleted meanwhile has no vector
            some, of = some[there], columns.table[some[there]]
            self._table.add(some, of["user"], of["until"], places[there], vectors[there])


def shared_search(store: Store, vectors: Vectors, kind: Kind, saved: Path | None = None) -> Search:
    """The search in a store's shared documents; of an engine also that in users' documents."""
    if kind == "lancedb":
        return EngineSearch(store, vectors)
    if kind == "per_user":
        return InScope(vectors)
    return Collection(vectors, partial(store.history, ""), kind, saved)


def condition(columns: Columns, rows: np.ndarray) -> str:
    """What holds for these rows (ascending, not empty) of a store and for no other one, in SQL."""
    user, until = columns.table["user"], columns.table["until"]
    owners = user[rows[:1]] if (user[rows] == user[rows[0]]).all() else np.unique(user[rows])
    kept = np.sort(np.concatenate([columns.rows(int(owner)) for owner in owners]))
    parts = [f"user IN ({','.join(map(str, owners.tolist()))})"]
    ends = until[rows]
    undated, last = bool(np.isnan(ends).any()), float(np.nanmax(ends, initial=-np.inf))
    if len(kept) > len(rows) and np.isfinite(last):
        dated = until[kept]
        kept = kept[(dated <= last) | (np.isnan(dated) & undated)]
        parts.append(f"(until <= {last!r}{' OR until IS NULL' if undated else ''})")
    if len(kept) != len(rows):
        inside = np.zeros(len(user), bool)
        inside[rows] = True
        left_out = kept[~inside[kept]]
        few, word = (left_out, "NOT IN") if len(left_out) < len(rows) else (rows, "IN")
        parts.append(f"row {word} ({','.join(map(str, few.tolist()))})")
    return " AND ".join(parts)


def _parts(rows: np.ndarray, label: str) -> Iterator[np.ndarray]:
    """Rows bit by bit, with a progress bar where it has a label."""
    with terminal.bar(desc=label, total=len(rows), unit="vector", show=None if label else False) as bar:
        for start in range(0, len(rows), _ADDED):
            yield rows[start : start + _ADDED]
            bar.update(len(rows[start : start + _ADDED]))


def _name(store: Store) -> str:
    """Of a store that stays as it is by its content; of a living one by its file."""
    return hashlib.sha256(store.identity.encode()).hexdigest()[:16]

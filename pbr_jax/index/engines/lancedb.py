"""Vectors in a table of LanceDB: on disk, filtered inside the engine, added to and deleted from.

Which rows may be returned is a condition on owner, date and row, which LanceDB applies before it searches.
Fewer than `APPROXIMATE_FROM` rows in scope are searched exactly, more through an index of 8-bit codes in
partitions (IVF_SQ; of 100,000 vectors it is built in a quarter of IVF_PQ's time and finds more), whose effort
is tuned by the recall, measured against exact search. Needs `pbr-jax[lancedb]`.
"""

import json
import math
import shutil
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Bool, Float, Int

from pbr_jax.base import system_errors, terminal
from pbr_jax.base.files import parse_json, private_folder, write_text
from pbr_jax.base.locks import locked
from pbr_jax.base.types import UserError
from pbr_jax.index import base
from pbr_jax.index.base import Found, Rows

T = TypeVar("T")

APPROXIMATE_FROM = 50_000  # rows in a scope; fewer are searched exactly in some 10 ms
SLACK = 2  # times k: rows that are proposed
SAMPLE = 100  # queries that measure recall
TARGET, FLOOR = 0.95, 0.8  # recall that the effort is tuned for, and below which building is an error
ADDED = 65_536  # rows added at once
_NEAR = 1e-5  # relative; scores closer than that may be ties
_QUERIES = 256  # searched together
_LISTED = 10_000  # rows named in one condition
_STALE = 0.1  # of the rows not in the indices; more are slow to search
_FRAGMENTS = 64  # files of vectors, beyond which small ones are merged
_TABLE, _HEADER = "vectors", "state.json"
_DELETING = "deleting"  # a file that is there while rows are deleted


class Header(NamedTuple):
    """What is written after a change: the store's generation that the table follows, its rows, and the
    partitions of its index that a search reads."""

    generation: int = -1
    size: int = -1
    probes: int = 0


class Engine(base.Engine):
    """The table in a folder; made where there is none.

    Columns: `row` of the store, `user` (the code of the owner), `until` (the end of its date in seconds, or
    null), `place` in the store of vectors, `vector`. Any number of processes read; one writes, inside
    `writing`.
    """

    saves = everything = True
    direct = 5_000  # rows, of which scoring all takes no more CPU than asking the engine

    def __init__(self, folder: Path | None, width: int) -> None:
        assert folder is not None
        self._lancedb, self._width, self.folder = _module(), width, folder
        self._current = Rows(np.zeros(0, np.int64), np.zeros((0, width), np.float32))
        private_folder(folder)
        with self.writing():  # two processes do not make it at once
            self._open()

    @staticmethod
    def check_installed() -> None:
        _module()

    def _open(self) -> None:
        import pyarrow as pa

        vector = pa.list_(pa.float32(), self._width)
        kinds = {"row": pa.int64(), "user": pa.int32(), "until": pa.float64(), "place": pa.int64()}
        self._schema = pa.schema([*kinds.items(), ("vector", vector)])
        with self._damage():  # every read looks for what other processes have written
            database = self._lancedb.connect(self.folder, read_consistency_interval=timedelta(0))
            self._table = database.create_table(_TABLE, schema=self._schema, exist_ok=True)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """One process at a time. A table whose deletion did not end may hold bytes of what was deleted, so it
        goes as a whole."""
        with locked(self.folder / "lock", f"waiting for another process that writes to {self.folder}"):
            if (self.folder / _DELETING).exists():
                (self.folder / _HEADER).unlink(missing_ok=True)
                shutil.rmtree(self.folder / f"{_TABLE}.lance", ignore_errors=True)
                self._open()
                (self.folder / _DELETING).unlink()
            yield

    @contextmanager
    def _damage(self) -> Iterator[None]:
        """Says in one line that files are damaged."""
        try:
            yield
        except (RuntimeError, ValueError) as error:
            if isinstance(error, UserError) or system_errors.line(error) is not None:
                raise
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> UserError:
        return UserError(f"{self.folder} cannot be read ({error}); delete it, it is made anew")

    @property
    def header(self) -> Header:
        """As it was written last; nothing where it is damaged, then the table is compared anew."""
        try:
            return Header(**parse_json((self.folder / _HEADER).read_bytes()))
        except (OSError, ValueError, TypeError):
            return Header()

    def _write_header(self, **changed: int) -> None:
        write_text(self.folder / _HEADER, json.dumps(self.header._replace(**changed)._asdict()))

    def __len__(self) -> int:
        return self._reading(lambda table: table.count_rows())

    def column(self, name: str) -> Int[np.ndarray, " n"]:
        """`row` or `place` of everything, ascending."""
        found = self._reading(lambda table: table.search().select([name]).to_arrow())
        return np.sort(found[name].to_numpy())

    # -- the engine ------------------------------------------------------------------------------------

    def follow(self, current: Rows, label: str = "") -> bool:
        self._current = current
        if (self.header.generation, self.header.size) == (current.version, len(self)):
            return True
        with self.writing():
            if self.header.generation > current.version:
                return False
            held = self.column("row")
            twice = held[1:][held[1:] == held[:-1]]  # a process died while it deleted
            if len(gone := np.union1d(np.setdiff1d(held, current.rows), twice)):
                self._delete("row", gone)
            self._add_rows(np.setdiff1d(current.rows, np.setdiff1d(held, twice)), current, label)
            self._index()
            self._write_header(generation=current.version, size=len(self))
        return True

    def nearest(self, queries: np.ndarray, k: int, scopes: Sequence[np.ndarray]) -> list[np.ndarray]:
        conditions, found = dict[str, list[int]](), list(scopes)
        wheres = {id(rows): condition(self._current, rows) for rows in scopes}
        for q, rows in enumerate(scopes):
            conditions.setdefault(wheres[id(rows)], []).append(q)
        for where, some in conditions.items():
            proposed = self._proposed(queries[some], k, where, len(scopes[some[0]]))
            for q, rows in zip(some, proposed, strict=True):
                found[q] = rows
        return found

    def _proposed(self, queries: np.ndarray, k: int, where: str, within: int) -> list[np.ndarray]:
        """Rows among which each query's best are: more where those that are left out may be ties."""
        wanted = min(SLACK * k, within)
        while True:
            rows, scores = self.search(queries, wanted, where, within)
            last, worst = scores[:, k - 1], scores[:, -1]
            tied = np.isfinite(worst) & (worst >= last - _NEAR * np.maximum(np.abs(last), 1))
            if wanted == within or not tied.any():
                return [some[some >= 0] for some in rows]
            wanted = min(8 * wanted, within)

    def erase(self, gone: Bool[np.ndarray, " p"]) -> None:
        with self.writing():
            places = self.column("place")
            # Also of none: what a process that was killed wrote and did not add goes.
            self._delete("place", places[gone[places]])

    # -- writing ---------------------------------------------------------------------------------------

    def _add_rows(self, rows: np.ndarray, current: Rows, label: str) -> None:
        """Adds rows bit by bit, with a progress bar where it has a label."""
        with terminal.bar(desc=label, total=len(rows), unit="vector", show=None if label else False) as bar:
            for start in range(0, len(rows), ADDED):
                some = rows[start : start + ADDED]
                vectors, places = current.vectors[some], current.places(some)
                there = places >= 0  # what was deleted meanwhile has no vector
                bar.update(len(some))
                some = some[there]
                self.add(some, current.owners[some], current.untils[some], places[there], vectors[there])

    def add(
        self,
        rows: Int[np.ndarray, " n"],
        users: Int[np.ndarray, " n"],
        untils: Float[np.ndarray, " n"],
        places: Int[np.ndarray, " n"],
        vectors: Float[np.ndarray, "n d"],
    ) -> None:
        """Adds rows. Those of one call are in the table together, or none is. UserError for NaN, infinity."""
        import pyarrow as pa

        if not np.isfinite(vectors).all():
            raise UserError("vectors hold NaN or infinity; encode the documents again")
        flat = pa.array(np.ascontiguousarray(vectors, np.float32).reshape(-1))
        columns = [pa.array(rows), pa.array(users), pa.array(untils, from_pandas=True), pa.array(places)]
        columns.append(pa.FixedSizeListArray.from_arrays(flat, self._width))
        self._table.add(pa.Table.from_arrays(columns, schema=self._schema))

    def _delete(self, column: str, values: Int[np.ndarray, " n"]) -> None:
        """Deletes what has one of these values of `row` or `place`; no byte of it is in a file afterwards.

        LanceDB writes files once, and compacts those of which more than a tenth is deleted. So what is left
        of a file is added anew, and the file goes as a whole. The index of codes goes too; `_index` makes it.
        """
        write_text(self.folder / _DELETING, "")
        with self._damage():
            self._delete_rows(column, values)
        (self.folder / _DELETING).unlink()

    def _delete_rows(self, column: str, values: Int[np.ndarray, " n"]) -> None:
        fragments: set[int] = set()
        for listed in _listed(column, values):
            found = self._table.search().where(listed).with_row_address(True).select(["_rowaddr"]).to_arrow()
            fragments |= set((found["_rowaddr"].to_numpy() >> np.uint64(32)).tolist())
            self._table.delete(listed)
        for fragment in sorted(fragments):
            inside = f"_rowaddr >= {fragment << 32} AND _rowaddr < {(fragment + 1) << 32}"
            if self._table.count_rows(inside):
                self._table.add(self._table.search().where(inside).select(self._schema.names).to_batches())
                self._table.delete(inside)  # dead now: a row stands there twice (`follow` mends that)
        for index in self._table.list_indices() if len(values) else ():
            if index.columns == ["vector"]:
                self._table.drop_index(index.name)
        self._optimize(timedelta(0))

    def _index(self) -> None:
        """Makes what is missing of the indices, and takes in what was added."""
        from lancedb.index import BTree, IvfSq

        count, indexed = len(self), {i.columns[0]: i.name for i in self._table.list_indices()}
        if count and "user" not in indexed:
            self._table.create_index("user", config=BTree())
        unindexed = [self._table.index_stats(name).num_unindexed_rows for name in indexed.values()]
        fragments = self._table.stats()["fragment_stats"]["num_small_fragments"]
        if max(unindexed, default=0) > _STALE * count or fragments > _FRAGMENTS:
            self._optimize(timedelta(minutes=5))
        if count >= APPROXIMATE_FROM and not ("vector" in indexed and self.header.probes):
            parts = math.isqrt(count)
            kind = IvfSq(distance_type="dot", num_partitions=parts, max_iterations=10)
            self._table.create_index("vector", config=kind, replace=True)
            self._tune(parts)

    def _optimize(self, older: timedelta) -> None:
        with warnings.catch_warnings():  # readers of older versions fail, and read again (`_reading`)
            warnings.filterwarnings("ignore", "optimize")
            self._table.optimize(cleanup_older_than=older, delete_unverified=True)

    def _tune(self, parts: int, k: int = 10) -> None:
        rows = self.column("row")
        some = rows[:: max(1, len(rows) // SAMPLE)][:SAMPLE]
        (listed,) = _listed("row", some)
        queries = np.stack(self._table.search().where(listed).to_arrow()["vector"].to_pylist())
        queries = queries.astype(np.float32)
        best = self.search(queries, k, "true", len(rows), probes=0).rows
        probes, recall = 4, 0.0
        while recall < TARGET and probes < parts:
            probes = min(2 * probes, parts)
            found = self.search(queries, 2 * k, "true", len(rows), probes=probes).rows
            recall = float((best[:, :, None] == found[:, None]).any(axis=2).mean())
        if recall < FLOOR:
            raise UserError(
                f"recall@{k} of LanceDB's index is {recall:.3f} with all {parts} partitions, below {FLOOR}; "
                "set retrieve.index to exact"
            )
        self._write_header(probes=probes)

    # -- reading ---------------------------------------------------------------------------------------

    def search(
        self, queries: Float[np.ndarray, "q d"], k: int, where: str, within: int, *, probes: int | None = None
    ) -> Found:
        """The `k` rows of highest dot product for which `where` holds, a condition in SQL on the columns.

        Args:
          within: for how many rows it holds.
          probes: partitions of the index to read, 0 for an exact search; None: exact below
            `APPROXIMATE_FROM` rows, else as many as were tuned.

        Scores are rounded otherwise than `index.nearest` rounds them.
        """
        if probes is None:
            probes = self.header.probes if within >= APPROXIMATE_FROM else 0
        rows = np.full((len(queries), k), -1, np.int64)
        scores = np.full((len(queries), k), -np.inf, np.float32)
        for start in range(0, len(queries), _QUERIES):
            some = queries[start : start + _QUERIES]
            found = self._reading(partial(self._query, some, k, where, within, probes))
            of = found["query_index"].to_numpy() if "query_index" in found.column_names else None
            for q in range(len(some)):
                hits = found if of is None else found.filter(of == q)
                rows[start + q, : len(hits)] = hits["row"].to_numpy()
                scores[start + q, : len(hits)] = 1 - hits["_distance"].to_numpy()
        return Found(rows, scores)

    def _query(self, queries: np.ndarray, k: int, where: str, within: int, probes: int, table: Any) -> Any:
        query = table.search(list(queries), vector_column_name="vector").distance_type("dot")
        if probes:  # more of them by what the condition takes away of each
            query = query.nprobes(math.ceil(probes * max(table.count_rows() / within, 1)))
        else:
            query = query.bypass_vector_index()
        return query.where(where, prefilter=True).limit(k).select(["row", "_distance"]).to_arrow()

    def _reading(self, read: Callable[[Any], T]) -> T:
        """What a read finds; once more where another process took away the version that it began with."""
        for left in (3, 2, 1, 0):
            try:
                return read(self._table)
            except (OSError, RuntimeError, ValueError) as error:
                if not left:
                    raise self._damaged(error) from error
                self._open()
        raise AssertionError


def condition(current: Rows, rows: np.ndarray) -> str:
    """What holds for these rows (ascending, not empty) and for no other one, in SQL."""
    owners = np.unique(current.owners[rows])
    kept = np.flatnonzero(np.isin(current.owners, owners))
    parts = [f"user IN ({','.join(map(str, owners.tolist()))})"]
    ends = current.untils[rows]
    undated, last = bool(np.isnan(ends).any()), float(np.nanmax(ends, initial=-np.inf))
    if len(kept) > len(rows) and np.isfinite(last):
        dated = current.untils[kept]
        kept = kept[(dated <= last) | (np.isnan(dated) & undated)]
        parts.append(f"(until <= {last!r}{' OR until IS NULL' if undated else ''})")
    if len(kept) != len(rows):
        left_out = np.setdiff1d(kept, rows, assume_unique=True)
        few, word = (left_out, "NOT IN") if len(left_out) < len(rows) else (rows, "IN")
        parts.append(f"row {word} ({','.join(map(str, few.tolist()))})")
    return " AND ".join(parts)


def _listed(column: str, values: np.ndarray) -> Iterator[str]:
    """Conditions that together hold for these values."""
    for start in range(0, len(values), _LISTED):
        yield f"{column} IN ({','.join(map(str, values[start : start + _LISTED].tolist()))})"


def _module() -> Any:
    """LanceDB, or advice where it is not installed."""
    try:
        import lancedb
    except ImportError as error:
        raise UserError(
            f"LanceDB cannot be imported ({error}); pip install 'pbr-jax[lancedb]', or set retrieve.index to "
            "exact"
        ) from None
    return lancedb

"""Owners, times and answers of all documents of a store as arrays, which follow what is written."""

import sqlite3
from typing import NamedTuple

import numpy as np

from pbr_jax.base.types import UserError
from pbr_jax.corpus.schema import FORGOTTEN, GONE, SHARED

_TABLE = np.dtype([("user", "i4"), ("time", "f8"), ("until", "f8"), ("answer", "i8")])
_UNSORTED = 8  # rows are sorted by user again where more than one in so many is not


class Shared(NamedTuple):
    """The shared documents: rows, ascending; the end of the latest date, -inf where none has one; and whether
    any of them holds an answer."""

    rows: np.ndarray
    until: float
    answers: bool


class Columns(NamedTuple):
    """One state of a store in memory; never changed once it is made.

    `table` has a record for every row that was ever given. `order` are the first rows by user, and `starts`
    where those of `SHARED`, of code 0, of code 1, ... begin in it; later rows are not in it yet.
    """

    generation: int
    table: np.ndarray
    users: list[str]
    codes: dict[str, int]
    order: np.ndarray
    starts: np.ndarray
    shared: Shared

    @property
    def has_shared(self) -> bool:
        """Whether there are shared documents."""
        return len(self.shared.rows) > 0

    def code(self, user_id: str) -> int:
        """The code of a user, `SHARED` for ""; UserError for an unknown user."""
        if not user_id and self.has_shared:
            return SHARED
        if user_id not in self.codes:
            known = [name for name in self.users if not name.startswith(FORGOTTEN)]
            raise UserError(
                f"user {user_id!r} is not among the {len(known)} users of this data; "
                f"there are, for example, {', '.join(known[:5])}"
            )
        return self.codes[user_id]

    def rows(self, code: int) -> np.ndarray:
        """The rows of one user, ascending."""
        if code == SHARED:
            return self.shared.rows
        place, new = code - SHARED, self.table["user"][len(self.order) :]
        bounds = self.starts[place : place + 2]
        old = self.order[slice(*bounds)] if len(bounds) == 2 else self.order[:0]
        rows = np.concatenate([old, len(self.order) + np.flatnonzero(new == code)]) if len(new) else old
        alive = self.table["user"][rows] == code
        return rows if alive.all() else rows[alive]


def _shared(table: np.ndarray) -> Shared:
    rows = np.flatnonzero(table["user"] == SHARED)
    rows.flags.writeable = False  # every question that sees all of them is given this array
    until = np.fmax.reduce(table["until"][rows], initial=-np.inf)  # of NaN and a number the number
    return Shared(rows, float(until), bool(table["answer"][rows].any()))


_NOTHING = np.zeros(0, _TABLE)
EMPTY = Columns(0, _NOTHING, [], {}, np.zeros(0, np.int64), np.zeros(1, np.int64), _shared(_NOTHING))


def advanced(connection: sqlite3.Connection, generation: int, last: Columns = EMPTY) -> Columns:
    """The present state: the last one with the rows and users that were written since."""
    query = (
        "SELECT user, COALESCE(time, -9e999), COALESCE(until, time, -9e999), COALESCE(answer, 0) "
        "FROM documents WHERE row >= ? ORDER BY row"
    )
    new = np.fromiter(connection.execute(query, (len(last.table),)), _TABLE)
    for name in ("time", "until"):
        new[name][np.isneginf(new[name])] = np.nan
    table = np.concatenate([last.table.view("u1"), new.view("u1")]).view(_TABLE)  # bytes: a fifth of the time
    deleted = connection.execute("SELECT row FROM documents WHERE gone > ?", (last.generation,)).fetchall()
    table[[row for (row,) in deleted]] = (GONE, np.nan, np.nan, 0)
    query = (
        "SELECT code, name FROM users WHERE code >= ? UNION "
        "SELECT code, name FROM users WHERE gone > ? ORDER BY code"
    )
    users, codes = last.users.copy(), last.codes.copy()
    for code, kept in connection.execute(query, (len(users), last.generation)):
        name = f"{FORGOTTEN}{code}" if kept is None else kept
        if code < len(users):
            del codes[users[code]]
        users[code : code + 1] = [name]
        codes[name] = code
    order, starts = last.order, last.starts
    if len(table) - len(order) > len(table) // _UNSORTED:
        order = np.argsort(table["user"], kind="stable").astype(np.int64)
        starts = np.searchsorted(table["user"][order], np.arange(SHARED, len(users) + 1))
    return Columns(generation, table, users, codes, order, starts, _shared(table))

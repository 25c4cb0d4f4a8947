"""The log of remarks and of what they changed: one SQLite file beside a run's living corpus.

A remark passes `received`, `summarised`, `judged` and ends as `applied` or `refused`; every state is on disk
before the next one is worked for. Changes of documents are `events` with gapless versions, which the corpus
follows.
"""

import sqlite3
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pbr_jax.base import system_errors
from pbr_jax.base.files import open_private, private_folder
from pbr_jax.base.locks import locked
from pbr_jax.base.types import UserError

State = Literal["received", "summarised", "judged", "applied", "refused"]
Op = Literal["add", "modify", "hide", "erase"]

ANY_DATA = ""  # in place of what the documents are, once a user was forgotten in them
_IDENTITY = (0x70627272, 2)  # "pbrr" and the schema's version
_PATIENCE = 60.0  # seconds to wait for another process that is writing
_SCHEMA = """
CREATE TABLE remarks(id INTEGER PRIMARY KEY, request TEXT UNIQUE NOT NULL, at REAL NOT NULL, user TEXT,
    text TEXT, state TEXT NOT NULL, summary TEXT, verdict TEXT, route TEXT, operation TEXT, target TEXT,
    evidence TEXT, llm TEXT, prompt_hash TEXT, claim INTEGER, version INTEGER);
CREATE INDEX remarks_by_state ON remarks(state);
CREATE INDEX remarks_by_claim ON remarks(claim);
CREATE TABLE events(version INTEGER PRIMARY KEY, at REAL NOT NULL, op TEXT NOT NULL, author TEXT, store TEXT,
    document TEXT, previous TEXT, text TEXT, reason TEXT);
CREATE TABLE votes(claim INTEGER NOT NULL, author TEXT NOT NULL, UNIQUE(claim, author));
CREATE TABLE answers(key TEXT PRIMARY KEY, version INTEGER NOT NULL);
CREATE TABLE meta(name TEXT PRIMARY KEY, value);
"""
_RATINGS = (
    "CREATE TABLE IF NOT EXISTS ratings(user TEXT, question TEXT, document TEXT, value INTEGER NOT NULL, "
    "UNIQUE(user, question, document))"
)
_UPGRADE = "".join(
    f"ALTER TABLE events DROP COLUMN {name};" for name in ("salt", "seal", "chain")
)  # of version 1


class Remark(NamedTuple):
    """What a user said, and how far it has come; `claim`: the remark that first made the same claim."""

    id: int
    request: str
    at: float
    user: str | None
    text: str | None
    state: State
    summary: str | None
    verdict: str | None = None
    route: str | None = None
    operation: str | None = None
    target: str | None = None
    evidence: str | None = None
    llm: str | None = None
    prompt_hash: str | None = None
    claim: int | None = None
    version: int | None = None


class Rating(NamedTuple):
    """What a user thought of a document as evidence for a question: 1 good, -1 bad."""

    question: str
    document: str
    value: int


class Event(NamedTuple):
    """One change of one document; `store`: its owner, "" for the shared store. `previous`: the document that
    a modification replaces. An erasure without a document is that of a user."""

    version: int
    at: float
    op: Op
    author: str | None
    store: str | None
    document: str | None
    previous: str | None
    text: str | None
    reason: str | None


class Log:
    """The log in a file, which is made where there is none.

    `data` names what the run's documents are; None: they do not matter. Raises UserError for a log of other
    data, and a damaged one.
    """

    def __init__(self, path: Path, data: str | None) -> None:
        self.path, self._lock = path, threading.RLock()
        private_folder(path.parent)
        with locked(path.with_name(f"{path.name}.making")):
            if not path.exists():
                open_private(path).close()
            with self.connected() as sql:
                identity = _identity(sql)
                if identity in ((0, 0), (_IDENTITY[0], 1)):
                    sql.executescript(
                        f"PRAGMA journal_mode=WAL; BEGIN IMMEDIATE; {_UPGRADE if any(identity) else _SCHEMA}"
                        f"PRAGMA application_id={_IDENTITY[0]}; PRAGMA user_version={_IDENTITY[1]};"
                    )
                    if not any(identity):
                        self.flag(sql, "data", data)
                    sql.execute("COMMIT")
                if _identity(sql) != _IDENTITY:
                    raise UserError(f"{path} is no log of remarks of this version; move it away")
                sql.execute(_RATINGS)
                if self._meta(sql, "data") == ANY_DATA and data is not None:
                    self.flag(sql, "data", data)
                if data is not None and self._meta(sql, "data") != data:
                    raise UserError(
                        f"{path} holds remarks on other data than this run's; move it away, or put back the "
                        "log that belongs to this run"
                    )

    @contextmanager
    def connected(self) -> Iterator[sqlite3.Connection]:
        """The connection, for one thread at a time, without transactions of its own."""
        try:
            with self._lock, system_errors.located(self.path):
                yield self._connection
        except OSError as error:
            code = getattr(error.__cause__, "sqlite_errorcode", 0) & 0xFF
            if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise UserError(f"{self.path} is damaged or no log of remarks; put back a copy") from error
            raise

    @cached_property
    def _connection(self) -> sqlite3.Connection:
        """Kept open: SQLite moves its write-ahead log into the file when the last connection is closed."""
        uri = f"{self.path.absolute().as_uri()}?mode=rw"
        sql = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=_PATIENCE, check_same_thread=False)
        weakref.finalize(self, sql.close)
        sql.execute("PRAGMA synchronous=FULL")  # every commit is on disk
        sql.execute("PRAGMA secure_delete=ON")
        sql.execute("PRAGMA temp_store=MEMORY")
        return sql

    @contextmanager
    def changing(self) -> Iterator[sqlite3.Connection]:
        """A transaction: all that is done inside is kept as a whole, or nothing is."""
        with self.connected() as sql:
            sql.execute("BEGIN IMMEDIATE")
            try:
                yield sql
                sql.execute("COMMIT")
            finally:
                sql.rollback()

    # -- remarks ---------------------------------------------------------------------------------------

    def receive(self, request: str, user: str, text: str) -> Remark:
        """The remark of a request, which is on disk when this returns, once however often it is submitted.

        Raises UserError where the request was another user's, or for another text.
        """
        with self.changing() as sql:
            sql.execute(
                "INSERT OR IGNORE INTO remarks(request, at, user, text, state) VALUES (?,?,?,?,'received')",
                (request, time.time(), user, text),
            )
            (remark,) = self._remarks(sql, "request=?", request)
        if remark.user != user or remark.text not in (text, None):
            raise UserError(
                f"request {request!r} was made before with another user or text; give this one its own"
            )
        return remark

    def remark(self, id: int) -> Remark:
        """The remark as it is now."""
        with self.connected() as sql:
            return self._remarks(sql, "id=?", id)[0]

    def remarks(self, condition: str = "1", *values: Any) -> list[Remark]:
        """Remarks in the order in which they came, those of a condition in SQL."""
        with self.connected() as sql:
            return self._remarks(sql, condition, *values)

    def advance(self, remark: Remark, state: State, **values: Any) -> Remark:
        """The remark in its next state, with what is known by then."""
        with self.changing() as sql:
            self.set(sql, remark.id, state=state, **values)
        return self.remark(remark.id)

    @staticmethod
    def set(sql: sqlite3.Connection, id: int, **values: Any) -> None:
        """Overwrites columns of a remark."""
        names = ", ".join(f"{name}=?" for name in values)
        sql.execute(f"UPDATE remarks SET {names} WHERE id=?", (*values.values(), id))

    @staticmethod
    def _remarks(sql: sqlite3.Connection, condition: str, *values: Any) -> list[Remark]:
        query = f"SELECT {', '.join(Remark._fields)} FROM remarks WHERE {condition} ORDER BY id"
        return [Remark(*row) for row in sql.execute(query, values)]

    # -- ratings ---------------------------------------------------------------------------------------

    def rate(self, user: str, ratings: Sequence[Rating]) -> None:
        """Keeps ratings, each in the place of an earlier one; 0 takes one back."""
        with self.changing() as sql:
            sql.executemany("REPLACE INTO ratings VALUES (?,?,?,?)", [(user, *one) for one in ratings])
            sql.execute("DELETE FROM ratings WHERE value=0")

    def ratings(self, user: str) -> list[Rating]:
        """A user's ratings, the newest last."""
        query = "SELECT question, document, value FROM ratings WHERE user=? ORDER BY rowid"
        with self.connected() as sql:
            return [Rating(*row) for row in sql.execute(query, (user,))]

    def rated(self) -> list[tuple[str, str]]:
        """Who has rated which documents."""
        with self.connected() as sql:
            return sql.execute("SELECT user, document FROM ratings").fetchall()

    def forget_ratings(self, rows: Iterable[tuple[str, str]]) -> None:
        """Deletes users' ratings of documents, with all bytes of them."""
        with self.changing() as sql:
            sql.executemany("DELETE FROM ratings WHERE user=? AND document=?", rows)
            self.flag(sql, "erased", 1)
        self.purge()

    # -- events ----------------------------------------------------------------------------------------

    def append(
        self,
        sql: sqlite3.Connection,
        op: Op,
        *,
        author: str,
        store: str,
        document: str | None,
        previous: str | None = None,
        text: str | None = None,
        reason: str = "",
    ) -> int:
        """Adds an event inside a transaction; its version."""
        version = 1 + sql.execute("SELECT COALESCE(MAX(version), 0) FROM events").fetchone()[0]
        event = Event(version, time.time(), op, author, store, document, previous, text, reason)
        sql.execute(f"INSERT INTO events VALUES ({','.join('?' * len(event))})", event)
        return version

    def events(self, after: int = 0) -> list[Event]:
        """The events after a version, in order."""
        query = f"SELECT {', '.join(Event._fields)} FROM events WHERE version > ? ORDER BY version"
        with self.connected() as sql:
            return [Event(*row) for row in sql.execute(query, (after,))]

    @property
    def version(self) -> int:
        """That of the latest event; 0: none."""
        with self.connected() as sql:
            return sql.execute("SELECT COALESCE(MAX(version), 0) FROM events").fetchone()[0]

    # -- what is erased --------------------------------------------------------------------------------

    def note_answers(self, keys: Sequence[str]) -> bool:
        """Notes the keys of cached answers, whose prompts may hold what the corpus has by now; whether there
        is anything."""
        if version := self.version:
            with self.changing() as sql:
                sql.executemany(
                    "INSERT INTO answers VALUES (?,?) "
                    "ON CONFLICT(key) DO UPDATE SET version=excluded.version",
                    [(key, version) for key in keys],
                )
        return version > 0

    @property
    def has_erased(self) -> bool:
        """Whether bytes of what was erased may still be in the files."""
        with self.connected() as sql:
            return bool(self._meta(sql, "erased"))

    @staticmethod
    def flag(sql: sqlite3.Connection, name: str, value: Any) -> None:
        """Keeps a value of the log itself."""
        sql.execute("INSERT OR REPLACE INTO meta VALUES (?,?)", (name, value))

    def purge(self) -> None:
        """Writes the log anew without what was erased since the last time, so that no byte of that is left
        in its files. Raises UserError where somebody reads an older state for longer than a minute."""
        with self.connected() as sql:
            if not self._meta(sql, "erased"):
                return
            sql.execute("VACUUM")
            if sql.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                raise UserError(
                    f"{self.path} is read by another process, so erased bytes are still in its files; they "
                    "go with the next command on this run"
                )
            self.flag(sql, "erased", 0)
            sql.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    @staticmethod
    def _meta(sql: sqlite3.Connection, name: str) -> Any:
        found = sql.execute("SELECT value FROM meta WHERE name=?", (name,)).fetchone()
        return None if found is None else found[0]


def _identity(sql: sqlite3.Connection) -> tuple[int, ...]:
    names = ("application_id", "user_version")
    return tuple(sql.execute(f"PRAGMA {name}").fetchone()[0] for name in names)

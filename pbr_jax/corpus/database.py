"""How the files of a store are opened, copied, and freed of what was deleted.

A living store is opened by SQLite alone. POSIX drops all locks that a process holds on a file when
the process closes any handle of it: SQLite's connections take care of each other, `open` and `close` do not.
"""

import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from pbr_jax.base import system_errors
from pbr_jax.base.locks import locked
from pbr_jax.base.types import UserError

PATIENCE = 60  # seconds to wait for readers of an older state before what was deleted is overwritten
_PAUSE = 0.02  # seconds between looks whether they have ended
_FROZEN = "ro&immutable=1"  # the mode of a file to which nobody writes
_LATER = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
_UNWRITABLE = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)


def connect(path: Path, mode: str, timeout: int = PATIENCE) -> sqlite3.Connection:
    """A connection of SQLite's `mode` that any thread may use, without transactions of its own."""
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=timeout, check_same_thread=False)


class Database:
    """The connections of this process to a store.

    `living`: whether it is written to. `mode`: how SQLite opens it here; `late`: whether what was deleted may
    still be in its files.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.late = path, False
        self.living, self.mode = _kind(path)
        self._frozen = _signature(path) if self.mode == _FROZEN else None
        self._idle: list[sqlite3.Connection] = []  # connections that nobody reads with
        weakref.finalize(self, _close, self._idle)
        self._local = threading.local()
        self.purge()  # what a killed deletion left

    def close(self) -> None:
        """Closes the files; a later call opens them again."""
        _close(self._idle)
        self.purge()

    @property
    def is_reading(self) -> bool:
        """Whether this thread is inside `reading`."""
        return getattr(self._local, "connection", None) is not None

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """All that this thread reads inside is of one state, whatever others write meanwhile."""
        if self.is_reading:
            yield self._local.connection
            return
        began = time.monotonic()
        with system_errors.located(self.path):
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = connect(self.path, self.mode)
            if self.living:
                connection.execute("BEGIN")
                connection.execute(
                    "SELECT value FROM summary"
                ).fetchone()  # the state is that of the first look
        self._local.connection = connection
        try:
            yield connection
        finally:
            self._local.connection = None
            connection.rollback()
            self._idle.append(connection)
            if self.late or time.monotonic() - began > PATIENCE:  # a deletion has waited for this in vain
                self.purge()
        if self._frozen not in (None, _signature(self.path)):
            raise UserError(f"{self.path} may only be read here, and has changed meanwhile; open it again")

    def purge(self, patience: int = 0) -> None:
        """Overwrites what was deleted, unless an older state is read for longer than `patience` seconds."""
        if self.living and self.mode == "rw" and self.path.is_file():
            self.late = not _purged(self.path, patience)


def _kind(path: Path) -> tuple[bool, str]:
    """Whether a store is living, and the mode in which this process may open it."""
    writable = all(os.access(place, os.W_OK) for place in (path, path.parent))
    with system_errors.located(path):
        try:
            with closing(connect(path, "ro")) as connection:
                (journal,) = connection.execute("PRAGMA journal_mode").fetchone()
        except sqlite3.OperationalError as error:
            log = path.with_name(f"{path.name}-wal")
            if writable or error.sqlite_errorcode & 0xFF not in _UNWRITABLE:
                raise
            if log.exists() and log.stat().st_size:
                raise UserError(
                    f"{path} may only be read here, and {log.name} holds changes that are not in it yet; "
                    "have its owner open the run once, or copy its folder to a place that you may write to"
                ) from error
            return True, _FROZEN
    living = journal == "wal"
    return living, "rw" if living and writable else "ro"


def _purged(path: Path, patience: int) -> bool:
    """Whether no byte of what was deleted is in a living store's files any more.

    Waits at most `patience` seconds for those who read an older state, and for others who do the same.
    """
    end = time.monotonic() + patience
    while not _truncated(path):
        if time.monotonic() >= end:
            return False
        time.sleep(_PAUSE)
    return True


def _truncated(path: Path) -> bool:
    """Whether the write-ahead log is in the database file, and empty; False where someone reads from it, and
    where the disk does not take it."""
    with system_errors.located(path), closing(connect(path, "rw", 0)) as connection:
        try:
            return connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0] == 0
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in _LATER:
                raise
            return False


@contextmanager
def connected(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that overwrites what is deleted."""
    with system_errors.located(path), closing(connect(path, "rw")) as connection:
        connection.execute("PRAGMA secure_delete=ON")
        yield connection


def copy(source: sqlite3.Connection, path: Path) -> None:
    """Writes a living copy to a new file, of mode 0600. Raises UserError where the file is there."""
    partial = path.with_name(f".{path.name}.partial")
    with system_errors.located(path), locked(path.with_name(f"{path.name}.lock")):
        if path.exists():
            raise UserError(f"{path} is there already; open it, or choose another file for the copy")
        partial.unlink(missing_ok=True)
        partial.touch(mode=0o600)
        with closing(sqlite3.connect(partial)) as target:
            source.backup(target)
            target.execute("INSERT OR REPLACE INTO summary VALUES ('identity', hex(randomblob(16)))")
            target.execute(
                "INSERT OR REPLACE INTO summary SELECT iif(name='rows', 'origin_rows', 'origin'), value "
                "FROM summary WHERE name IN ('content', 'rows')"
            )
            target.commit()
            target.execute("PRAGMA journal_mode=WAL")
        os.replace(partial, path)


def _close(connections: list[sqlite3.Connection]) -> None:
    while connections:
        connections.pop().close()


def _signature(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns

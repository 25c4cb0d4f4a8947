"""The database of answers on disk, with its exports.

An answer is on disk as soon as it is added, and the first one of its key is kept. Answers are private: all
files are of mode 0600.
"""

import contextlib
import json
import re
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from pbr_jax.base import terminal
from pbr_jax.base.files import (  # fmt: skip
    cache_folder,
    open_private,
    parse_json,
    private_folder,
    refuse_foreign,
    tighten,
    write_lines,
)
from pbr_jax.base.locks import locked, require_locks
from pbr_jax.base.types import UserError
from pbr_jax.distributed import processes
from pbr_jax.llm.answer_values import Stored, answer, checksum, stored

_SCHEMA = (
    "CREATE TABLE answers(key TEXT PRIMARY KEY, kind TEXT NOT NULL, value TEXT NOT NULL, "
    "checksum TEXT NOT NULL)"
)
_IDENTITY = (0x7062726A, 2)  # "pbrj" and the schema's version, kept in the database's header
_VERSION = "".join(
    f"PRAGMA {name}={value};" for name, value in zip(("application_id", "user_version"), _IDENTITY)
)
_INSERT = "INSERT OR IGNORE INTO answers VALUES (?,?,?,?)"
_SELECT = "SELECT key, kind, value, checksum FROM answers"
_COUNT = "answers"  # the only field of an export's last line: how many there are
_PATIENCE = 60.0  # seconds to wait for another process that is writing
_TOGETHER = 500  # keys in one query
_LONGEST = 64 << 20  # bytes of a file's first line that are read to see whether it is an export
_NO_PLACE = (
    sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
)  # fmt: skip
_TAKEN = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)
_making = threading.Lock()


def location() -> Path:
    """The file of the cache of answers, in the folder of all artefacts."""
    return cache_folder() / "llm.sqlite"


class Merged(NamedTuple):
    """What an import did: answers that are new, were there, and were there with another value (kept)."""

    added: int
    known: int
    conflicts: int


class Answers:
    """The database: SQLite, one row an answer. Any number of processes and threads may share the file.

    Every operation opens its own connection (about 2 ms), so none is ever shared or left open. All methods
    raise UserError for a file that is damaged, foreign, locked for long, or cannot be written.
    """

    def __init__(self, file: Path) -> None:
        self.file = file

    def find(self, keys: Sequence[str], kind: str | None = None) -> dict[str, Any]:
        """The stored answers by key, without damaged ones and those of another kind, which are noted."""
        if not processes.leads():
            return _read_back(kind, processes.ask("find answers", [list(keys), kind]))
        with self._connection() as connection:
            answers, damaged = self._find(connection, keys, kind)
        self._note(len(damaged))
        return answers

    def add(self, kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Stores new answers, durably, and returns the one that stands for each key: the first whole one.
        One that no backend may give (`answer_values`) is a UserError; those beside it are stored."""
        if not processes.leads():
            return _read_back(kind, processes.ask("add answers", [kind, dict(values)]))
        rows, refused = [], []
        for key, value in values.items():
            try:
                rows.append(stored(key, kind, json.dumps(answer(kind, value))))
            except ValueError as error:
                refused.append(str(error))
        standing: dict[str, Any] = {}
        if rows:
            with self._connection() as connection:
                connection.execute("BEGIN IMMEDIATE")
                self._insert(connection, rows)
                connection.execute("COMMIT")
                standing, _ = self._find(connection, [one.key for one in rows], kind)
        if refused:
            raise UserError(
                f"{len(refused)} of {len(values)} answers are not kept ({refused[0]}); mend the server, or "
                "ask for others with another seed"
            )
        return standing

    def erase(self, keys: Iterable[str]) -> int:
        """Overwrites and deletes answers, in SQLite's log too; how many there were."""
        if not self.file.is_file():
            return 0
        gone = [(key,) for key in keys]
        with self._connection() as connection:
            connection.execute("PRAGMA secure_delete=ON")
            connection.execute("BEGIN IMMEDIATE")
            blank = "UPDATE answers SET value=printf('%*s', length(CAST(value AS BLOB)), '') WHERE key=?"
            connection.executemany(blank, gone)  # where it stands: a page that is freed is not all there is
            erased = connection.executemany("DELETE FROM answers WHERE key=?", gone).rowcount
            connection.execute("COMMIT")
            if connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                raise UserError(
                    f"{self.file} has been read for {_PATIENCE:g} s, and its log holds what was deleted; "
                    "let that process finish, then run again"
                )
        return max(erased, 0)

    def _insert(self, connection: sqlite3.Connection, rows: Sequence[Stored]) -> None:
        """Adds rows, all of one kind, where there is none of their key, or a damaged one."""
        _, damaged = self._find(connection, [one.key for one in rows], rows[0].kind)
        connection.executemany("DELETE FROM answers WHERE key=?", [(key,) for key in damaged])
        connection.executemany(_INSERT, rows)

    def export(self, path: Path) -> int:
        """Writes all answers as JSON lines sorted by key, whole or not at all; returns how many. Replaces
        an older export; raises UserError where the file is anything else, and leaves it."""
        if not self.file.is_file():
            raise UserError(f"there is no cache of answers at {self.file}; PBR_JAX_CACHE names its folder")
        count = damaged = 0

        def lines(connection: sqlite3.Connection) -> Iterator[str]:
            nonlocal count, damaged
            for row in connection.execute(f"{_SELECT} ORDER BY key"):
                if _parsed(row) is None:
                    damaged += 1
                    continue
                count += 1
                key, kind, value, sum_ = row
                yield f'{{"key": "{key}", "kind": "{kind}", "value": {value}, "checksum": "{sum_}"}}\n'
            yield f'{{"{_COUNT}": {count}}}\n'

        with self._connection() as connection:
            _write(path, lines(connection))
        self._note(damaged)
        return count

    def merge(self, path: Path) -> Merged:
        """Adds the answers of an export, all or none; what is there already is kept."""
        counts = [0, 0, 0]
        with self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            for new in _read(path):
                there = connection.execute(f"{_SELECT} WHERE key=?", new[:1]).fetchone()
                if there is not None and _parsed(there) is not None:
                    counts[1 if there == new else 2] += 1
                    continue
                self._insert(connection, [new])
                counts[0] += 1
            connection.execute("COMMIT")
        return Merged(*counts)

    def _find(
        self, connection: sqlite3.Connection, keys: Sequence[str], kind: str | None
    ) -> tuple[dict[str, Any], list[str]]:
        """The whole answers by key, and the keys of damaged ones."""
        values: dict[str, Any] = {}
        rest = iter(keys)
        while some := list(islice(rest, _TOGETHER)):
            query = f"{_SELECT} WHERE key IN ({','.join('?' * len(some))})"
            for row in connection.execute(query, some):
                values[row[0]] = _parsed(row) if kind in (None, row[1]) else None
        whole = {key: value for key, value in values.items() if value is not None}
        return whole, [key for key in values if key not in whole]

    def _note(self, damaged: int) -> None:
        if damaged:
            terminal.err(
                f"llm: note: {damaged} answers in {self.file} are damaged (their checksums or kinds "
                "differ) and count as missing"
            )

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        try:
            self._make_private()
            opened = sqlite3.connect(self.file, timeout=_PATIENCE, isolation_level=None)
            opened.text_factory = _text
            with contextlib.closing(opened) as connection:  # what is not committed is undone
                self._prepare(connection)
                yield connection
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # without one: text that cannot be decoded
            if code in _TAKEN:
                raise UserError(
                    f"{self.file} was locked by another process for {_PATIENCE:g} s ({error}); "
                    f"let that process finish, then run again"
                ) from error
            raise (self._no_place(str(error)) if code in _NO_PLACE else self._damaged(str(error))) from error
        except OSError as error:
            raise self._no_place(error.strerror or str(error)) from error

    def _make_private(self) -> None:
        """The database before SQLite makes it: SQLite gives the files that it adds the database's mode."""
        private_folder(self.file.parent)
        require_locks(self.file.parent)
        with _making:  # closing a file undoes the locks that SQLite has on it in other threads
            if not self.file.exists():
                open_private(self.file).close()
        for suffix in ("", "-wal", "-shm"):  # those of older versions
            tighten(self.file.with_name(self.file.name + suffix))

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Makes the schema in an empty file; refuses a file that holds something else."""
        if _identity(connection) == (0, 0):
            with locked(self.file.with_suffix(".lock")):
                tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
                if _identity(connection) == (0, 0) and tables == 0:
                    connection.execute("PRAGMA journal_mode=WAL")
                    connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA}; {_VERSION} COMMIT;")
        application, version = _identity(connection)
        if application != _IDENTITY[0]:
            raise UserError(
                f"{self.file} is a database, but not a cache of answers; move it away, "
                f"or set PBR_JAX_CACHE to another folder"
            )
        if version != _IDENTITY[1]:
            raise UserError(
                f"{self.file} has version {version} of the cache, this program reads version {_IDENTITY[1]}; "
                f"export it with the program that wrote it, move it away, and import the export"
            )

    def _damaged(self, reason: str) -> UserError:
        return UserError(
            f"{self.file} is damaged or not a cache of answers ({reason}); move it away and run again, "
            f"after pbr-jax cache import FILE where there is an export"
        )

    def _no_place(self, reason: str) -> UserError:
        return UserError(
            f"cannot write {self.file}: {reason}; free some space, make it writable, "
            f"or set PBR_JAX_CACHE to another folder"
        )


# Of several hosts one alone opens the file: SQLite's log does not work on disks that hosts share.
processes.serve("find answers", lambda of: Answers(location()).find(*of))
processes.serve("add answers", lambda of: Answers(location()).add(*of))


def _read_back(kind: str | None, values: Mapping[str, Any]) -> dict[str, Any]:
    """Answers as JSON gives them."""
    return {key: answer(kind, value) for key, value in values.items()}


def _identity(connection: sqlite3.Connection) -> tuple[int, int]:
    names = ("application_id", "user_version")
    application, version = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
    return application, version


def _text(content: bytes) -> str:
    """A text of the database; bytes that are no UTF-8 survive, so the checksum differs."""
    return content.decode("utf-8", "surrogateescape")


def _parsed(row: Sequence[Any]) -> Any:
    """The answer in a row; None where that is damaged."""
    key, kind, value, expected = row
    try:
        return answer(kind, parse_json(value)) if checksum(key, kind, value) == expected else None
    except ValueError:
        return None


def _read(path: Path) -> Iterator[Stored]:
    """The rows of an export, each checked, and their number."""
    count, announced = 0, None
    try:
        with path.open("rb") as file:
            for number, entry in enumerate(file, 1):
                try:
                    row = _line(entry)
                    if announced is not None:
                        raise ValueError("a line after the one that says how many answers there are")
                    if isinstance(row, Stored):
                        count += 1
                        yield row
                    elif row != count:
                        raise ValueError(f"{row!r:.40} answers are announced, and {count} are there")
                    else:
                        announced = row
                except ValueError as error:
                    raise UserError(f"{path}, line {number}: {error}; nothing was imported") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; give an export of the cache") from error
    if announced is None:
        raise UserError(f"{path}: its last line is missing, it was cut off; nothing was imported")


def _line(entry: bytes) -> Any:
    """The row in a line of an export; in the last line the number of rows. ValueError: damage."""
    record = parse_json(entry)
    if isinstance(record, dict) and set(record) == {_COUNT}:
        return record[_COUNT]
    if not isinstance(record, dict) or set(record) - {"checksum"} != {"key", "kind", "value"}:
        raise ValueError("want one object with key, kind, value and checksum")
    key, kind = record["key"], record["kind"]
    if not isinstance(key, str) or not re.fullmatch("[0-9a-f]{64}", key):
        raise ValueError(f"key {key!r:.80}, want 64 hexadecimal digits")
    row = stored(key, kind, json.dumps(answer(kind, record["value"])))
    if record.get("checksum") != row.checksum:
        raise ValueError("its checksum differs: the line is not what was exported")
    return row


def _is_export(file: BinaryIO) -> bool:
    first = file.readline(_LONGEST)
    try:
        return not first or _line(first) is not None
    except ValueError:
        return False


def _write(path: Path, lines: Iterable[str]) -> None:
    """Writes a file line by line so that it appears whole or not at all, in place of an export at most."""
    try:
        if not path.is_dir():
            refuse_foreign(path, _is_export, "choose another FILE")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_lines(path, lines)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; choose another place") from error

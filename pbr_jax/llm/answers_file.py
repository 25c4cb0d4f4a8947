"""The database of answers on disk, with its exports.

An answer is on disk as soon as it is added, and the first one of its key stands. Answers tell of users: all
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

from pbr_jax.files import (  # fmt: skip
    cache_folder,
    open_private,
    parse_json,
    private_folder,
    refuse_foreign,
    tighten,
    write_lines,
)
from pbr_jax.llm.protocol import Score
from pbr_jax.locks import locked, require_locks
from pbr_jax.types import UserError

_SCHEMA = "CREATE TABLE answers(key TEXT PRIMARY KEY, kind TEXT NOT NULL, value TEXT NOT NULL)"
_IDENTITY = (0x7062726A, 1)  # "pbrj" and the schema's version, kept in the database's header
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

    def find(self, keys: Sequence[str]) -> dict[str, Any]:
        """The answers that are there, by key."""
        with self._connection() as connection:
            return self._find(connection, keys)

    def add(self, kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Stores new answers, durably, and returns the one that stands for each key: the first.

        One that UTF-8 cannot hold is a UserError; those beside it are stored.
        """
        broken = [value for value in values.values() if not _whole(value)]
        values = {key: value for key, value in values.items() if _whole(value)}
        rows = [(key, kind, json.dumps(_answer(kind, value))) for key, value in values.items()]
        found: dict[str, Any] = {}
        if rows:
            with self._connection() as connection:
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany("INSERT OR IGNORE INTO answers VALUES (?,?,?)", rows)
                connection.execute("COMMIT")
                found = self._find(connection, list(values))
        if broken:
            raise UserError(
                f"{len(broken)} answers hold half of a surrogate pair (one: {broken[0]!a:.50}), which is "
                f"no text, and are not kept; mend the server, or ask for others with another seed"
            )
        return found

    def export(self, path: Path) -> int:
        """Writes all answers as JSON lines sorted by key, whole or not at all; returns how many.

        Replaces an older export; raises UserError where the file is anything else, and leaves it.
        """
        if not self.file.is_file():
            raise UserError(f"there is no cache of answers at {self.file}; PBR_JAX_CACHE names its folder")
        count = 0

        def lines(connection: sqlite3.Connection) -> Iterator[str]:
            nonlocal count
            for key, kind, value in connection.execute("SELECT key, kind, value FROM answers ORDER BY key"):
                self._parsed(key, kind, value)
                count += 1
                yield f'{{"key": "{key}", "kind": "{kind}", "value": {value}}}\n'

        with self._connection() as connection:
            _write(path, lines(connection))
        return count

    def merge(self, path: Path) -> Merged:
        """Adds the answers of an export, all or none; what is there already is kept."""
        counts = [0, 0, 0]
        with self._connection() as connection:
            connection.execute("BEGIN IMMEDIATE")
            for row in _read(path):
                if connection.execute("INSERT OR IGNORE INTO answers VALUES (?,?,?)", row).rowcount:
                    counts[0] += 1
                    continue
                query = "SELECT key, kind, value FROM answers WHERE key=?"
                counts[1 if connection.execute(query, row[:1]).fetchone() == row else 2] += 1
            connection.execute("COMMIT")
        return Merged(*counts)

    def _find(self, connection: sqlite3.Connection, keys: Sequence[str]) -> dict[str, Any]:
        found, rest = {}, iter(keys)
        while some := list(islice(rest, _TOGETHER)):
            query = f"SELECT key, kind, value FROM answers WHERE key IN ({','.join('?' * len(some))})"
            found |= {row[0]: self._parsed(*row) for row in connection.execute(query, some)}
        return found

    def _parsed(self, key: str, kind: str, value: str) -> Any:
        try:
            return _answer(kind, parse_json(value))
        except ValueError as error:
            raise self._damaged(f"answer {key}: {error}") from error

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        try:
            self._make_private()
            opened = sqlite3.connect(self.file, timeout=_PATIENCE, isolation_level=None)
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
                    names = zip(("application_id", "user_version"), _IDENTITY)
                    pragmas = "".join(f"PRAGMA {name}={value};" for name, value in names)
                    connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA}; {pragmas} COMMIT;")
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

    def _damaged(self, found: str) -> UserError:
        return UserError(
            f"{self.file} is damaged or not a cache of answers ({found}); move it away and run again, "
            f"after pbr-jax cache import FILE where there is an export"
        )

    def _no_place(self, found: str) -> UserError:
        return UserError(
            f"cannot write {self.file}: {found}; free some space, make it writable, "
            f"or set PBR_JAX_CACHE to another folder"
        )


def _identity(connection: sqlite3.Connection) -> tuple[int, int]:
    names = ("application_id", "user_version")
    application, version = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
    return application, version


def _whole(value: Any) -> bool:
    """Whether an answer is no text, or one that UTF-8 can hold."""
    try:
        if isinstance(value, str):
            value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _answer(kind: Any, value: Any) -> Any:
    """An answer in its one form, from what a backend or JSON gives; ValueError for anything else.

    Beside texts and scores: a `row` of numbers, `rows` of them, and `tokens` of an answer.
    """
    match kind, value:
        case "text", str() if _whole(value):
            return value
        case "score", [int() | float() as total, int() as tokens] if tokens >= 0:
            return Score(float(total), tokens)
        case "row", list() if _numbers(value, float):
            return list(map(float, value))
        case "rows", list() if all(isinstance(row, list) and _numbers(row, float) for row in value):
            return [list(map(float, row)) for row in value]
        case "tokens", list() if _numbers(value, int):
            return value
    raise ValueError(
        f"kind {kind!r} with value {value!r:.60}, want a text, a score [total, tokens], a row of "
        "numbers, rows, or tokens"
    )


def _numbers(row: list[Any], kind: type) -> bool:
    return all(type(x) is int or type(x) is kind for x in row)


def _read(path: Path) -> Iterator[tuple[str, str, str]]:
    """The rows of an export, each checked."""
    try:
        with path.open("rb") as file:
            for number, entry in enumerate(file, 1):
                try:
                    yield _row(entry)
                except ValueError as error:
                    raise UserError(f"{path}, line {number}: {error}; nothing was imported") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; give an export of the cache") from error


def _row(entry: bytes) -> tuple[str, str, str]:
    record = parse_json(entry)
    if not isinstance(record, dict) or set(record) != {"key", "kind", "value"}:
        raise ValueError("want one object with key, kind and value")
    key = record["key"]
    if not isinstance(key, str) or not re.fullmatch("[0-9a-f]{64}", key):
        raise ValueError(f"key {key!r:.80}, want 64 hexadecimal digits")
    return key, record["kind"], json.dumps(_answer(record["kind"], record["value"]))


def _is_export(file: BinaryIO) -> bool:
    """Whether a file is an export, by its first line, or empty."""
    first = file.readline(_LONGEST)
    try:
        return not first or bool(_row(first))
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

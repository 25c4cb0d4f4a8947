"""The database of answers on disk, with its exports.

An answer is on disk as soon as it is added, and the first one of its key is kept. Answers are private: all
files are of mode 0600. What a backend refuses to return is refused here too, whether a backend, an import or
the database gives it.
"""

import contextlib
import hashlib
import json
import re
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from pbr_jax.base import system_errors, terminal
from pbr_jax.base.files import (
    cache_folder,
    open_private,
    parse_json,
    private_folder,
    refuse_foreign,
    tighten,
    written,
)
from pbr_jax.base.locks import locked, require_locks
from pbr_jax.base.system_errors import located
from pbr_jax.base.types import UserError
from pbr_jax.llm.protocol import Score

_SCHEMA = (
    "CREATE TABLE answers(key TEXT PRIMARY KEY, kind TEXT NOT NULL, value TEXT NOT NULL, "
    "checksum TEXT NOT NULL)"
)
_MODELS = "CREATE TABLE IF NOT EXISTS models(key TEXT PRIMARY KEY, model TEXT NOT NULL) WITHOUT ROWID"
_IDENTITY = {"application_id": 0x7062726A, "user_version": 2}  # in the header: "pbrj", the schema's version
_VERSION = "".join(f"PRAGMA {name}={value};" for name, value in _IDENTITY.items())
_PUT = "INSERT OR REPLACE INTO answers VALUES (?,?,?,?)"
_SELECT = "SELECT key, kind, value, checksum FROM answers"
_COUNT = "answers"  # the only field of an export's last line: how many there are
_PATIENCE = 60.0  # seconds to wait for another process that is writing
_TOGETHER = 500  # keys in one query
_LONGEST = 64 << 20  # bytes of a file's first line that are read to see whether it is an export
_ROUNDING = 1e-4  # nats a token by which sums of log-probabilities may be over 0
_LOWEST = -1e300  # of a log-probability: 100,000 of them still have a sum
_making = threading.Lock()


def location() -> Path:
    """The file of the cache of answers, in the folder of all artefacts."""
    return cache_folder() / "llm.sqlite"


def checked(kind: Any, value: Any) -> Any:
    """An answer in its one form, from what a backend or JSON gives; ValueError for anything else.

    Kinds: a `text`; a `score` of log-probabilities in nats and the `row` of each token's; `rows` of
    attention, which is never negative; the `tokens` of an answer.
    """
    match kind, value:
        case "text", str():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise ValueError(f"half of a surrogate pair in {value!a:.50}, want a text") from None
            return value
        case "score", [total, int(tokens)] if _is_count(tokens) and _is_log_prob(total, tokens):
            return Score(float(total), tokens)
        case "row", list() if all(map(_is_log_prob, value)):
            return list(map(float, value))
        case "rows", list() if all(isinstance(row, list) and all(map(_is_mass, row)) for row in value):
            return [list(map(float, row)) for row in value]
        case "tokens", list() if all(map(_is_count, value)):
            return value
    raise ValueError(
        f"kind {kind!r:.40} with value {value!r:.60}, want a text, a score [total, tokens] of "
        "log-probabilities up to 0, a row of such, rows of attention, or tokens"
    )


def _is_log_prob(value: Any, tokens: int = 1) -> bool:
    """Whether it is the sum of so many log-probabilities; that of none is 0."""
    lowest, highest = (_LOWEST, _ROUNDING * tokens) if tokens else (0.0, 0.0)
    return type(value) in (int, float) and lowest <= value <= highest


def _is_mass(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < -_LOWEST


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


class Row(NamedTuple):
    """An answer in the database; `value` is JSON, `checksum` sixteen hex digits of the rest."""

    key: str
    kind: str
    value: str
    checksum: str

    @classmethod
    def of(cls, key: str, kind: Any, value: Any) -> "Row":
        """The row of an answer; ValueError for one that no backend may give."""
        text = json.dumps(checked(kind, value))
        return cls(key, kind, text, _checksum(key, kind, text))

    @property
    def answer(self) -> Any:
        """The answer; None where the row is damaged."""
        try:
            whole = self.checksum == _checksum(*self[:3])
            return checked(self.kind, parse_json(self.value)) if whole else None
        except (ValueError, TypeError):
            return None


def _checksum(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:16]


class Merged(NamedTuple):
    """What an import did: answers that are new, were there, and were there with another value (kept)."""

    added: int
    known: int
    conflicts: int


class Answers:
    """The database: SQLite, one row an answer. Any number of processes and threads may share the file, also
    from several hosts: it has no write-ahead log, which works within one host alone.

    Every operation opens its own connection (about 2 ms), so none is ever shared or left open. All methods
    raise UserError for a file that is damaged, foreign, locked for long, or cannot be written.
    """

    def __init__(self, file: Path) -> None:
        self.file = file

    def find(self, keys: Sequence[str], kind: str | None = None) -> dict[str, Any]:
        """The stored answers by key, without damaged ones and those of another kind, which are noted."""
        with self._connection() as connection:
            answers = self._find(connection, keys, kind)
        whole = {key: answer for key, answer in answers.items() if answer is not None}
        self._note(len(answers) - len(whole))
        return whole

    def add(self, kind: str, values: Mapping[str, Any], model: str = "") -> dict[str, Any]:
        """Stores new answers, durably, and returns the one that stands for each key: the first whole one.
        One that no backend may give (`checked`) is a UserError; those beside it are stored. `model`: who gave
        them, for `erase_model`."""
        rows, refused = [], []
        for key, value in values.items():
            try:
                rows.append(Row.of(key, kind, value))
            except ValueError as error:
                refused.append(str(error))
        standing: dict[str, Any] = {}
        if rows:
            with self._transaction() as connection:
                there = self._find(connection, [row.key for row in rows], kind)
                connection.executemany(_PUT, [row for row in rows if there.get(row.key) is None])
                named = [(row.key, model) for row in rows if model]
                connection.executemany("INSERT OR IGNORE INTO models VALUES (?,?)", named)
            new = {row.key: row.answer for row in rows}
            standing = new | {key: answer for key, answer in there.items() if answer is not None}
        if refused:
            raise UserError(
                f"{len(refused)} of {len(values)} answers are not kept ({refused[0]}); mend the server, or "
                "ask for others with another seed"
            )
        return standing

    def keys(self) -> set[str]:
        """The keys of all answers."""
        if not self.file.is_file():
            return set()
        with self._connection() as connection:
            return {key for (key,) in connection.execute("SELECT key FROM answers")}

    def erase(self, keys: Iterable[str]) -> int:
        """Overwrites and deletes answers; how many there were."""
        if not self.file.is_file():
            return 0
        gone = [(key,) for key in keys]
        with self._transaction() as connection:
            blank = "UPDATE answers SET value=printf('%*s', length(CAST(value AS BLOB)), '') WHERE key=?"
            connection.executemany(blank, gone)  # where it stands: a page that is freed is not all there is
            erased = connection.executemany("DELETE FROM answers WHERE key=?", gone).rowcount
            connection.executemany("DELETE FROM models WHERE key=?", gone)
        return max(erased, 0)

    def erase_model(self, model: str) -> int:
        """Erases the answers that a model of this name gave here; raises UserError if there are none."""
        names: list[str] = []
        if self.file.is_file():
            with self._transaction() as connection:
                names = [name for (name,) in connection.execute("SELECT DISTINCT model FROM models")]
                keys = [key for (key,) in connection.execute("SELECT key FROM models WHERE model=?", [model])]
            if keys:
                return self.erase(keys)
        raise UserError(
            f"{self.file} has no answers that are known to be of {model!r}; it knows those of "
            f"{', '.join(sorted(names)) or 'no model'}"
        )

    def export(self, path: Path) -> int:
        """Writes all answers as JSON lines sorted by key, whole or not at all; returns how many. Replaces
        an older export; raises UserError where the file is anything else, and leaves it."""
        if not self.file.is_file():
            raise UserError(f"there is no cache of answers at {self.file}; PBR_JAX_CACHE names its folder")
        count = damaged = 0

        def lines(connection: sqlite3.Connection) -> Iterator[str]:
            nonlocal count, damaged
            for row in map(Row._make, connection.execute(f"{_SELECT} ORDER BY key")):
                if (answer := row.answer) is None:
                    damaged += 1
                    continue
                count += 1
                yield json.dumps(row._asdict() | {"value": answer}) + "\n"
            yield json.dumps({_COUNT: count}) + "\n"

        with self._connection() as connection:
            try:
                if not path.is_dir():
                    refuse_foreign(path, _is_export, "choose another FILE")
                path.parent.mkdir(parents=True, exist_ok=True)
                with written(path) as file:
                    file.writelines(lines(connection))
            except OSError as error:
                raise UserError(f"cannot write {path}: {error.strerror}; choose another place") from error
        self._note(damaged)
        return count

    def merge(self, path: Path) -> Merged:
        """Adds the answers of an export, all or none; what is there already is kept."""
        added = equal = conflicts = 0
        with self._transaction() as connection:
            for new in _read(path):
                there = connection.execute(f"{_SELECT} WHERE key=?", new[:1]).fetchone()
                if there is None or Row._make(there).answer is None:
                    connection.execute(_PUT, new)
                    added += 1
                elif there == new:
                    equal += 1
                else:
                    conflicts += 1
        return Merged(added, equal, conflicts)

    def _find(self, connection: sqlite3.Connection, keys: Sequence[str], kind: str | None) -> dict[str, Any]:
        """The answers by key; None for damaged ones and those of another kind."""
        answers: dict[str, Any] = {}
        rest = iter(keys)
        while some := list(islice(rest, _TOGETHER)):
            query = f"{_SELECT} WHERE key IN ({','.join('?' * len(some))})"
            for row in map(Row._make, connection.execute(query, some)):
                answers[row.key] = row.answer if kind in (None, row.kind) else None
        return answers

    def _note(self, damaged: int) -> None:
        if damaged:
            terminal.err(
                f"llm: note: {damaged} answers in {self.file} are damaged (their checksums or kinds "
                "differ) and count as missing"
            )

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._connection() as connection, transaction(connection):
            connection.execute(_MODELS)
            yield connection

    @contextlib.contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        try:
            with located(self.file), opened(self.file) as connection:
                # Bytes that are no UTF-8 survive, so the checksum differs.
                connection.text_factory = lambda content: content.decode("utf-8", "surrogateescape")
                self._prepare(connection)
                yield connection
        except (sqlite3.Error, OSError) as error:
            code = getattr(error.__cause__, "sqlite_errorcode", 0) & 0xFF
            if isinstance(error, OSError) and code not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                error.filename = str(self.file)
                raise UserError(f"{system_errors.line(error)}") from error
            raise UserError(
                f"{self.file} is damaged or not a cache of answers ({error}); move it away and run again, "
                "after pbr-jax cache import FILE where there is an export"
            ) from error

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Makes the schema in an empty file; refuses a file that holds something else."""
        if not any(_identity(connection).values()):
            with locked(self.file.with_suffix(".lock")):
                tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
                if not any(_identity(connection).values()) and tables == 0:
                    connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA}; {_VERSION} COMMIT;")
        connection.execute("PRAGMA journal_mode=DELETE")  # older versions had a log
        identity, version = _identity(connection), _IDENTITY["user_version"]
        if identity["application_id"] != _IDENTITY["application_id"]:
            raise UserError(
                f"{self.file} is a database, but not a cache of answers; move it away, "
                f"or set PBR_JAX_CACHE to another folder"
            )
        if identity["user_version"] != version:
            raise UserError(
                f"{self.file} has version {identity['user_version']} of the cache, this program reads "
                f"version {version}; export it with the program that wrote it, move it away, and import the "
                "export"
            )


@contextlib.contextmanager
def opened(file: Path) -> Iterator[sqlite3.Connection]:
    """A connection to a private database, which is made where there is none; what it deletes is overwritten.

    The file is there before SQLite makes it: SQLite gives the files that it adds the database's mode."""
    private_folder(file.parent)
    require_locks(file.parent)
    with _making:  # closing a file undoes the locks that SQLite has on it in other threads
        if not file.exists():
            open_private(file).close()
    for suffix in ("", "-wal", "-shm"):  # those of older versions
        tighten(file.with_name(file.name + suffix))
    with contextlib.closing(sqlite3.connect(file, timeout=_PATIENCE, isolation_level=None)) as connection:
        connection.execute("PRAGMA secure_delete=ON")
        yield connection


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """One transaction, kept as a whole: without its end it is undone when the connection is closed."""
    connection.execute("BEGIN IMMEDIATE")
    yield
    connection.execute("COMMIT")


def _identity(connection: sqlite3.Connection) -> dict[str, int]:
    return {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in _IDENTITY}


def _read(path: Path) -> Iterator[Row]:
    """The rows of an export, each checked, and their number."""
    count, announced = 0, None
    try:
        with path.open("rb") as file:
            for number, entry in enumerate(file, 1):
                try:
                    row = _line(entry)
                    if announced is not None:
                        raise ValueError("a line after the one that says how many answers there are")
                    if isinstance(row, Row):
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
    key = record["key"]
    if not isinstance(key, str) or not re.fullmatch("[0-9a-f]{64}", key):
        raise ValueError(f"key {key!r:.80}, want 64 hexadecimal digits")
    row = Row.of(key, record["kind"], record["value"])
    if record.get("checksum") != row.checksum:
        raise ValueError("its checksum differs: the line is not what was exported")
    return row


def _is_export(file: BinaryIO) -> bool:
    first = file.readline(_LONGEST)
    try:
        return not first or _line(first) is not None
    except ValueError:
        return False

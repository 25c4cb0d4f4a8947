"""Files of our own: private, whole or not at all, and never in the place of another's.

And JSON from any source, within bounds.
"""

import ast
import json
import os
import re
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import accumulate
from pathlib import Path
from typing import IO, Any, BinaryIO

from pbr_jax.base.types import UserError

_BEGINNING = 300  # bytes in which a file of our own says that it is


def cache_folder() -> Path:
    """Where artefacts live: $PBR_JAX_CACHE unless it is empty, else the user's cache folder."""
    if chosen := os.environ.get("PBR_JAX_CACHE"):
        return Path(chosen)
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pbr_jax"
    except RuntimeError as error:
        raise UserError(f"{error}; set HOME, or PBR_JAX_CACHE to a folder") from error


def config_folder() -> Path:
    """Where the package's configs lie: inside an installed package, beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    return package / "configs" if (package / "configs").is_dir() else package.parent / "configs"


def packaged_configs() -> dict[str, str]:
    """The first line of each packaged config's docstring, by name; nothing is run."""
    descriptions, folder = {}, config_folder()
    for path in sorted(folder.rglob("*.py"), key=lambda p: (len(p.parts), p)):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        descriptions[path.relative_to(folder).with_suffix("").as_posix()] = text.partition("\n")[0]
    return descriptions


# -- what SQLite puts beside a database ----------------------------------------------------------------


def merge_logs(folder: Path) -> list[Path]:
    """Brings SQLite's write-ahead logs below a folder into their databases. The files beside databases that
    hold nothing then, and go when the databases are closed."""
    for log in folder.rglob("*-wal"):
        with suppress(sqlite3.DatabaseError):  # no log of a database, or one that is being read
            database = f"{log.with_name(log.name.removesuffix('-wal')).absolute().as_uri()}?mode=rw"
            with closing(sqlite3.connect(database, uri=True, timeout=1)) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    empty = [log for log in folder.rglob("*-wal") if log.stat().st_size == 0]
    return [path for log in empty for path in (log, log.with_name(f"{log.name[:-4]}-shm"))]


# -- files that only their owner reads -----------------------------------------------------------------


def private_folder(path: Path) -> None:
    """Makes a folder and the missing ones above it, each of mode 0700.

    Folders that exist keep their modes, but the cache folder, where `path` is in it and it is ours, is
    closed to others. Raises OSError where a folder cannot be made.
    """
    for folder in reversed([path, *path.parents]):
        folder.mkdir(mode=0o700, exist_ok=True)
    cache = cache_folder()
    if cache == path or cache in path.parents:
        tighten(cache)


def tighten(path: Path) -> None:
    """Takes the rights of group and others away from a file or folder, where it exists and is ours."""
    if not hasattr(os, "geteuid"):  # Windows knows no such rights
        return
    try:
        found = path.stat()
    except FileNotFoundError:
        return
    shared = found.st_mode & stat.S_ISVTX  # such as /tmp: the superuser owns it, everybody needs it
    if found.st_uid == os.geteuid() and found.st_mode & 0o077 and not shared:
        path.chmod(found.st_mode & 0o700)


def open_private(path: Path, mode: str = "a") -> IO[str]:
    """Opens a text file, by default for appending; one that is new is of mode 0600."""
    return open(path, mode, encoding="utf-8", opener=lambda name, flags: os.open(name, flags, 0o600))


def write_text(path: Path, text: str) -> None:
    """Writes a file of mode 0600 so that it appears whole or not at all, also after a power cut. A
    symbolic link at `path` is replaced, not followed."""
    with written(path) as file:
        file.write(text)


@contextmanager
def written(path: Path, mode: int = 0o600) -> Iterator[IO[str]]:
    """A file to write into, which appears as that of `write_text` does when the block ends without an error,
    and else not at all."""
    handle, name = tempfile.mkstemp(".partial", f".{_short(path.name)}.", path.parent)
    partial = Path(name)
    try:
        with open(handle, "w", encoding="utf-8") as file:
            partial.chmod(mode)
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        if error.filename is None:  # as of a full disk
            error.filename = str(path)
        raise
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to write into, which appears at `path` when the block ends without an error, and else not at
    all. Only its owner can read it and what it holds.

    Raises UserError where there is something at `path`, and where no folder can be made there.
    """
    if os.path.lexists(path):
        raise UserError(f"{path} is there already; choose another --out")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(".partial", f".{_short(path.name)}.", path.parent))
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; choose another --out") from error
    try:
        yield partial
        for written in (partial, *partial.rglob("*")):
            tighten(written)
        os.rename(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _short(name: str) -> str:
    """The beginning of a file's name, so that what is added stays within a file system's 255 bytes."""
    return os.fsencode(name)[:200].decode("utf-8", "ignore")


# -- files that the user named -------------------------------------------------------------------------


def replace_own(path: Path, text: str, marker: str) -> None:
    """Writes a file that is new or replaces one of ours, which keeps its mode; a new one is of mode 0600.

    `marker` stands in the first 300 bytes of what we write, and of nothing else. Raises UserError for
    anything else at `path`, left as it is, and for a place that cannot be written.
    """
    if marker.encode() not in text.encode()[:_BEGINNING]:
        raise ValueError(f"the text does not begin with its marker {marker!r}")
    refuse_unmarked(path, marker)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o600
        with written(path, mode) as file:
            file.write(text)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; choose another --out") from error


def refuse_unmarked(path: Path, marker: str) -> None:
    """Raises UserError where `replace_own` would, before the work."""
    try:
        refuse_foreign(path, lambda file: marker.encode() in file.read(_BEGINNING), "choose another --out")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; choose another --out") from error


def refuse_foreign(path: Path, own: Callable[[BinaryIO], bool], remedy: str) -> None:
    """Raises UserError where something is at `path` that is no plain file or that `own` does not know.
    Raises OSError where the file cannot be read."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISLNK(mode):
        raise UserError(f"{path} is a symbolic link, want a plain file or none; {remedy}")
    if stat.S_ISREG(mode):  # nothing else is opened: a pipe would wait
        with path.open("rb") as file:
            if own(file):
                return
    raise UserError(f"{path} exists and was not written by pbr-jax as output of this kind; {remedy}")


# -- JSON that is not trusted --------------------------------------------------------------------------

DEEPEST = 100
"""Lists and objects inside each other that JSON may have; parsers take memory and stack for each."""

LONGEST_NUMBER = 4300
"""Digits of a number in JSON; the time to read one grows with their square."""

_STEP = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NO_BRACKETS = bytes(set(range(256)) - set(_STEP))
_LONG_NUMBER = re.compile(rb"(?<![0-9])[0-9]{%d}" % (LONGEST_NUMBER + 1))


def parse_json(data: bytes | str, decoder: json.JSONDecoder = json.JSONDecoder()) -> Any:  # noqa: B008
    """The value of a JSON text in UTF-8, whose bounds (`JsonBounds`) are checked before it is parsed.
    Raises ValueError: anything else, in one line."""
    text = data if isinstance(data, str) else data.decode("utf-8-sig")
    JsonBounds().feed(text.encode("utf-8", "surrogatepass") if isinstance(data, str) else data)
    return decoder.decode(text)


class JsonBounds:
    """Checks JSON, given in pieces of any size, for the bounds that keep its parsers from harm."""

    def __init__(self) -> None:
        self._inside, self._rest, self._digits, self._depth = False, b"", b"", 0

    def feed(self, data: bytes) -> None:
        """The next piece; ValueError where nesting passes `DEEPEST` or a number `LONGEST_NUMBER`."""
        data = self._rest + data
        cut = len(data) - (len(data) - len(data.rstrip(b"\\"))) % 2  # an escape waits for its character
        data, self._rest = data[:cut], data[cut:]
        pieces = data.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')  # strings, and what is between
        bare = self._digits + b" ".join(pieces[self._inside :: 2])
        self._inside ^= len(pieces) % 2 == 0
        if _LONG_NUMBER.search(bare):
            raise ValueError(f"a number of more than {LONGEST_NUMBER} digits")
        self._digits = bare[len(bare.rstrip(b"0123456789")) :]
        steps = map(_STEP.__getitem__, bare.translate(None, _NO_BRACKETS))
        for depth in accumulate(steps, initial=self._depth):
            self._depth = depth
            if depth > DEEPEST:
                raise ValueError(f"lists or objects nested more than {DEEPEST} deep")

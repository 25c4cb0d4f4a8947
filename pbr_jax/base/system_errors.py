"""What the environment does to a program, in one line: disks, networks, limits, memory.

Libraries wrap what the system says in errors of their own, so the system's words are looked for too.
"""

import contextlib
import errno
import os
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from pbr_jax.base.types import UserError

_FAILED = "see that the disk or network share works, then run again: what is finished is kept"
_ELSEWHERE = "choose another place (--out, PBR_JAX_CACHE)"
_LIMIT = "raise the limit (ulimit -n), or lower llm.concurrency"
_ADVICE = {
    **dict.fromkeys(("ENOSPC", "EDQUOT", "EFBIG"), f"free some space or {_ELSEWHERE}"),
    **dict.fromkeys(("EACCES", "EPERM", "EROFS"), f"change its permissions or {_ELSEWHERE}"),
    **dict.fromkeys(("ENOENT", "ENOTDIR", "EISDIR", "ELOOP", "EEXIST"), f"check the path, or {_ELSEWHERE}"),
    "EBUSY": "let the process that holds it finish, then run again",
    "ENAMETOOLONG": "choose a shorter name: most file systems allow 255 bytes",
    **dict.fromkeys(("EMFILE", "ENFILE"), _LIMIT),
    **dict.fromkeys(("ENOLCK", "ENOSYS", "ENOTSUP", "EOPNOTSUPP"), f"{_ELSEWHERE}, on a local disk"),
    "ENOMEM": "free some memory, or lower batch sizes",
}
_NUMBERS = {getattr(errno, name): advice for name, advice in _ADVICE.items() if hasattr(errno, name)}
_WORDS = re.compile(r"(?:os error |errno |os_error_code=')(\d+)", re.I)  # of Rust, Python, tensorstore
_SPOKEN = ("ENOSPC", "EDQUOT", "EIO", "ESTALE", "EMFILE", "EROFS", "EACCES", "ENAMETOOLONG", "EFBIG")
_FULL = re.compile("requested and|enough free space")  # of NumPy, which gives no number
_MEMORY = re.compile(r"RESOURCE_EXHAUSTED|out of memory|std::bad_alloc", re.IGNORECASE)
_PEER = re.compile(r"\bGloo \w+ failed|\bNCCL\b")  # of a collective operation
_LOWER = (
    "lower llm.batch_size, encoder.batch_tokens, prompt.max_tokens or the training's batch_size "
    "(or raise its accumulate), or take a smaller model"
)


def line(error: BaseException) -> str | None:
    """What the environment did and what to do about it; None for an error of the program."""
    found = system_error(error)
    if found is not None:
        return _of_system(found)
    if isinstance(error, MemoryError):
        return f"out of memory{_said(error)}; {_LOWER}"
    if isinstance(error, RuntimeError | ValueError) and _MEMORY.search(str(error)):
        return f"the device is out of memory{_said(error)}; {_LOWER}"
    if isinstance(error, RuntimeError | ValueError) and _PEER.search(str(error)):
        return f"another process of this run has ended{_said(error)}; the same command continues from here"
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return "no further thread can be started; raise the limit of processes (ulimit -u)"
    return None


def system_error(error: BaseException) -> OSError | None:
    """The error of the operating system that this one is, or quotes; None where it is neither."""
    if isinstance(error, OSError):
        if error.errno is not None or not str(error) or type(error) is not OSError:
            return error  # a class such as FileNotFoundError says what happened without a number
        number = errno.ENOSPC if _FULL.search(str(error)) else errno.EIO
        return OSError(number, str(error))
    if isinstance(error, UserError):
        return None
    if isinstance(error, sqlite3.Error):
        return _of_sqlite(error)
    text = str(error)
    number = int(found[1]) if (found := _WORDS.search(text)) else 0
    if not number:
        known = (getattr(errno, name) for name in _SPOKEN if hasattr(errno, name))
        number = next((one for one in known if os.strerror(one) in text), 0)
    return OSError(number, os.strerror(number)) if number else None


@contextlib.contextmanager
def located(path: Path) -> Iterator[None]:
    """Names a file or folder in what the system says without one, as it does of a full disk. Raises
    OSError: with a file name, in place of OSErrors without one and of what libraries make of them."""
    try:
        yield
    except Exception as error:
        found = system_error(error)
        if found is None:
            raise
        if found.errno is not None and found.filename is None:
            found.filename = str(path)
        if found is error:
            raise
        raise found from error


def _of_system(error: OSError) -> str:
    number = error.errno or 0
    place = error.filename if error.filename is not None else "a file"
    place = os.fsdecode(place) if isinstance(place, str | bytes) else str(place)
    act = "write" if number in (errno.ENOSPC, getattr(errno, "EDQUOT", -1), errno.EFBIG) else "read or write"
    if number == errno.ENOENT and error.filename is None and not _has_folder():
        return "the current folder does not exist any more; change into another one"
    said = error.strerror or str(error) or type(error).__name__
    return f"cannot {act} {place}: {said}; {_NUMBERS.get(number, _FAILED)}"


def _has_folder() -> bool:
    try:
        return bool(os.getcwd())
    except OSError:
        return False


def _of_sqlite(error: sqlite3.Error) -> OSError | None:
    """SQLite's words for what a disk does; None for a statement that is wrong."""
    code = getattr(error, "sqlite_errorcode", 0)
    if code == sqlite3.SQLITE_IOERR_WRITE:
        return OSError(errno.EFBIG, str(error))
    number = {
        sqlite3.SQLITE_FULL: errno.ENOSPC, sqlite3.SQLITE_IOERR: errno.EIO,
        sqlite3.SQLITE_READONLY: errno.EROFS, sqlite3.SQLITE_CANTOPEN: errno.EIO,
        sqlite3.SQLITE_PERM: errno.EACCES, sqlite3.SQLITE_NOMEM: errno.ENOMEM,
        sqlite3.SQLITE_BUSY: errno.EBUSY, sqlite3.SQLITE_LOCKED: errno.EBUSY,
        sqlite3.SQLITE_PROTOCOL: errno.EBUSY, sqlite3.SQLITE_CORRUPT: errno.EIO,
        sqlite3.SQLITE_NOTADB: errno.EIO,
    }.get(code & 0xFF)  # fmt: skip
    return None if number is None else OSError(number, str(error))


def _said(error: BaseException) -> str:
    words = " ".join(str(error).split())
    return f" ({words:.200})" if words else ""

"""Locks between processes, on files beside what they protect; the system releases those of a dead process."""

import errno
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

from filelock import FileLock, Timeout

from pbr_jax.base import terminal
from pbr_jax.base.types import UserError

_TAKEN = (errno.EAGAIN, errno.EACCES, errno.EINTR)


@contextmanager
def locked(path: Path, waiting: str = "") -> Iterator[None]:
    """Holds a lock; `waiting` is told on stderr where another process has it.

    Raises:
      UserError: the file system has no locks.
    """
    require_locks(path.parent)
    lock = FileLock(path, timeout=0, mode=0o600)
    try:
        lock.acquire()
    except Timeout:
        if waiting:
            terminal.err(waiting)
        lock.acquire(timeout=-1)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def free(path: Path) -> Iterator[bool]:
    """Whether nobody holds a lock, which is then held inside the block."""
    lock = FileLock(path, timeout=0, mode=0o600)
    with suppress(Timeout):
        lock.acquire()
    try:
        yield lock.is_locked
    finally:
        lock.release()


@lru_cache(maxsize=256)
def require_locks(folder: Path) -> None:
    """Raises UserError for a folder on a file system without locks, such as NFS without its lock daemon.

    Lock files would do instead only until a process is killed: nobody could tell theirs from a living one's.
    """
    with suppress(ImportError):  # Windows has locks everywhere
        import fcntl

        with tempfile.TemporaryFile(dir=folder) as file:
            for take in (fcntl.flock, fcntl.lockf):  # what `filelock` takes, and what SQLite takes
                try:
                    take(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError as error:
                    if error.errno in _TAKEN:
                        continue
                    raise UserError(
                        f"{folder} is on a file system that cannot lock files ({error.strerror}); choose a "
                        "folder on a local disk (PBR_JAX_CACHE for the cache, or --out)"
                    ) from error

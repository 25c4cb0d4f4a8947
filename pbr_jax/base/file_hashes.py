"""Hashes of files, remembered between processes as long as a file is not written to.

A file is known by its path, device, inode, size, and the times of its last change: of its content, which any
program can set, and of anything about it, which none can. What was changed within `_SETTLED` of being hashed
may be changed again at what its clock calls the same time, so it is not remembered (git's "racily clean").
"""

import atexit
import contextlib
import contextvars
import functools
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pbr_jax.base.files import cache_folder, parse_json, write_text

_NAME = "hashes.json"
_MOST = 20_000  # entries that are kept of a kind, the latest
_SETTLED = 2_000_000_000  # ns: the coarsest clock of a file system is FAT's
_TIMES_ARE_CHANGES = os.name != "nt"  # elsewhere st_ctime is of the making, and no edit shows in it

_Files = dict[str, list[int]]
_watched: contextvars.ContextVar[_Files | None] = contextvars.ContextVar("watched", default=None)


def file_hash(path: Path) -> str:
    """The sha256 (hex) of a file, read only where it may have changed since it was last hashed."""
    memory, name = _memory(cache_folder()), os.path.abspath(path)
    with open(path, "rb") as file:
        before, known = _signature(file.fileno()), memory.files.get(name)
        _watch(name, before)
        if known is not None and known[:-1] == before:
            return known[-1]
        now = time.time_ns()
        found = hashlib.file_digest(file, "sha256").hexdigest()
        settled = max(before[-2:]) < now - _SETTLED and _signature(file.fileno()) == before
    if settled and _TIMES_ARE_CHANGES:
        memory.add(memory.files, name, [*before, found])
    return found


def watch(path: Path) -> None:
    """Adds a file that is about to be read to those of `watching`; OSError where it cannot be."""
    name = os.path.abspath(path)
    _watch(name, _signature(name))


def _watch(name: str, signature: list[int]) -> None:
    if (watched := _watched.get()) is not None:
        folder = os.path.dirname(name)
        watched.setdefault(folder, _signature(folder))
        watched.setdefault(name, signature)


@contextlib.contextmanager
def watching() -> Iterator[_Files]:
    """Gathers the files that are hashed or given to `watch` inside, and their folders, for `changed`."""
    found: _Files = {}
    token = _watched.set(found)
    try:
        yield found
    finally:
        _watched.reset(token)


def changed(files: Mapping[str, list[int]]) -> list[str]:
    """The files that were written to since they were hashed, or are gone; then folders, of what was added."""
    found = []
    for name, before in files.items():
        try:
            same = _signature(name) == before
        except OSError:
            same = False
        if not same:
            found.append(name)
    return sorted(found, key=os.path.isdir)


def recall(key: str) -> Any:
    """The JSON value that a process has given to `remember` by this key; None: none has."""
    return _memory(cache_folder()).values.get(key)


def remember(key: str, value: Any) -> None:
    """Keeps a JSON value that depends on nothing but its key."""
    memory = _memory(cache_folder())
    memory.add(memory.values, key, value)


def _signature(file: int | str) -> list[int]:
    found = os.stat(file)
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


class _Memory:
    """What a cache folder's file holds, and what this process adds to it when it ends."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _NAME
        self.files, self.values = _read(self._path)
        self._added: list[tuple[dict[str, Any], str]] = []

    def add(self, kind: dict[str, Any], key: str, value: Any) -> None:
        kind[key] = value
        self._added.append((kind, key))

    def save(self) -> None:
        """Adds to what other processes have written since; of two that end together one's may be lost, and
        is hashed again."""
        if not self._added or not self._path.parent.is_dir():
            return
        both = _read(self._path)
        for kind, key in self._added:
            both[kind is self.values][key] = kind[key]
        content = [dict(list(kind.items())[-_MOST:]) for kind in both]
        with contextlib.suppress(OSError):  # a full disk, a folder that is not ours: hashed again
            write_text(self._path, json.dumps({"content": content, "digest": _digest(content)}))


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The remembered files and values; nothing where the file is missing or is not what was written."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        found = parse_json(path.read_bytes())
        if found["digest"] == _digest(found["content"]):
            files, values = found["content"]
            return dict(files), dict(values)
    return {}, {}


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


@functools.cache
def _memory(folder: Path) -> _Memory:
    memory = _Memory(folder)
    atexit.register(memory.save)
    return memory

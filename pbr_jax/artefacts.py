"""Artefacts of stages on disk, keyed by the hash of what they depend on.

A stage is a name, a key (everything its result depends on, as JSON) and a function that fills a folder.
Finished artefacts appear by one rename, so that a reader never sees half of one; a stage that was killed
finds its own partial folder again and continues in it. A lock lets several processes share the folder.
"""

import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

_MANIFEST = "stage.json"


def digest(value: Any) -> str:
    """Sixteen hex digits that name a JSON-able value, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def cache_folder() -> Path:
    """Where artefacts live: $PBR_JAX_CACHE, else the user's cache folder."""
    if "PBR_JAX_CACHE" in os.environ:
        return Path(os.environ["PBR_JAX_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pbr_jax"


def write_text(path: Path, text: str) -> None:
    """Writes a file so that it appears whole or not at all, also after a power cut."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


@dataclass(frozen=True)
class Artefact:
    """A finished stage: its folder, its hash, and the seconds that it took when it was made."""

    path: Path
    key: str
    seconds: float
    made: bool  # by this call; False when it was found


Log = Callable[[Mapping[str, Any]], None]


def obtain(
    name: str, key: Mapping[str, Any], make: Callable[[Path], None], log: Log | None = None
) -> Artefact:
    """The artefact of a stage, made now if nobody has made it before.

    `make(folder)` may find files of an interrupted attempt with the same key and continues them.
    """
    hash_ = digest({"stage": name, **key})
    path = cache_folder() / name / hash_
    if not (path / _MANIFEST).is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            if not (path / _MANIFEST).is_file():  # another process may have made it while we waited
                return _made(name, key, make, path, log)
    seconds = json.loads((path / _MANIFEST).read_text(encoding="utf-8"))["seconds"]
    if log is not None:
        log({"event": "found", "stage": name, "key": hash_})
    return Artefact(path, hash_, seconds, made=False)


def _made(
    name: str, key: Mapping[str, Any], make: Callable[[Path], None], path: Path, log: Log | None
) -> Artefact:
    print(f"{name} ...", file=sys.stderr, flush=True)
    partial = path.with_suffix(".partial")
    partial.mkdir(exist_ok=True)
    with _stopwatch(partial) as elapsed:
        make(partial)
    seconds = elapsed()
    write_text(partial / _MANIFEST, json.dumps({"stage": name, "key": dict(key), "seconds": seconds}))
    shutil.rmtree(path, ignore_errors=True)
    os.replace(partial, path)
    print(f"{name}: {seconds:.1f} s", file=sys.stderr, flush=True)
    if log is not None:
        log({"event": "made", "stage": name, "key": path.name, "seconds": seconds})
    return Artefact(path, path.name, seconds, made=True)


@contextmanager
def _stopwatch(folder: Path) -> Iterator[Callable[[], float]]:
    """Seconds of all attempts together; those of an attempt that raised are kept in the folder."""
    spent = folder / "seconds"
    before = float(spent.read_text()) if spent.is_file() else 0.0
    start = time.perf_counter()

    def elapsed() -> float:
        return round(before + time.perf_counter() - start, 3)

    try:
        yield elapsed
    except BaseException:
        spent.write_text(str(elapsed()))
        raise
    spent.unlink(missing_ok=True)

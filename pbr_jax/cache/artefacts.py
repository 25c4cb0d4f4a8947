"""Artefacts of stages on disk, keyed by the hash of what they depend on.

A stage is a name, a key (everything its result depends on, as JSON) and a function that fills a folder.
Finished artefacts appear by one rename, so that a reader never sees half of one; a stage that was killed
finds its own partial folder again and continues in it. A lock lets several processes share the folder.
An artefact that is no longer what was made is made again.

What is kept here holds users' texts: folders are of mode 0700 and files 0600, whatever the umask.
"""

import atexit
import hashlib
import json
import math
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from pbr_jax.base import processes, terminal
from pbr_jax.base.file_hashes import file_hash
from pbr_jax.base.files import (
    cache_folder,
    merge_logs,
    open_private,
    parse_json,
    private_folder,
    tighten,
    write_text,
)
from pbr_jax.base.locks import free, locked, require_locks
from pbr_jax.base.provenance import provenance
from pbr_jax.base.system_errors import located
from pbr_jax.base.types import UserError

_MANIFEST = "stage.json"
NEEDS = "needs.json"  # in a stage's folder: the stages that it is made from, as NAME/KEY
_READER = "reader-"  # begins the name of a living process's file in the cache
_LARGE = 64 << 20  # bytes: files from here on are hashed only where their times or places have changed

# Other errors of the system are the disk's or somebody else's: making the artefact again would not mend them.
_ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
_UNREADABLE = (
    LookupError, TypeError, ValueError,
    FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError,
)  # fmt: skip

_Signature = tuple[int, int, int]  # time of the last change in ns, size in bytes, inode
_verified: dict[Path, _Signature] = {}  # files whose content this process has hashed
_reading: dict[tuple[int, Path], FileLock] = {}  # held by this process, which reads a cache


def digest(value: Any) -> str:
    """Sixteen hex digits that name a JSON-able value, whatever the order of its keys."""
    try:
        text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    except TypeError as error:
        raise UserError(
            f"{error}: no part of a key; want numbers, texts, lists of these and options"
        ) from error
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Artefact:
    """A finished stage: its folder and its hash."""

    path: Path
    key: str
    made: bool  # by this call; False when it was found


Log = Callable[[Mapping[str, Any]], None]


def log_of(path: Path) -> Log:
    """Adds events to a file, a line of JSON each, with the time."""

    def log(event: Mapping[str, Any]) -> None:
        told = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **event}
        with located(path), open_private(path) as file:
            file.write(json.dumps(told, ensure_ascii=False, allow_nan=False) + "\n")

    return log


def obtain(
    name: str,
    key: Mapping[str, Any],
    make: Callable[[Path], None],
    log: Log | None = None,
    label: str = "",
    within: Path | None = None,
    needs: Collection[Path] | None = None,
) -> Artefact:
    """The artefact of a stage, made now if nobody has made it before or if it is damaged.

    `make(folder)` may find files of an interrupted attempt with the same key and continues them. `label` is
    what the terminal calls the stage, where a run has several of a name. `within`: another folder than the
    cache. `needs`: the artefacts that it is made from. It is dropped where one of these is erased meanwhile.
    """
    hash_ = digest({"stage": name, **key})
    path = place(name, hash_, within)
    _note_reading(path)
    if not is_published(path):
        private_folder(path.parent)
        waiting = f"{label or name}: waiting for another process that makes it"
        with locked(path.with_suffix(".lock"), waiting), located(path.with_suffix(".partial")):
            if not _is_standing(name, path, log):  # another process may have made it while we waited
                return _made(name, key, make, path, log, label or name, needs)
    if log is not None:
        log({"event": "found", "stage": name, "key": hash_})
    return Artefact(path, hash_, made=False)


def obtain_part(path: Path, make: Callable[[Path], None]) -> None:
    """Makes a folder inside a stage's folder unless it is there and whole, as `obtain` makes that of a stage.

    Raises RuntimeError for an error by which `obtain` would take the whole stage for damaged.
    """
    if is_whole(path):
        return
    try:
        _made("part", {}, make, path, None, "")
    except _UNREADABLE as error:
        if isinstance(error, UserError):
            raise
        raise RuntimeError(f"{path.parent.name} {path.name}: {type(error).__name__}: {error}") from error


def is_whole(path: Path) -> bool:
    """Whether the artefact at a path, or a part of one, is there and as it was made."""
    try:
        _verified_manifest(path)
    except _Damage:
        return False
    return True


def is_published(path: Path) -> bool:
    """The same; waits until the disk shows what another process wrote.

    Raises UserError where it does not within half a minute.
    """
    deadline = time.monotonic() + processes.VISIBLE
    while not (whole := is_whole(path)) and (processes.count() > 1 or not processes.leads()):
        if time.monotonic() > deadline:
            raise UserError(
                f"{path}, which another process wrote, is not seen here; share the folder with this host"
            )
        time.sleep(0.2)
    return whole


def seconds_of(path: Path) -> float | None:
    """The seconds that an artefact or a part took; None where it is missing or damaged."""
    try:
        return _verified_manifest(path)["seconds"]
    except _Damage:
        return None


def place(name: str, hash_: str, within: Path | None = None) -> Path:
    """Where the artefact of a stage lies, or would lie."""
    return (within or cache_folder()) / name / hash_


def _note_reading(path: Path) -> None:
    """Dates an artefact, if it is there, and holds a lock as long as this process lives (`readers`)."""
    folder, process = cache_folder(), os.getpid()
    with suppress(OSError, UserError):  # of a cache that may only be read, or has no locks
        if (process, folder) not in _reading:
            private_folder(folder)
            require_locks(folder)
            own = folder / f"{_READER}{int(time.time())}-{secrets.token_hex(4)}.lock"
            (lock := FileLock(own, mode=0o600)).acquire()
            _reading[process, folder] = lock
            atexit.register(lambda: own.unlink(missing_ok=True) if os.getpid() == process else None)
        os.utime(path)


def readers() -> Iterator[float]:
    """When the living processes began that read artefacts, in seconds since 1970.

    An artefact that one of them has read has a later date (`st_mtime` of its folder).
    """
    for file in cache_folder().glob(f"{_READER}*.lock"):
        with free(file) as is_left:
            if is_left:
                file.unlink(missing_ok=True)
            else:
                yield float(file.name.split("-")[1])


def temporary_folder() -> Path:
    """A new folder for what is not kept, which is removed when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="pbr_jax-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def made_by(path: Path) -> list[dict[str, Any]]:
    """The provenance of the process that finished an artefact; of all its attempts where an older version of
    this package made it, and none where there is no artefact."""
    try:
        manifest = parse_json((path / _MANIFEST).read_bytes())
        return manifest.get("made_by", [])
    except (OSError, ValueError, AttributeError):
        return []


def _is_standing(name: str, path: Path, log: Log | None) -> bool:
    """Whether an artefact is there and whole; tells of one that is there and damaged."""
    if not os.path.lexists(path):
        return False
    try:
        _verified_manifest(path)
        return True
    except _Damage as damage:
        terminal.err(f"{name}: {path / damage.file} is damaged; it is made again")
        if log is not None:
            log({"event": "damaged", "stage": name, "key": path.name, "file": damage.file})
        return False


def _made(
    name: str,
    key: Mapping[str, Any],
    make: Callable[[Path], None],
    path: Path,
    log: Log | None,
    label: str,
    needs: Collection[Path] | None = None,
) -> Artefact:
    if label:
        terminal.err(f"{label} ...")
    partial = path.with_suffix(".partial")
    if partial.is_symlink() or not partial.is_dir():
        _remove(partial)
    begun = partial.is_dir()
    private_folder(partial)
    tighten(partial)  # one that an interrupted attempt of an older version left
    for half_written in partial.rglob(".*.partial"):  # by an attempt that was killed (`files.write_text`)
        half_written.unlink()

    def noted(folder: Path) -> None:
        if needs is not None:
            write_text(folder / NEEDS, json.dumps(sorted("/".join(need.parts[-2:]) for need in needs)))
        make(folder)

    seconds = _filled(partial, noted, begun, label or path.name)
    if gone := [need for need in needs or () if not need.is_dir()]:
        _remove(partial)
        raise UserError(f"{label}: {gone[0]}, which it is made from, was erased meanwhile; run again")
    files = _close(partial)
    manifest = {
        "stage": name, "key": dict(key), "seconds": seconds, "made_by": [provenance()], "files": files,
    }  # fmt: skip
    write_text(partial / _MANIFEST, json.dumps({**manifest, "digest": digest(manifest)}))
    _sync(partial)
    _remove(path)
    os.replace(partial, path)
    _sync(path.parent)
    _verified.update({_place(path, file): _recorded(record) for file, record in files.items()})
    if label:
        terminal.err(f"{label}: {seconds:.1f} s")
    if log is not None:
        log({"event": "made", "stage": name, "key": path.name, "seconds": seconds})
    return Artefact(path, path.name, made=True)


def _filled(partial: Path, make: Callable[[Path], None], begun: bool, label: str) -> float:
    """The seconds of all attempts. One that stumbles over what an earlier one left begins anew, once.

    What was left is put aside, not lost, until the artefact is whole.
    """
    aside = partial.with_suffix(".damaged")
    try:
        with _stopwatch(partial) as elapsed, located(partial):
            make(partial)
    except _UNREADABLE as error:
        if not begun or isinstance(error, UserError):
            raise
        terminal.err(f"{label}: cannot go on from {partial} ({error!r:.200}); begins anew")
        _remove(aside)
        partial.rename(aside)
        private_folder(partial)
        return _filled(partial, make, False, label)
    _remove(aside)
    return elapsed()


def _remove(path: Path) -> None:
    """Removes whatever a damaged artefact has become."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def _stopwatch(folder: Path) -> Iterator[Callable[[], float]]:
    """Seconds of all attempts together; those of an attempt that raised are kept in the folder."""
    spent = folder / "seconds"
    before = _number(spent)
    start = time.perf_counter()

    def elapsed() -> float:
        return round(before + time.perf_counter() - start, 3)

    try:
        yield elapsed
    except BaseException:
        write_text(spent, str(elapsed()))
        raise
    spent.unlink(missing_ok=True)


def _number(path: Path) -> float:
    """The number in a file; 0.0 where there is none."""
    try:
        found = float(path.read_text())
        return found if math.isfinite(found) else 0.0
    except (OSError, ValueError):
        return 0.0


# -- what was made, and whether it still stands --------------------------------------------------------


class _Damage(Exception):
    """Names a file of an artefact that is not what was made; the manifest where nothing is there."""

    def __init__(self, file: str) -> None:
        super().__init__(file)
        self.file = file


def _close(folder: Path) -> dict[str, dict[str, Any]]:
    """Closes all below a folder to others, brings it to the disk, and records every file but the manifest."""
    files, passing = {}, merge_logs(folder)
    for root, _, names in os.walk(folder):
        os.chmod(root, 0o700)
        for path in (Path(root, name) for name in sorted(names)):
            if path not in (folder / _MANIFEST, *passing) and stat.S_ISREG(path.lstat().st_mode):
                files[path.relative_to(folder).as_posix()] = _close_file(path)
        _sync(Path(root))
    return files


def _close_file(path: Path) -> dict[str, Any]:
    """Size, hash and signature of a file that is on disk when this returns."""
    path.chmod(0o600)
    with path.open("r+b") as file:  # some systems sync only what may be written
        os.fsync(file.fileno())
        content = hashlib.file_digest(file, "sha256").hexdigest()
        found = os.fstat(file.fileno())  # after the sync: what was written through memory is dated by it
    return {
        "size": found.st_size, "sha256": content, "mtime_ns": found.st_mtime_ns, "inode": found.st_ino,
    }  # fmt: skip


def _sync(folder: Path) -> None:
    """Brings the names in a folder to the disk."""
    if os.name == "nt":  # opens no folders
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _verified_manifest(path: Path) -> dict[str, Any]:
    """What was recorded of a whole artefact. Raises _Damage where a file is missing or altered.

    Files that are not recorded do no harm: SQLite may leave some beside a database.
    """
    try:
        manifest = parse_json((path / _MANIFEST).read_bytes())
        intact = manifest.pop("digest") == digest(manifest)
    except (*_ABSENT, ValueError, TypeError, KeyError, AttributeError) as error:
        raise _Damage(_MANIFEST) from error
    if not intact:
        raise _Damage(_MANIFEST)
    for name, record in manifest["files"].items():
        if not _as_made(_place(path, name), record):
            raise _Damage(name)
    return manifest


def _as_made(path: Path, record: Mapping[str, Any]) -> bool:
    """Whether a file is what was recorded; its content is read once, unless it changes (`hashes`)."""
    try:
        found = path.lstat()
        signature = (found.st_mtime_ns, found.st_size, found.st_ino)
        if not stat.S_ISREG(found.st_mode) or found.st_size != record["size"]:
            return False
        if _verified.get(path) == signature:
            return True
        if (found.st_size < _LARGE or signature != _recorded(record)) and file_hash(path) != record["sha256"]:
            return False
    except _ABSENT:
        return False
    _verified[path] = signature
    return True


def _place(path: Path, name: str) -> Path:
    """A file of an artefact; absolute, for `_verified` outlives the current folder."""
    return path.absolute() / name


def _recorded(record: Mapping[str, Any]) -> _Signature:
    return record["mtime_ns"], record["size"], record["inode"]

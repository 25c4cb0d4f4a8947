"""Frees disk: stages in the cache that no known run is made of, and what killed processes left.

What is deleted can be computed again. Kept is what known runs are made of, stopped ones too, what was read
lately, what a living process may have read, and everything that these are made from. Cached answers stay.
"""

import math
import shutil
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pbr_jax.base.files import cache_folder, private_folder
from pbr_jax.base.locks import free, locked
from pbr_jax.base.types import UserError
from pbr_jax.cache.artefacts import readers
from pbr_jax.experiment.forgetting import GONE, all_stages, keep_marks, needs_of
from pbr_jax.experiment.run_folder import OWNER, known_runs, stage_keys

DAYS = 7.0  # for which a stage is kept that was read
_ASIDE = ".damaged"  # the end of a stage's folder that nobody reads


@dataclass
class Freed:
    """Bytes of all stages (`sizes`) and `why` some stay, by NAME/KEY. The others were deleted, or would be
    (`dry`). `absent` are known run folders that are not there any more."""

    dry: bool
    sizes: dict[str, int]
    why: dict[str, str]
    absent: list[Path]

    @property
    def removed(self) -> set[str]:
        """The stages that do not stay."""
        return self.sizes.keys() - self.why.keys()

    def text(self) -> str:
        """A line for each reason; of `dry` also one for each stage that would be deleted."""
        lines = [f"{name}  {_megabytes(self.sizes[name])}" for name in sorted(self.removed) if self.dry]
        deleted = "would be deleted" if self.dry else "deleted"
        groups = {deleted: list[int]()}
        for name, size in self.sizes.items():
            reason = f"kept, {self.why[name]}" if name in self.why else deleted
            groups.setdefault(reason, []).append(size)
        lines += [f"{what}: {len(own)} stages, {_megabytes(sum(own))}" for what, own in groups.items()]
        if self.absent:
            lines.append(
                f"run folders that are not there: {len(self.absent)}, such as {self.absent[0]}; stages of "
                "theirs alone count as unused (--run names a folder that was moved)"
            )
        return "\n".join(lines)


def collect(days: float = DAYS, runs: Iterable[str | Path] = (), *, dry: bool = False) -> Freed:
    """Deletes the stages that no run is made of and nobody has read for so many days.

    Args:
      runs: folders of runs beside those that this cache knows of.
      dry: nothing is deleted.

    Raises UserError for a negative number of days, and for a folder that holds no run.
    """
    if not 0 <= days < math.inf:
        raise UserError(f"--keep is {days}, want 0 or more days")
    folders = [Path(path) for path in runs]
    if bad := [path for path in folders if not (path / OWNER).is_file()]:
        raise UserError(f"{bad[0]} holds no run; give folders that `pbr-jax run --out` wrote")
    private_folder(cache_folder())
    with locked(cache_folder() / "forget.lock", "waiting for another process that deletes from the cache"):
        since = min([time.time() - days * 86400, *readers()])
        there = all_stages()
        sizes = {name: _size(path) for name, path in there.items()}
        why = _kept(there, {*folders, *known_runs()}, since)
        for name in () if dry else there.keys() - why.keys():
            if not _deleted(there[name], since):
                why[name] = "in use now"
    return Freed(dry, sizes, why, known_runs(there=False))


def _kept(there: dict[str, Path], folders: Iterable[Path], since: float) -> dict[str, str]:
    """Why stages stay."""
    keys, unknown, why = set[str](), list[Path](), dict[str, str]()
    for folder in folders:
        found = stage_keys(folder)
        keys |= found or set()
        unknown += [folder] if found is None else []
    for name, path in there.items():
        if path.suffix == GONE:
            why[name] = "of a deletion that was killed (repeat pbr-jax forget)"
        elif path.suffix == _ASIDE:
            continue
        elif path.name.partition(".")[0] in keys:
            why[name] = "of known runs"
        elif unknown:
            why[name] = f"maybe of {unknown[0]}, which an older version began (run it again, or delete it)"
        elif _read(path) >= since:
            why[name] = f"read since {time.strftime('%Y-%m-%d %H:%M', time.gmtime(since))} UTC"
    waiting = [*why]
    while waiting:
        for need in needs_of(there[waiting.pop()]) or ():
            if need in there and need not in why:
                why[need] = "needed by these"
                waiting.append(need)
    return why


def _read(path: Path) -> float:
    """When a stage was made or read last, in seconds since 1970; infinity where it was just renamed."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return math.inf


def _deleted(path: Path, since: float) -> bool:
    """Deletes a stage; False: another process makes it, or has read it just now."""
    aside = path.with_suffix(_ASIDE)
    with free(path.with_suffix(".lock")) as is_free:
        if not is_free:
            return False
        if path != aside and path.exists():
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)  # from here on nobody finds it whole
            if _read(aside) >= since:
                aside.rename(path)
                return False
        for store in aside.rglob("store.sqlite"):
            with suppress(UserError, OSError):  # half a store
                keep_marks(store)
        shutil.rmtree(aside, ignore_errors=True)
    return True


def _size(path: Path) -> int:
    """Bytes of the files below a folder."""
    size = 0
    for file in path.rglob("*"):
        with suppress(FileNotFoundError):
            size += file.lstat().st_size
    return size


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"

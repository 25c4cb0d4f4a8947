"""The folders of finished runs: those that are given, and those in a sweep's folder."""

from collections.abc import Sequence
from pathlib import Path

from pbr_jax.base.types import UserError
from pbr_jax.eval.run_files import RESULTS, SWEEP, sweep_lines, words_of

_NAMED = 8  # runs that a sentence names


def folders_of(paths: Sequence[str | Path]) -> list[Path]:
    """The folders of the finished runs at these paths, each once. UserError: there are none."""
    found = [folder for path in paths for folder in run_folders(Path(path))]
    if not found:
        raise UserError("no runs are given; give at least one run folder")
    return list(dict.fromkeys(found))


def run_folders(path: Path) -> list[Path]:
    """The folder itself, or the finished runs in a sweep's folder, in the sweep's order.

    Runs that the sweep has replaced are left out. A sweep's list is passed over, so that DIR/* may be given.
    """
    if path.name == SWEEP and path.is_file():
        return []
    if (path / "results.json").is_file() or not path.is_dir():
        return [path]
    inside = sorted(file.parent for file in path.glob("*/results.json"))
    listed = sweep_lines(path)
    places = {str(record.get("run")): place for place, record in enumerate(listed)}
    replaced = {str(record.get("run")) for record in listed if record.get("replaced")}
    inside = [folder for folder in inside if folder.name not in replaced]
    if listed and not inside:
        raise UserError(f"{path}: none of the sweep's {len(listed)} runs is finished; run the sweep again")
    return sorted(inside, key=lambda folder: places.get(folder.name, len(places))) or [path]


def unfinished(path: Path) -> str:
    """The runs of a sweep's folder that are not finished, in words; "" where all are, or it is none."""
    listed = [one for one in sweep_lines(path) if not one.get("replaced")]
    missing = [one for one in listed if not (path / str(one.get("run")) / RESULTS).is_file()]
    if not missing:
        return ""
    runs = [words_of(one) for one in missing[:_NAMED]]
    rest = f"; and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    return (
        f"{path}: {len(missing)} of the sweep's {len(listed)} runs are not finished, and missing here: "
        f"{'; '.join(runs)}{rest}"
    )


def left_out(path: Path) -> str:
    """The runs of a sweep's folder that the sweep has replaced, in words; "" where there are none."""
    replaced = [one for one in sweep_lines(path) if one.get("replaced")]
    there = [one for one in replaced if (path / str(one.get("run")) / RESULTS).is_file()]
    if not there:
        return ""
    runs = "; ".join(f"{one.get('run')} ({words_of(one)})" for one in there[:_NAMED])
    rest = f"; and {len(there) - _NAMED} more" if len(there) > _NAMED else ""
    return (
        f"{path}: runs of an earlier version of this sweep are left out and not counted: {runs}{rest}. "
        "Give their folders to report on them."
    )

"""The files of a run's folder with their hashes, so that what is read is what the run wrote; sweeps' folders.

`results.json` has the sha256 of each file beside it (`files`), and a digest of its other fields (`digest`).
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pbr_jax.base.files import parse_json
from pbr_jax.base.types import UserError
from pbr_jax.cache.artefacts import digest

RESULTS = "results.json"
SWEEP = "sweep.jsonl"
HASHED = ("run.json", "config.json", "predictions.jsonl", "texts.jsonl")
_NAMED = 8  # runs of a folder, in an error
_AGAIN = "run the same command again to write it anew"


def sealed(folder: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """The content of results.json: these values, the hashes of the files that are there, and the digest."""
    files = {name: _read_hash(folder / name) for name in HASHED if (folder / name).exists()}
    content = _without_digest(parse_json(json.dumps({**values, "files": files})))
    return {**content, "digest": digest(content)}


def verified(folder: Path, *, whole: bool = False) -> dict[str, Any]:
    """The content of a folder's results.json, once the files beside it have the hashes that it records.

    A recorded file may be missing (a folder that is shared without texts), unless `whole`.

    Raises:
      UserError: there is no results.json, a file is not what the run wrote, or no hashes are recorded.
    """
    if not folder.is_dir():
        raise UserError(f"no run folder at {folder}; give folders that `pbr-jax run --out` wrote")
    values, path = read_json(folder / RESULTS), folder / RESULTS
    files = values.get("files")
    if "digest" not in values or not isinstance(files, dict):
        raise UserError(
            f"{path}: an older version wrote it, without the hashes of the run's files; run it anew, "
            "into another folder or with --overwrite"
        )
    if values["digest"] != digest(_without_digest(values)):
        raise UserError(f"{path}: it has changed since the run wrote it; {_AGAIN}")
    for name in HASHED:
        there = (folder / name).exists()
        if (there or whole) and (_read_hash(folder / name) if there else None) != files.get(name):
            raise UserError(f"{folder / name}: it is not what the run wrote; {_AGAIN}")
    return values


def _without_digest(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != "digest"}


def _read_hash(path: Path) -> str:
    """The sha256 (hex) of a file, read at every call: `hashes` remembers only what is an input."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); {_AGAIN}") from error


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file; UserError for anything else."""
    return parse_object(read_text(path), str(path))


def read_text(path: Path) -> str:
    """The text of a file; UserError where it is missing or cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        folder, listed = path.parent, path.parent / SWEEP
        runs = sorted(file.parent for file in folder.glob("*/results.json"))
        if runs or listed.is_file():
            words = {
                str(one.get("run")): words_of(one) for one in sweep_lines(folder) if one.get("overrides")
            }
            told = {run: f" ({words[run.name]})" if run.name in words else "" for run in runs[:_NAMED]}
            named = [f"{run}{settings}" for run, settings in told.items()]
            more = f" and {len(runs) - _NAMED} more" if len(runs) > _NAMED else ""
            raise UserError(
                f"{folder} holds several runs, want one of them; "
                f"{'give ' + ', '.join(named) if named else 'none is finished'}{more}"
            ) from None
        raise UserError(f"{folder} has no {path.name}, so it is no finished run; finish it first") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error}); {_AGAIN}") from None


def sweep_lines(folder: Path) -> list[dict[str, Any]]:
    """The lines of a sweep's list; none in another folder."""
    file = folder / SWEEP
    return [parse_object(text, str(file)) for text in read_text(file).splitlines()] if file.is_file() else []


def words_of(listed: Mapping[str, Any]) -> str:
    """A run of a sweep's list: its overrides, or else its folder's name."""
    overrides = listed.get("overrides")
    fields = [f"{name} {value}" for name, value in overrides.items()] if isinstance(overrides, dict) else []
    return ", ".join(fields) or str(listed.get("run"))


def lines(folder: Path, name: str = "predictions.jsonl") -> Iterator[dict[str, Any]]:
    """The objects in a file of one a line, read one by one; errors as of `read_json`."""
    path = folder / name
    try:
        # Not splitlines(): texts may hold other characters that it takes for line ends.
        with path.open(encoding="utf-8", newline="\n") as file:
            for number, line in enumerate(file, 1):
                yield parse_object(line, f"{path}, line {number}")
    except (OSError, UnicodeDecodeError):
        read_text(path)  # says what is wrong
        raise


def parse_object(text: str, where: str) -> dict[str, Any]:
    """The object in a JSON text; UserError, which says `where`, for anything else."""
    try:
        value = parse_json(text)
        if "\\u" in text:  # an escape can be half a character, which nobody could print
            json.dumps(value, ensure_ascii=False).encode()
    except ValueError as error:
        raise UserError(f"{where}: not valid JSON ({error}); {_AGAIN}") from None
    if not isinstance(value, dict):
        raise UserError(f"{where}: expected a JSON object, found {type(value).__name__}")
    return value


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested fields by their dotted names."""
    by_name: dict[str, Any] = {}
    for name, value in values.items():
        by_name |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return by_name


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

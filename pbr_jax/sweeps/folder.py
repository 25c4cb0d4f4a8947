"""A sweep's folder: the folders of its runs, the list of them, and who makes which (`claims`)."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pbr_jax.base.files import parse_json, private_folder, write_text
from pbr_jax.base.types import UserError
from pbr_jax.config import Overrides
from pbr_jax.eval.run_files import verified
from pbr_jax.experiment.run_folder import OWNER
from pbr_jax.stages.run import line
from pbr_jax.sweeps.slurm import JOBS

CLAIMS = ".claims"
_BESIDE = (CLAIMS, JOBS)  # what is there beside runs and their list
_LIST = "sweep.jsonl"


def own(out: Path) -> dict[str, Any]:
    """Makes the folder a sweep's, and gives the lines of earlier sweeps' runs in it, by the runs' names.

    Raises:
      UserError: it is a run's, or holds files that no sweep wrote.
    """
    try:
        private_folder(out)
        there = sorted(path for path in out.iterdir() if not path.name.endswith(".partial"))
        earlier = _listed(out / _LIST)
    except OSError as error:
        raise UserError(
            f"cannot write to the output folder {out}: {error.strerror}; choose another --out"
        ) from error
    foreign = [p.name for p in there if p.name not in (_LIST, *_BESIDE) and not (p / OWNER).is_file()]
    if (out / OWNER).exists() or (foreign and earlier is None) or (out / _LIST).is_symlink():
        held = "a run" if (out / OWNER).exists() else ", ".join(foreign[:4]) or f"a foreign {_LIST}"
        raise UserError(f"{out} holds {held}, which no sweep wrote; choose a new --out")
    return earlier or {}


def note(
    runs: Iterable[tuple[str | None, Overrides]], out: Path, earlier: Mapping[str, Any], sweep: str
) -> None:
    """Writes the list of runs, those of earlier sweeps last. A run that will be refused has no name.

    `sweep` says which sweep it is (`sweeps.identity`). Earlier runs of the same one that it does not make any
    more are `replaced`: a change of code, data or config has put others in their place.
    """
    listed: list[dict[str, Any]] = [
        {"run": name, "overrides": dict(overrides), "sweep": sweep} for name, overrides in runs
    ]
    known = {one["run"] for one in listed}
    for name, record in earlier.items():
        if name not in known:
            listed.append({**record, "replaced": True} if record.get("sweep") == sweep else record)
    write_text(out / _LIST, "".join(map(line, listed)))


def is_noted(names: Iterable[str | None], count: int, earlier: Mapping[str, Any], sweep: str) -> bool:
    """Whether the list holds these runs of a sweep of so many as its present ones."""
    present = {n for n, one in earlier.items() if one.get("sweep") == sweep and not one.get("replaced")}
    return set(names) <= present and len(present) == count


def is_finished(name: str | None, out: Path) -> bool:
    """Whether a run's folder is there and as the run wrote it."""
    try:
        return name is not None and bool(verified(out / name, whole=True))
    except UserError:
        return False


def _listed(path: Path) -> dict[str, Any] | None:
    """What a sweep's list says; None where there is none."""
    if not path.exists():
        return None
    try:
        records = [parse_json(text) for text in path.read_text(encoding="utf-8").splitlines()]
        named = [one for one in records if one["run"] is not None]
        return {one["run"]: {**one, "overrides": one["overrides"]} for one in named}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} was not written by a sweep; choose a new --out") from error

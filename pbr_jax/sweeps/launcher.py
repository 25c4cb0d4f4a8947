"""Executes the runs of a sweep: sequentially, in parallel, or shared with other processes.

A sweep's folder holds the folders of its runs, their list `sweep.jsonl`, and a lock for each run. A process
holds the lock of the run that it makes, and the operating system releases it when the process ends.
"""

import shlex
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from pbr_jax.base import terminal
from pbr_jax.base.files import parse_json, private_folder, write_text
from pbr_jax.base.locks import require_locks
from pbr_jax.base.types import UserError
from pbr_jax.config import Config, ConfigFile, Overrides
from pbr_jax.eval.run_files import verified
from pbr_jax.experiment.plan import Plan, check_process
from pbr_jax.experiment.run import Results, run
from pbr_jax.experiment.run_folder import OWNER
from pbr_jax.graph.lists import tree
from pbr_jax.stages.run import line
from pbr_jax.sweeps.slurm import JOBS
from pbr_jax.sweeps.sweep import Trial, command, identity, trials

_T = TypeVar("_T")
ALL = slice(None)
LOCKS = ".locks"
_LIST = "sweep.jsonl"
_BESIDE = (LOCKS, ".claims", JOBS, _LIST)  # what stands beside the runs; older versions wrote `.claims`


def sweep(
    file: ConfigFile, out: str | Path, base: Config | None = None, max_parallel: int = 1, *, part: slice = ALL
) -> list[Results]:
    """Executes the runs of a sweep, each in `out/<name>`, and returns their results. Finished runs are read.

    Several processes can work on the same folder. Each run is made by one process, and a process waits
    for the others once no free run is left. `sweep.jsonl` lists the names and overrides of all runs of
    the sweep, followed by those of earlier sweeps into this folder. Runs that this sweep replaces are marked.

    Args:
      file: the config file, which defines `sweep()` (`pbr_jax.config.load` reads it).
      out: the folder of the sweep.
      base: the config that the sweep changes. None: the file's own.
      max_parallel: the number of runs at a time, each in its own process.
      part: the runs to execute; `slice(i, None, n)` is shard i of n, counted from 0.

    Raises UserError after all runs have ended, if some failed. The message names them.
    """
    check_process()
    out, base = Path(out), base or file.config
    planned = trials(file, base)
    chosen, earlier, same = planned[part], own(out), identity(file, base)
    if not is_noted(map(_name, chosen), len(planned), earlier, same):  # those that begin together agree
        note([(_name(trial), trial.overrides) for trial in planned], out, earlier, same)
    private_folder(out / LOCKS)
    require_locks(out / LOCKS)
    maker = _Maker(file, out, planned, chosen, max_parallel)
    outcomes = _together(maker.attempt, chosen, max_parallel)
    if left := [place for place, outcome in enumerate(outcomes) if outcome is None]:
        waiting = "; ".join(chosen[place].words for place in left)
        terminal.err(f"waiting for runs that other processes make: {waiting}")
        rest = _together(partial(maker.attempt, wait=True), [chosen[i] for i in left], max_parallel)
        for place, outcome in zip(left, rest, strict=True):
            outcomes[place] = outcome
    failed = [f"{dict(t.overrides)}: {o}" for t, o in zip(chosen, outcomes) if isinstance(o, str)]
    if failed:
        raise UserError(
            f"{len(failed)} of {len(chosen)} runs failed, the others are in {out}: {'; '.join(failed)}"
        )
    return [outcome for outcome in outcomes if isinstance(outcome, Results)]


class _Maker:
    """Makes the chosen runs among all that are planned, and estimates the time that the rest will take."""

    def __init__(
        self, file: ConfigFile, out: Path, planned: Sequence[Trial], chosen: Sequence[Trial], at_once: int
    ) -> None:
        self._file, self._out, self._planned, self._at_once = file, out, planned, at_once
        self._unfinished = {name for trial in chosen if not is_finished(name := _name(trial), out)}
        self._spent: list[float] = []  # seconds of each run that this process has made

    def attempt(self, trial: Trial, *, wait: bool = False) -> Results | str | None:
        """The result of a run, or why it failed; None: another process makes it."""
        name = _name(trial)
        if name is None or is_finished(name, self._out):
            return self._make(trial, name)
        try:
            with FileLock(self._out / LOCKS / f"{name}.lock", mode=0o600, blocking=wait):
                return self._make(trial, name)
        except Timeout:
            self._unfinished.discard(name)
            return None

    def _make(self, trial: Trial, name: str | None) -> Results | str:
        place, start = self._planned.index(trial) + 1, time.monotonic()
        left = _time_left(self._spent, len(self._unfinished), self._at_once)
        terminal.err(f"run {place} of {len(self._planned)}{left}: {trial.words}")
        try:
            if self._at_once > 1 and (failure := _in_process(command(self._file, trial, self._out))):
                return failure
            return run(trial.config, self._out / trial.name)
        except UserError as error:
            return str(error)
        finally:
            if name in self._unfinished:
                self._spent.append(time.monotonic() - start)
                self._unfinished.discard(name)


def _together(attempt: Callable[[Trial], _T], chosen: Sequence[Trial], at_once: int) -> list[_T]:
    """The outcomes, so many at once; one at a time in this thread, where Ctrl-C arrives."""
    if at_once == 1:
        return list(map(attempt, chosen))
    with ThreadPoolExecutor(at_once) as pool:
        try:
            return list(pool.map(attempt, chosen))
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)  # what runs has heard the terminal's Ctrl-C too
            raise


def _in_process(words: str) -> str:
    """Runs a command line in a process of its own; its last line on stderr where it fails."""
    command = [sys.executable, "-m", "pbr_jax", *shlex.split(words)[1:]]
    done = subprocess.run(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace", check=False
    )
    return "" if done.returncode == 0 else done.stderr.strip().rsplit("\n", 1)[-1] or "it failed"


def _time_left(spent: Sequence[float], runs: int, at_once: int) -> str:
    """The time that so many runs will take, in words; nothing before the first run is made."""
    if not spent or not runs:
        return ""
    seconds = sum(spent) / len(spent) * runs / at_once
    unit, size = next(pair for pair in (("h", 3600), ("min", 60), ("s", 0)) if seconds >= 2 * pair[1])
    return f", about {seconds / (size or 1):.0f} {unit} left"


def dry(planned: Sequence[Trial], out: Path | None, part: slice = ALL) -> Iterator[str]:
    """Describes what a sweep would do: for each run its state and its stages. Shared stages are listed once.

    `part`: the runs that are described.

    Raises:
      UserError: after the last run, if some runs would be refused.
    """
    shown: set[str] = set()
    refused = 0
    looked_at = range(len(planned))[part]
    for place in looked_at:
        trial = planned[place]
        try:
            plan = Plan(trial.config)
            plan.check()
            state = "finished" if out is not None and is_finished(plan.name, out) else "would be run"
            stages = tree(plan.last, shown) or "all its stages stand above"
        except UserError as error:
            refused += 1
            state, stages = "would be refused", str(error)
        yield f"run {place + 1} of {len(planned)}: {trial.words}: {state}\n{textwrap.indent(stages, '  ')}"
    if refused:
        raise UserError(f"{refused} of {len(looked_at)} runs would be refused, as is said above; mend them")


def _name(trial: Trial) -> str | None:
    """The trial's name; None for one that will be refused."""
    try:
        return trial.name
    except UserError:
        return None


# -- the folder ----------------------------------------------------------------------------------------


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
    foreign = [path.name for path in there if path.name not in _BESIDE and not (path / OWNER).is_file()]
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
    present = {one["run"] for one in listed}
    for name, record in earlier.items():
        if name not in present:
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

"""Executes the runs of a sweep: sequentially, in parallel, or shared with other processes."""

import contextlib
import shlex
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pbr_jax.base import interrupts, terminal
from pbr_jax.base.types import UserError
from pbr_jax.config import Config, ConfigFile
from pbr_jax.experiment.plan import Plan, require_one_process
from pbr_jax.experiment.run import Results, run
from pbr_jax.graph.lists import tree
from pbr_jax.sweeps import folder as sweep_folder
from pbr_jax.sweeps.claims import Claims
from pbr_jax.sweeps.folder import is_finished
from pbr_jax.sweeps.sweep import Trial, command, identity, trials

ALL = slice(None)
STALE_AFTER = 300.0
"""Seconds: file systems of clusters show a change to other hosts after up to one minute."""
_POLL = 2.0  # seconds between two looks at the runs of other processes, which take longer

_Outcome = Results | str | None  # of a run: made, why it could not be, or left to the process that has it


def sweep(
    file: ConfigFile,
    out: str | Path,
    base: Config | None = None,
    max_parallel: int = 1,
    *,
    part: slice = ALL,
    stale_after: float = STALE_AFTER,
) -> list[Results]:
    """Executes the runs of a sweep, each in `out/<name>`, and returns their results. Finished runs are read.

    Several processes can work on the same folder. Each run is claimed by one process, and a process waits
    for the others once no run is left to claim. `sweep.jsonl` lists the names and overrides of all runs of
    the sweep, followed by those of earlier sweeps into this folder. Runs that this sweep replaces are marked.

    Args:
      file: the config file, which defines `sweep()` (`pbr_jax.config.load` reads it).
      out: the folder of the sweep.
      base: the config that the sweep changes. None: the file's own.
      max_parallel: the number of runs at a time, each in its own process.
      part: the runs to execute; `slice(i, None, n)` is shard i of n, counted from 0.
      stale_after: takes over a run of another host after this many seconds without a sign of life.

    Raises UserError after all runs have ended, if some failed. The message names them.
    """
    require_one_process()
    out, base = Path(out), base or file.config
    planned = trials(file, base)
    chosen, earlier = planned[part], sweep_folder.own(out)
    names = [_name(trial) for trial in chosen]
    same = identity(file, base)
    if not sweep_folder.is_noted(
        names, len(planned), earlier, same
    ):  # many that begin together write one list
        sweep_folder.note([(_name(trial), trial.overrides) for trial in planned], out, earlier, same)
    clock = _Clock([name for name in names if not is_finished(name, out)], max_parallel)
    with Claims(out / sweep_folder.CLAIMS, stale_after) as claims:

        def make(trial: Trial, name: str | None) -> Results | str:
            place = planned.index(trial) + 1
            terminal.err(f"run {place} of {len(planned)}{clock.left()}: {trial.words}")
            try:
                with clock.timing(name):
                    if max_parallel > 1 and (failure := _in_process(command(file, trial, out))):
                        return failure
                    return run(trial.config, out / trial.name)
            except UserError as error:
                return str(error)

        def attempt(trial: Trial) -> _Outcome:
            name = _name(trial)
            if name is None or is_finished(name, out):
                return make(trial, name)
            if failure := claims.failure(name):
                return failure
            if not claims.take(name):
                clock.leave(name)
                return None
            outcome = make(trial, name)
            claims.release(name, outcome if isinstance(outcome, str) else "")
            return outcome

        outcomes = _all(attempt, chosen, max_parallel, claims)
    failed = [f"{dict(t.overrides)}: {o}" for t, o in zip(chosen, outcomes) if isinstance(o, str)]
    if failed:
        raise UserError(
            f"{len(failed)} of {len(chosen)} runs failed, the others are in {out}: {'; '.join(failed)}"
        )
    return [outcome for outcome in outcomes if isinstance(outcome, Results)]


def _all(
    attempt: Callable[[Trial], _Outcome], chosen: Sequence[Trial], lanes: int, claims: Claims
) -> list[_Outcome]:
    """The outcome of every trial. Waits for runs of other processes, or takes them over."""
    outcomes = _together(attempt, chosen, lanes)
    told = ""
    while left := [place for place, outcome in enumerate(outcomes) if outcome is None]:
        waiting = "; ".join(f"{chosen[place].words} ({claims.holder(chosen[place].name)})" for place in left)
        if waiting != told:
            terminal.err(f"waiting for runs that other processes make: {waiting}")
            told = waiting
        time.sleep(_POLL)
        for place, outcome in zip(left, _together(attempt, [chosen[place] for place in left], lanes)):
            outcomes[place] = outcome
    return outcomes


def _together(attempt: Callable[[Trial], _Outcome], chosen: Sequence[Trial], lanes: int) -> list[_Outcome]:
    """The outcomes, so many at once; one at a time in this thread, where Ctrl-C arrives."""
    if lanes == 1:
        return list(map(attempt, chosen))
    with ThreadPoolExecutor(lanes) as pool:
        try:
            return list(pool.map(attempt, chosen))
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            interrupts.stop_children()
            raise


def _in_process(words: str) -> str:
    """Runs a command line in a process of its own; its last line on stderr where it fails."""
    status, told = interrupts.run_child(shlex.split(words)[1:])
    return "" if status == 0 else told.strip().rsplit("\n", 1)[-1] or "it failed"


class _Clock:
    """The time that a sweep's unfinished runs will take, from that of those which it has made."""

    def __init__(self, waiting: Sequence[str | None], at_once: int) -> None:
        self._waiting: list[str | None] = list(waiting)
        self._at_once = at_once
        self._spent: list[float] = []

    @contextlib.contextmanager
    def timing(self, name: str | None) -> Iterator[None]:
        """Measures a run, unless it was there before."""
        start = time.monotonic()
        try:
            yield
        finally:
            if name in self._waiting:
                self._waiting.remove(name)
                self._spent.append(time.monotonic() - start)

    def leave(self, name: str) -> None:
        """Counts a run no more, since another process makes it."""
        if name in self._waiting:
            self._waiting.remove(name)

    def left(self) -> str:
        """In words; nothing before the first run is made, or where all are."""
        if not self._spent or not self._waiting:
            return ""
        seconds = sum(self._spent) / len(self._spent) * len(self._waiting) / self._at_once
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

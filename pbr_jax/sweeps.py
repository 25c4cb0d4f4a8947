"""Sweeps: many runs from one config file, each named by the hash of all that it depends on.

A config file's `sweep()` yields dotted overrides; as `sweep(config=None)` it is given the config that these
will change. The functions here build them: `grid` (every combination), `zipped` (side by side), `seeds`, and
`product` (of several sweeps).

    def sweep():
        return product(zipped({"system": ["bm25", "dense"], "retrieve.method": ["bm25", "dense"]}),
                       grid({"retrieve.k": [1, 4]}))
"""

import contextlib
import inspect
import itertools
import shlex
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pbr_jax import interrupts, terminal
from pbr_jax.artefacts import digest
from pbr_jax.config import Config, ConfigFile, Overrides, named, overridden, override, to_dict
from pbr_jax.config.reading import blamed
from pbr_jax.eval.run_files import verified
from pbr_jax.experiment import Results, run
from pbr_jax.files import parse_json, private_folder, write_text
from pbr_jax.graph_lists import tree
from pbr_jax.parts.run import line
from pbr_jax.plan import Plan, require_one_process
from pbr_jax.run_folder import OWNER, flat
from pbr_jax.types import UserError


def grid(values: Mapping[str, Iterable[Any]]) -> Iterator[dict[str, Any]]:
    """Every combination of the fields' values."""
    for combination in itertools.product(*_columns("grid", values)):
        yield dict(zip(values, combination, strict=True))


def zipped(values: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """The first value of every field together, then the second, and so on."""
    columns = _columns("zipped", values)
    lengths = dict(zip(values, map(len, columns), strict=True))
    if len(set(lengths.values())) > 1:
        raise UserError(f"zipped() wants lists of one length, found {lengths}")
    for row in zip(*columns, strict=True):
        yield dict(zip(values, row, strict=True))


def _columns(caller: str, values: Mapping[str, Iterable[Any]]) -> list[list[Any]]:
    for name, column in values.items():
        if not isinstance(column, Iterable):
            raise UserError(f"{caller}() wants lists of values, found {column!r:.60} for {name}; write [...]")
    return [list(column) for column in values.values()]


def seeds(count: int) -> Iterator[dict[str, Any]]:
    """The seeds 0 … count-1."""
    return grid({"seed": range(count)})


def product(*sweeps: Iterable[Overrides]) -> Iterator[dict[str, Any]]:
    """Every combination of several sweeps; a field that two of them set takes the later value."""
    for combination in itertools.product(*map(list, sweeps)):
        yield {name: value for overrides in combination for name, value in overrides.items()}


@dataclass(frozen=True)
class Trial:
    """One run of a sweep."""

    overrides: Overrides
    config: Config

    @cached_property
    def name(self) -> str:
        """The hash of its identity, so that changed data, weights or code make a new run beside the old.

        Raises UserError for whatever the run would be refused for: missing data or models.
        """
        return Plan(self.config).name


def trials(file: ConfigFile, base: Config) -> list[Trial]:
    """The runs of a config file's sweep over `base`, without repetitions. UserError: it has no sweep."""
    with blamed(file.path):
        found = [_trial(file, base, entry) for entry in _overrides(file, base)]
    return list({digest(to_dict(trial.config)): trial for trial in found}.values())


def _trial(file: ConfigFile, base: Config, entry: Overrides) -> Trial:
    """One run. Its name tells methods of `base` that are not the file's, also where the sweep names it."""
    config = override(base, entry)
    if "system" in entry:
        methods = overridden(file.config, base)
        config = named(config, file.config, {n: v for n, v in methods.items() if n not in entry})
    return Trial(entry, config)


def _overrides(file: ConfigFile, base: Config) -> list[Overrides]:
    """What a config file's sweep yields; UserError for what could not be written down in a list of runs."""
    if file.sweep is None:
        raise UserError("it has no sweep(), so it is one run; start it with pbr-jax run, or add sweep()")
    given = file.sweep(base) if inspect.signature(file.sweep).parameters else file.sweep()
    entries: list[Any] = list(given) if isinstance(given, Iterable) else [given]
    for entry in entries:
        if not _is_plain(entry):
            raise UserError(
                f"sweep() gives {entry!r:.80}, want dicts of plain values by dotted names, such as "
                "{'retrieve.k': 4}; yield them, or return a list of them"
            )
    if not entries:
        raise UserError("sweep() gives no runs; yield at least one dict, {} for the config as it is")
    return entries


def _is_plain(entry: Any) -> bool:
    if not isinstance(entry, Mapping) or not all(isinstance(name, str) for name in entry):
        return False
    try:
        return bool(line(dict(entry)))
    except (TypeError, ValueError):
        return False


def command(file: ConfigFile, trial: Trial, out: Path) -> str:
    """The command line of one run, whole: it needs nothing but the config file."""
    flags = [f"--{name}={shlex.quote(_text(value))}" for name, value in _changes(file, trial)]
    return " ".join(
        ["pbr-jax run", shlex.quote(str(file.path)), *flags, "--out", shlex.quote(str(out / trial.name))]
    )


def _changes(file: ConfigFile, trial: Trial) -> list[tuple[str, Any]]:
    """The fields in which a trial differs from the file's own config; those that bring others first."""
    before, after = flat(to_dict(file.config)), flat(to_dict(trial.config))
    first = {name: after[name] for name in after if name.endswith(".method") or name == "select.llm.model"}
    start = flat(to_dict(override(file.config, first))) if file.config != trial.config else before
    rest = {name: value for name, value in after.items() if name not in start or start[name] != value}
    return [(n, v) for n, v in first.items() if before.get(n) != v] + list(rest.items())


def _text(value: Any) -> str:
    return "None" if value is None else str(value)


def sweep(
    file: ConfigFile, out: str | Path, base: Config | None = None, max_parallel: int = 1
) -> list[Results]:
    """Runs every trial of a sweep, each into `out/<name>`; finished ones are found, not run again.

    A trial that fails does not stop the others; the error at the end names all that failed. `sweep.jsonl`
    lists names and overrides, those of earlier sweeps into the same folder last.
    """
    require_one_process()
    out, base = Path(out), base or file.config
    planned = trials(file, base)
    earlier = claim(out)

    def attempt(place: int, trial: Trial) -> Results | str:
        terminal.err(f"run {place} of {len(planned)}{clock.left()}: {_words(trial)}")
        try:
            with clock.timing(names[place - 1]):
                if max_parallel > 1:
                    failure = _in_process(command(file, trial, out))
                    if failure:
                        return failure
                return run(trial.config, out / trial.name)
        except UserError as error:
            return str(error)

    names = _note(planned, out, earlier)
    clock = _Clock([name for name in names if not _is_finished(name, out)], max_parallel)
    outcomes = _together(attempt, planned, max_parallel)
    failed = [f"{dict(t.overrides)}: {o}" for t, o in zip(planned, outcomes) if isinstance(o, str)]
    if failed:
        raise UserError(
            f"{len(failed)} of {len(planned)} runs failed, the others are in {out}: {'; '.join(failed)}"
        )
    return [outcome for outcome in outcomes if isinstance(outcome, Results)]


def alone(planned: Sequence[Trial], index: int, out: Path) -> Results:
    """Makes one run of a sweep, into `out/<name>`; `sweep.jsonl` lists all of them, as of the whole sweep."""
    trial, earlier = planned[index], claim(out)
    if trial.name not in earlier:  # of many that begin together the first write the same list
        _note(planned, out, earlier)
    return run(trial.config, out / trial.name)


def _note(planned: Sequence[Trial], out: Path, earlier: Mapping[str, Any]) -> list[str | None]:
    """Writes the list of a sweep's runs, and returns their names; None for one that will be refused."""
    names = [_name(trial) for trial in planned]
    listed = [{"run": n, "overrides": dict(t.overrides)} for n, t in zip(names, planned, strict=True)]
    listed += [{"run": n, "overrides": o} for n, o in earlier.items() if n not in names]
    write_text(out / _LIST, "".join(map(line, listed)))
    return names


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

    def left(self) -> str:
        """In words; nothing before the first run is made, or where all are."""
        if not self._spent or not self._waiting:
            return ""
        seconds = sum(self._spent) / len(self._spent) * len(self._waiting) / self._at_once
        unit, size = next(pair for pair in (("h", 3600), ("min", 60), ("s", 0)) if seconds >= 2 * pair[1])
        return f", about {seconds / (size or 1):.0f} {unit} left"


def dry(planned: Sequence[Trial], out: Path | None, index: int | None = None) -> Iterator[str]:
    """What a sweep would do, a piece for each run: whether it is finished, and its stages, shared ones once.

    `index`: of the only run that is looked at.

    Raises:
      UserError: at the end, where runs would be refused.
    """
    shown: set[str] = set()
    refused = 0
    looked_at = range(len(planned)) if index is None else [index]
    for place in looked_at:
        trial = planned[place]
        try:
            plan = Plan(trial.config)
            plan.check()
            state = "finished" if out is not None and _is_finished(plan.name, out) else "would be run"
            stages = tree(plan.last, shown) or "all its stages stand above"
        except UserError as error:
            refused += 1
            state, stages = "would be refused", str(error)
        yield f"run {place + 1} of {len(planned)}: {_words(trial)}: {state}\n{textwrap.indent(stages, '  ')}"
    if refused:
        raise UserError(f"{refused} of {len(looked_at)} runs would be refused, as is said above; mend them")


def _words(trial: Trial) -> str:
    return ", ".join(f"{name} {value}" for name, value in trial.overrides.items()) or trial.config.system


def _is_finished(name: str | None, out: Path) -> bool:
    """Whether a run's folder is there and as the run wrote it."""
    try:
        return name is not None and bool(verified(out / name, whole=True))
    except UserError:
        return False


_LIST = "sweep.jsonl"


def claim(out: Path) -> dict[str, Any]:
    """Makes the folder a sweep's, and tells the runs that earlier sweeps listed in it.

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
    foreign = [path.name for path in there if path.name != _LIST and not (path / OWNER).is_file()]
    if (out / OWNER).exists() or (foreign and earlier is None) or (out / _LIST).is_symlink():
        held = "a run" if (out / OWNER).exists() else ", ".join(foreign[:4]) or f"a foreign {_LIST}"
        raise UserError(f"{out} holds {held}, which no sweep wrote; choose a new --out")
    return earlier or {}


def _listed(path: Path) -> dict[str, Any] | None:
    """What a sweep's list says; None where there is none."""
    if not path.exists():
        return None
    try:
        records = [parse_json(text) for text in path.read_text(encoding="utf-8").splitlines()]
        return {record["run"]: record["overrides"] for record in records if record["run"] is not None}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} was not written by a sweep; choose a new --out") from error


def _name(trial: Trial) -> str | None:
    """The trial's name; None for one that will be refused."""
    try:
        return trial.name
    except UserError:
        return None


def _together(
    attempt: Callable[[int, Trial], Results | str], planned: Sequence[Trial], lanes: int
) -> list[Results | str]:
    """The outcome of every trial, so many at once; one at a time in this thread, where Ctrl-C arrives."""
    if lanes == 1:
        return list(map(attempt, itertools.count(1), planned))
    with ThreadPoolExecutor(lanes) as pool:
        try:
            return list(pool.map(attempt, itertools.count(1), planned))
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            interrupts.stop_children()
            raise


def _in_process(words: str) -> str:
    """Runs a command line in a process of its own; its last line on stderr where it fails."""
    status, told = interrupts.run_child(shlex.split(words)[1:])
    return "" if status == 0 else told.strip().rsplit("\n", 1)[-1] or "it failed"

"""Sweeps: many runs from one config file, each named by the hash of its resolved config.

A config file's `sweep()` yields dotted overrides. The functions here build them: `grid` (every
combination), `zipped` (side by side), `seeds`, and `product` (of several sweeps).

    def sweep():
        return product(zipped({"system": ["bm25", "dense"], "retrieve.method": ["bm25", "dense"]}),
                       grid({"retrieve.k": [1, 4]}))
"""

import itertools
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pbr_jax.artefacts import write_text
from pbr_jax.config import Config, ConfigFile, Overrides, digest, override, to_dict
from pbr_jax.data_stages import line
from pbr_jax.run import Results, run
from pbr_jax.types import UserError


def grid(values: Mapping[str, Iterable[Any]]) -> Iterator[dict[str, Any]]:
    """Every combination of the fields' values."""
    for combination in itertools.product(*values.values()):
        yield dict(zip(values, combination, strict=True))


def zipped(values: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """The first value of every field together, then the second, and so on."""
    lengths = {name: len(column) for name, column in values.items()}
    if len(set(lengths.values())) > 1:
        raise UserError(f"zipped() wants lists of one length, found {lengths}")
    for row in zip(*values.values(), strict=True):
        yield dict(zip(values, row, strict=True))


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

    @property
    def name(self) -> str:
        return digest(to_dict(self.config))


def trials(file: ConfigFile, base: Config) -> list[Trial]:
    """The runs of a config file's sweep over `base`, without repetitions; one run if it has none."""
    overrides = file.sweep() if file.sweep is not None else [{}]
    found = [Trial(entry, override(base, entry)) for entry in overrides]
    return list({trial.name: trial for trial in found}.values())


def command(file: ConfigFile, trial: Trial, out: Path) -> str:
    """The command line of one run, whole: it needs nothing but the config file."""
    flags = [f"--{name} {shlex.quote(_text(value))}" for name, value in _changes(file, trial)]
    return " ".join(
        ["pbr-jax run", shlex.quote(str(file.path)), *flags, "--out", shlex.quote(str(out / trial.name))]
    )


def _changes(file: ConfigFile, trial: Trial) -> list[tuple[str, Any]]:
    before, after = _flat(to_dict(file.config)), _flat(to_dict(trial.config))
    return [(name, value) for name, value in after.items() if before[name] != value]


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat


def _text(value: Any) -> str:
    return "None" if value is None else str(value)


def sweep(
    file: ConfigFile, out: str | Path, base: Config | None = None, max_parallel: int = 1
) -> list[Results]:
    """Runs every trial of a sweep, each into `out/<name>`; finished ones are found, not run again.

    A trial that fails does not stop the others; the error at the end names all that failed. `sweep.jsonl`
    lists names and overrides.
    """
    out, base = Path(out), base or file.config
    planned = trials(file, base)
    out.mkdir(parents=True, exist_ok=True)
    write_text(
        out / "sweep.jsonl", "".join(line({"run": t.name, "overrides": dict(t.overrides)}) for t in planned)
    )

    def attempt(trial: Trial) -> Results | str:
        if max_parallel > 1:
            arguments = shlex.split(command(file, trial, out))[1:]
            done = subprocess.run(
                [sys.executable, "-m", "pbr_jax.cli", *arguments], capture_output=True, text=True
            )
            if done.returncode != 0:
                return done.stderr.strip().rsplit("\n", 1)[-1]
        try:
            return run(trial.config, out / trial.name)
        except UserError as error:
            return str(error)

    with ThreadPoolExecutor(max_parallel) as pool:
        outcomes = list(pool.map(attempt, planned))
    failed = [f"{t.name} ({dict(t.overrides)}): {o}" for t, o in zip(planned, outcomes) if isinstance(o, str)]
    if failed:
        raise UserError(
            f"{len(failed)} of {len(planned)} runs failed, the others are in {out}: {'; '.join(failed)}"
        )
    return [outcome for outcome in outcomes if isinstance(outcome, Results)]

"""Sweeps: many runs from one config file. Each run is named by the hash of everything that it depends on.

A config file's `sweep()` yields dicts of overrides by dotted field name. If it is defined as
`sweep(config=None)`, it receives the config that they will change. Functions of this module build the dicts:
`grid` (all combinations), `zipped` (corresponding values), `seeds`, and `product` (of several sweeps).

    def sweep():
        return product(zipped({"system": ["bm25", "dense"], "retrieve.method": ["bm25", "dense"]}),
                       grid({"retrieve.k": [1, 4]}))
"""

import inspect
import itertools
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from pbr_jax.base.types import UserError
from pbr_jax.cache.artefacts import digest
from pbr_jax.config import CHOSEN, Config, ConfigFile, Overrides, named, overridden, override, to_dict
from pbr_jax.config.reading import blamed
from pbr_jax.config.schema import SLOTS, members
from pbr_jax.config.schema import values as values_of
from pbr_jax.eval.run_files import flat
from pbr_jax.experiment.plan import Plan
from pbr_jax.options.base import as_python
from pbr_jax.stages.run import line


def grid(values: Mapping[str, Iterable[Any]]) -> Iterator[dict[str, Any]]:
    """All combinations of the fields' values.

    Args:
      values: lists of values by dotted field name.

    Returns:
      Dicts for `sweep()`, one per run. The last field changes fastest.
      `grid({"retrieve.k": [1, 4], "seed": [0, 1]})` gives four runs.

    Raises UserError if a value is not a list.
    """
    for combination in itertools.product(*_columns("grid", values)):
        yield dict(zip(values, combination, strict=True))


def zipped(values: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Combines the first values of all fields, then the second values, and so on.

    `zipped({"system": ["bm25", "dense"], "retrieve.method": ["bm25", "dense"]})` gives two runs.

    Args:
      values: lists of values by dotted field name, all of the same length.

    Returns:
      Dicts for `sweep()`, one per run.

    Raises UserError if a value is not a list, or if the lists differ in length.
    """
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
    """Runs with seeds 0 to count - 1, like `grid({"seed": range(count)})`. Reports show them as one row."""
    return grid({"seed": range(count)})


def product(*sweeps: Iterable[Overrides]) -> Iterator[dict[str, Any]]:
    """All combinations of the runs of several sweeps.

    `product(grid({"retrieve.k": [1, 4]}), seeds(3))` gives six runs. If several sweeps set the same field,
    the value of the last one is used.
    """
    for combination in itertools.product(*map(list, sweeps)):
        yield {name: value for overrides in combination for name, value in overrides.items()}


@dataclass(frozen=True)
class Trial:
    """One run of a sweep: its config and its overrides."""

    overrides: Overrides
    config: Config

    @cached_property
    def name(self) -> str:
        """The hash of the run's identity. If data, weights or code change, the run gets a new name.

        Raises UserError if the run would be refused, for example because data or models are missing.
        """
        return Plan(self.config).name

    @property
    def words(self) -> str:
        """The fields that this run changes, with their values."""
        return ", ".join(f"{name} {value}" for name, value in self.overrides.items()) or self.config.system


def trials(file: ConfigFile, base: Config) -> list[Trial]:
    """The distinct runs of a config file's sweep over `base`. Raises UserError if the file has no sweep."""
    with blamed(file.path):
        found = [_trial(file, base, entry) for entry in _overrides(file, base)]
    return list({digest(to_dict(trial.config)): trial for trial in found}.values())


def _trial(file: ConfigFile, base: Config, entry: Overrides) -> Trial:
    """One run. Its name tells methods of `base` that are not the file's, also where the sweep names it."""
    config = override(base, entry, file.path)
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
    rows: list[Any] = [
        _as_fields(one, base, file.path) if isinstance(one, Mapping) else one for one in entries
    ]
    for entry, row in zip(entries, rows, strict=True):
        if not _is_plain(row):
            raise UserError(
                "sweep() wants dicts of plain values by dotted names, such as {'retrieve.k': 4}, or of a "
                f"method by its slot, such as {{'retrieve': BM25(k=4)}}; it gives {entry!r}"
            )
    if not rows:
        raise UserError("sweep() gives no runs; yield at least one dict, {} for the config as it is")
    return rows


def _as_fields(entry: Mapping[Any, Any], base: Config, file: Path) -> dict[Any, Any]:
    """The entry with each method that is given by its slot as the fields that make it."""
    fields: dict[Any, Any] = {}
    for name, value in entry.items():
        if name not in SLOTS or not isinstance(value, SLOTS[name]):
            fields[name] = as_python(value)
            continue
        changes = _changes(base, replace(base, **{name: value}), file)
        chosen = {field: one for field, one in changes.items() if field.startswith(f"{name}.")}
        made = getattr(override(base, chosen, file), name)
        if type(made) is not type(value):
            raise UserError(
                f"{type(value).__name__} in sweep() has the name of {type(made).__name__}; give it one of "
                'its own: method: Literal["my_method"] = "my_method"'
            )
        fields |= chosen
    return fields


def _is_plain(entry: Any) -> bool:
    if not isinstance(entry, Mapping) or not all(isinstance(name, str) for name in entry):
        return False
    try:
        return bool(line(dict(entry)))
    except (TypeError, ValueError):
        return False


def identity(file: ConfigFile, base: Config) -> str:
    """The identity of a sweep in its folder: the config file's name and the changes on the command line."""
    before, after = flat(to_dict(file.config)), flat(to_dict(base))
    changed = {name: value for name, value in after.items() if before.get(name) != value}
    return digest([file.path.name, changed])[:16]


def command(file: ConfigFile, trial: Trial, out: Path) -> str:
    """The complete command line of one run. It needs only the config file."""
    changes = _changes(file.config, trial.config, file.path)
    flags = [_flag(name, value) for name, value in changes.items()]
    return " ".join(
        ["pbr-jax run", shlex.quote(str(file.path)), *flags, "--out", shlex.quote(str(out / trial.name))]
    )


def _changes(start: Config, wanted: Config, file: Path) -> dict[str, Any]:
    """The fields that make one config of another; those that bring others first."""
    before, after = _fields(start), _fields(wanted)
    bring = (*CHOSEN, "generator.method", "select.llm.model")
    first = {name: after[name] for name in after if name in bring and before.get(name) != after[name]}
    brought = _fields(override(start, first, file))
    rest = {name: value for name, value in after.items() if name not in brought or brought[name] != value}
    return first | rest


def _fields(config: Config) -> dict[str, Any]:
    """A config's values by dotted names; the methods that a method is made of by theirs (`retrieve.of`)."""
    values = values_of(config)
    return {
        name: [one.method for one in value]
        if members(value)
        else list(value)
        if isinstance(value, tuple)
        else value
        for name, value in values.items()
        if not re.search(r"\.of\.\w+\.method$", name)
    }


def _flag(name: str, value: Any) -> str:
    """A field and its value, or its values."""
    if isinstance(value, list):
        return " ".join([f"--{name}", *(shlex.quote(str(one)) for one in value)])
    return f"--{name}={shlex.quote(str(value))}"

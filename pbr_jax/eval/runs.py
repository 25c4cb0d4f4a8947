"""Finished runs read back from their folders, and the rows that they make in a table."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pbr_jax.base.types import UserError
from pbr_jax.eval import json_fields
from pbr_jax.eval.run_files import (
    RESULTS,
    parse_object,
    read_json,
    read_text,
    verified,
)

SEEDS = ("seed", "generate.seed")
UNTOLD = frozenset({*SEEDS, "cache", "benchmark.root"})
"""Config fields that make no different system: seeds are averaged over, places carry no meaning."""


@dataclass(frozen=True)
class Record:
    """A scored line of predictions.jsonl."""

    user_id: str
    prediction: str | None
    target: str | None
    metrics: dict[str, float]
    expected: float | None = None  # rating
    near: bool = False  # whether the user's own history nearly holds the target
    unit: str = ""  # what belongs together
    category: str = ""
    history: int | None = None  # documents that the user had; None in older runs
    over: tuple[str, ...] = ()  # the parts of a stream that it belongs to

    @property
    def cluster(self) -> str:
        """What intervals take together: the unit, or else the user."""
        return self.unit or self.user_id


@dataclass(frozen=True)
class Run:
    """A run's folder. `config` is flat, its keys dotted; `records` are the scored examples by id.

    `title`, `task_metrics` and `labels` are the task's, empty where an older run does not say them.
    `weights` has hashes of the content of "llm", "select.llm" and "encoder", as far as the run says so.
    `ceiling`: it read the answers. `without_near` has `n` and `metrics` of the questions whose target the
    user's history does not nearly hold; empty where there are no others. `copied`: see `copies`. `blocks`, of
    a stream: the metrics of the questions from a place to before another, and of all before that. `clusters`:
    what intervals are over, "users" or "units". `over`: of parts of a stream. `shift`: how many questions
    arrive before a stream's shift. `learned`: what its learners report, "slot: name". `judge`: what a
    language model that grades answers found (`eval.judged`); empty where none did.
    """

    path: Path
    system: str
    benchmark: str
    title: str
    task_metrics: tuple[str, ...]
    labels: tuple[str, ...]
    split: str
    n: int
    dropped: int
    metrics: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    fingerprint: dict[str, Any]
    variants: dict[str, str]
    notes: tuple[str, ...]
    answers: dict[str, float]
    counts: dict[str, float]
    seconds: dict[str, float]
    config: dict[str, Any]
    records: dict[str, Record] | None
    categories: dict[str, "Category"]
    weights: dict[str, str]
    ceiling: bool
    without_near: dict[str, Any]
    copied: dict[str, float]
    blocks: dict[tuple[int, int], tuple[dict[str, float], dict[str, float]]]
    clusters: str
    over: dict[str, "Category"]
    shift: int | None
    learned: dict[str, float]
    judge: dict[str, Any]


@dataclass(frozen=True)
class Category:
    """The scored examples of a category or of a part of a stream; `users`: None in older runs."""

    n: int
    users: int | None
    metrics: dict[str, float]
    intervals: dict[str, tuple[float, float]]


@dataclass(frozen=True)
class Row:
    """One line of a table: a run, or runs that differ by seed alone."""

    label: str
    runs: tuple[Run, ...]

    @property
    def first(self) -> Run:
        return self.runs[0]

    @property
    def system(self) -> str:
        return self.first.system


def read_run(path: Path) -> Run:
    """The run in a folder; UserError where a file is missing, broken, or not what the run wrote."""
    results, name = verified(path), path / RESULTS
    fingerprint = json_fields.mapping(results, "fingerprint", name, optional=True)
    task = json_fields.mapping(results, "task", name, optional=True)
    variants = json_fields.mapping(results, "variants", name, optional=True)
    return Run(
        path=path,
        system=json_fields.text(results, "system", name),
        benchmark=json_fields.text(results, "benchmark", name),
        title=" ".join(str(task.get("title", "")).split()),
        task_metrics=tuple(map(str, json_fields.items(task, "metrics", name))),
        labels=tuple(map(str, json_fields.items(task, "labels", name))),
        split=json_fields.text(results, "split", name),
        n=json_fields.count(results, "n", name),
        dropped=json_fields.count(results, "dropped", name),
        metrics=json_fields.numbers(results, "metrics", name, optional=False),
        intervals=json_fields.pairs(results, "intervals", name),
        fingerprint=fingerprint,
        variants={key: str(v) for key, v in variants.items()},
        notes=tuple(map(str, json_fields.items(results, "notes", name))),
        answers=json_fields.numbers(results, "answers", name),
        counts=json_fields.numbers(results, "counts", name),
        seconds=json_fields.numbers(results, "seconds", name),
        config=_read_config(path / "config.json"),
        records=_read_records(path / "predictions.jsonl"),
        categories=_categories(results, name),
        weights=_weights(path / "run.json"),
        ceiling=results.get("ceiling") is True,
        without_near=json_fields.mapping(results, "without_near_targets", name, optional=True),
        copied=json_fields.numbers(results, "copied", name),
        blocks={
            (json_fields.count(one, "start", name), json_fields.count(one, "end", name)):
            (json_fields.numbers(one, "metrics", name), json_fields.numbers(one, "running", name))
            for one in json_fields.items(results, "blocks", name)
        },
        clusters="units" if results.get("clusters") == "units" else "users",
        over=_parts(results, name),
        shift=json_fields.count(results, "shift", name) if "shift" in results else None,
        learned=_learned(results, name),
        judge=_judge(results, name),
    )  # fmt: skip


def table_rows(runs: Sequence[Run]) -> list[Row]:
    """Rows of runs on one benchmark and split: seeds collapsed, labelled by system and what differs."""
    alike: dict[str, list[Run]] = {}
    for run in runs:
        options = {key: value for key, value in run.config.items() if key not in UNTOLD}
        alike.setdefault(json.dumps([run.system, options], sort_keys=True), []).append(run)
    groups: list[tuple[Run, ...]] = []
    for group in alike.values():
        seeds = {tuple(str(run.config.get(field)) for field in SEEDS) for run in group}
        groups += [tuple(group)] if len(seeds) == len(group) else [(run,) for run in group]
    labels = [_label(group[0], [other[0] for other in groups]) for group in groups]
    return [
        Row(label if labels.count(label) == 1 else f"{label} ({group[0].path})", group)
        for label, group in zip(labels, groups, strict=True)
    ]


def run_labels(runs: Sequence[Run]) -> list[str]:
    """Each run's system, with the settings in which it differs from the others; with its folder where those
    are the same but for the seed."""
    labels = {
        run.path: row.label if len(row.runs) == 1 else f"{row.label} ({run.path})"
        for row in table_rows(runs)
        for run in row.runs
    }
    return [labels[run.path] for run in runs]


def differing_fields(run: Run, others: Sequence[Run]) -> list[str]:
    """Config fields, dotted, in which runs of the same system differ."""
    configs = [run.config, *(other.config for other in others if other.system == run.system)]
    fields = dict.fromkeys(key for config in configs for key in config if key not in UNTOLD)
    differing = [key for key in fields if any(config.get(key) != run.config.get(key) for config in configs)]
    if any("select.llm" in config for config in configs):  # none: of the others' its name tells enough
        differing = [
            key for key in differing if not key.startswith("select.llm") or key == "select.llm.model"
        ]
    return differing


def _label(run: Run, others: Sequence[Run]) -> str:
    settings = (f"{key}={run.config.get(key)}" for key in differing_fields(run, others))
    return " ".join([run.system, *settings])


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _read_config(path: Path) -> dict[str, Any]:
    try:
        return dict(_flat(read_json(path)))
    except RecursionError as error:
        raise UserError(f"{path}: nested too deeply ({error}); run again to write it anew") from None


def _categories(results: Mapping[str, Any], where: Path) -> dict[str, Category]:
    intervals = json_fields.mapping(results, "by_category_intervals", where, optional=True)
    users = json_fields.numbers(results, "by_category_users", where)
    categories = {}
    for name in json_fields.mapping(results, "by_category", where, optional=True):
        metrics = json_fields.numbers(results["by_category"], name, f"{where}: by_category")
        n = int(metrics.pop("n", 0))
        pairs = json_fields.pairs(intervals, name, f"{where}: by_category_intervals")
        categories[name] = Category(n, int(users[name]) if name in users else None, metrics, pairs)
    return categories


def _parts(results: Mapping[str, Any], where: Path) -> dict[str, Category]:
    """Parts of a stream, by their names."""
    of_run = json_fields.mapping(results, "over", where, optional=True)
    found = {}
    for part in of_run:
        values, place = json_fields.mapping(of_run, part, where), f"{where}: over.{part}"
        n, users = (json_fields.count(values, field, place) for field in ("n", "users"))
        metrics, pairs = (
            json_fields.numbers(values, "metrics", place),
            json_fields.pairs(values, "intervals", place),
        )
        found[part] = Category(n, users, metrics, pairs)
    return found


def _learned(results: Mapping[str, Any], where: Path) -> dict[str, float]:
    of_run = json_fields.mapping(results, "learned", where, optional=True)
    return {
        f"{slot}: {name}": value
        for slot in of_run
        for name, value in json_fields.numbers(of_run, slot, f"{where}: learned").items()
    }


def _judge(results: Mapping[str, Any], where: Path) -> dict[str, Any]:
    found, place = json_fields.mapping(results, "judge", where, optional=True), f"{where}: judge"
    if not found:
        return {}
    numbers = {
        "n": json_fields.count(found, "n", place),
        "metrics": json_fields.numbers(found, "metrics", place),
        "intervals": json_fields.pairs(found, "intervals", place),
    }
    return {**found, **numbers}


def _weights(path: Path) -> dict[str, str]:
    """What run.json says of the models' content; nothing where there is no such file."""
    if not path.exists():
        return {}
    parts = json_fields.mapping(read_json(path), "parts", path, optional=True)
    models = {
        name: json_fields.mapping(parts, name, f"{path}: parts", optional=True)
        for name in ("llm", "select.llm", "encoder")
    }
    return {name: str(part["options"]) for name, part in models.items() if "options" in part}


def _read_records(path: Path) -> dict[str, Record] | None:
    """Scored examples by id, or None where the file is absent (a folder shared without texts)."""
    if not path.exists():
        return None
    records: dict[str, Record] = {}
    # Not splitlines(): texts may hold other characters that it takes for line ends.
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        value = parse_object(line, where)
        id = str(json_fields.required(value, "id", where))
        if id in records:
            raise UserError(f"{where}: id {id!r} stands there twice; ids must be unique")
        metrics = json_fields.mapping(value, "metrics", where, optional=True)
        if metrics:
            records[id] = Record(
                user_id=str(json_fields.required(value, "user_id", where)),
                prediction=value.get("prediction"),
                target=value.get("target"),
                metrics={key: json_fields.number(v, f"{where}: metrics.{key}") for key, v in metrics.items()},
                expected=_expected(value, where),
                near=value.get("near_target") is True,
                unit=str(value.get("unit", "")),
                category=str(value.get("category", "")),
                history=json_fields.count(value, "history", where) if "history" in value else None,
                over=tuple(map(str, json_fields.items(value, "over", where))),
            )
    return records


def _expected(value: Mapping[str, Any], where: object) -> float | None:
    expected = value.get("expected")
    return None if expected is None else json_fields.number(expected, f"{where}: expected")

"""Finished runs read back from their folders, the rows that they make in a table, and parts of them."""

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pbr_jax.base.types import UserError
from pbr_jax.eval.run_files import flat, lines, read_json, verified

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
    language model that grades answers found (`eval.evaluate.judged`); empty where none did. `unanswered`:
    the examples that are not scored because no answer to them can be used. `forgotten`: how many questions
    `pbr-jax forget` has removed; `metrics` were computed with them.
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
    unanswered: dict[str, Record]
    forgotten: int


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
    results = verified(path)
    try:
        return _run(path, results)
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path}: a field is missing or has another type ({type(error).__name__}: {error}); run it anew, "
            "into another folder or with --overwrite"
        ) from error


def _run(path: Path, results: Mapping[str, Any]) -> Run:
    task, judge = results.get("task") or {}, results.get("judge") or {}
    if judge:
        judge = {**judge, **_scores(judge)}
    records, unanswered = _read_records(path)
    return Run(
        path=path,
        system=_line(results["system"]),
        benchmark=_line(results["benchmark"]),
        title=_line(task.get("title", "")),
        task_metrics=tuple(task.get("metrics") or ()),
        labels=tuple(task.get("labels") or ()),
        split=_line(results["split"]),
        n=results["n"],
        dropped=results["dropped"],
        metrics=_floats(results["metrics"]),
        intervals=_pairs(results.get("intervals")),
        fingerprint=results.get("fingerprint") or {},
        variants=results.get("variants") or {},
        notes=tuple(results.get("notes") or ()),
        answers=_floats(results.get("answers")),
        counts=_floats(results.get("counts")),
        seconds=_floats(results.get("seconds")),
        config=flat(read_json(path / "config.json")),
        records=records,
        categories=_categories(results),
        weights=_weights(path / "run.json"),
        ceiling=results.get("ceiling") is True,
        without_near=results.get("without_near_targets") or {},
        copied=_floats(results.get("copied")),
        blocks={
            (block["start"], block["end"]): (_floats(block["metrics"]), _floats(block["running"]))
            for block in results.get("blocks") or ()
        },
        clusters="units" if results.get("clusters") == "units" else "users",
        over={
            part: Category(values["n"], values["users"], *_scores(values).values())
            for part, values in (results.get("over") or {}).items()
        },
        shift=results.get("shift"),
        learned={
            f"{slot}: {name}": float(value)
            for slot, values in (results.get("learned") or {}).items()
            for name, value in values.items()
        },
        judge=judge,
        unanswered=unanswered,
        forgotten=results.get("forgotten", 0),
    )


def _line(text: object) -> str:
    return " ".join(str(text).split())


def _floats(values: Mapping[str, Any] | None) -> dict[str, float]:
    return {name: float(value) for name, value in (values or {}).items()}


def _pairs(values: Mapping[str, Any] | None) -> dict[str, tuple[float, float]]:
    return {name: (float(low), float(high)) for name, (low, high) in (values or {}).items()}


def _scores(values: Mapping[str, Any]) -> dict[str, Any]:
    return {"metrics": _floats(values.get("metrics")), "intervals": _pairs(values.get("intervals"))}


def _categories(results: Mapping[str, Any]) -> dict[str, Category]:
    intervals = results.get("by_category_intervals") or {}
    users = results.get("by_category_users") or {}
    categories = {}
    for name, values in (results.get("by_category") or {}).items():
        metrics = _floats(values)
        n = int(metrics.pop("n", 0))
        categories[name] = Category(n, users.get(name), metrics, _pairs(intervals.get(name)))
    return categories


def _weights(path: Path) -> dict[str, str]:
    """What run.json says of the models' content; nothing where there is no such file."""
    parts = read_json(path).get("parts") or {} if path.exists() else {}
    models = {name: parts.get(name) or {} for name in ("llm", "select.llm", "encoder")}
    return {name: str(part["options"]) for name, part in models.items() if "options" in part}


def _read_records(path: Path) -> tuple[dict[str, Record] | None, dict[str, Record]]:
    """Scored examples by id, or None where the file is absent (a folder shared without texts); and those that
    would be scored if they had an answer."""
    if not (path / "predictions.jsonl").exists():
        return None, {}
    scored: dict[str, Record] = {}
    unanswered: dict[str, Record] = {}
    for line in lines(path):
        if line.get("metrics") or "unanswered" in line:
            (unanswered if "unanswered" in line else scored)[str(line["id"])] = Record(
                user_id=str(line["user_id"]),
                prediction=line.get("prediction"),
                target=line.get("target"),
                metrics=_floats(line["metrics"]),
                expected=line.get("expected"),
                near=line.get("near_target") is True,
                unit=str(line.get("unit", "")),
                category=str(line.get("category", "")),
                history=line.get("history"),
                over=tuple(line.get("over") or ()),
            )
    return scored, unanswered


def table_rows(runs: Sequence[Run]) -> list[Row]:
    """Rows of runs on one benchmark and split: seeds collapsed, labelled by system and what differs."""
    alike: dict[str, list[Run]] = {}
    for run in runs:
        options = {key: value for key, value in run.config.items() if key not in UNTOLD}
        alike.setdefault(json.dumps([run.system, options], sort_keys=True), []).append(run)
    groups: list[tuple[Run, ...]] = []
    for group in alike.values():
        seeds = {*map(seeds_of, group)}
        groups += [tuple(group)] if len(seeds) == len(group) else [(run,) for run in group]
    labels = [_label(group[0], [other[0] for other in groups]) for group in groups]
    return [
        Row(label if labels.count(label) == 1 else f"{label} ({group[0].path})", group)
        for label, group in zip(labels, groups, strict=True)
    ]


def seeds_of(run: Run) -> tuple[str, ...]:
    """The seeds of a run."""
    return tuple(str(run.config.get(field)) for field in SEEDS)


def run_labels(runs: Sequence[Run]) -> list[str]:
    """Each run's system, with the settings in which it differs from the others; with its folder where those
    are the same but for the seed."""
    labels = {
        run.path: row.label if len(row.runs) == 1 else f"{row.label} ({run.path})"
        for row in table_rows(runs)
        for run in row.runs
    }
    return [labels[run.path] for run in runs]


def confidence_of(run: Run) -> float:
    """Of the intervals that stand beside this run's numbers."""
    return setting(run, "eval.confidence", 0.95)


def setting(run: Run, field: str, default: float) -> float:
    """A number of the run's config, or the default where an older or edited config has none."""
    value = run.config.get(field)
    return float(value) if isinstance(value, int | float) and value > 0 else default


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


def measured(records: Iterable[Record], name: str) -> int:
    """How many of these questions have a metric; all of them where it is computed over all at once."""
    has = [name in record.metrics for record in records]
    return sum(has) or len(has)


def beside(count: int, n: int) -> str:
    """What stands beside a metric that is measured on another number of questions than n."""
    return "" if count in (0, n) else f" (n={count:,})"


def _label(run: Run, others: Sequence[Run]) -> str:
    settings = (f"{key}={run.config.get(key)}" for key in differing_fields(run, others))
    return " ".join([run.system, *settings])


_FEW = 10  # questions


def without_near_targets(rows: Sequence[Row]) -> list[Row]:
    """The same rows over the questions whose target the user's own history does not nearly hold.

    Empty where no run has other questions, or too few are left.
    """
    if not any(run.without_near.get("n") for row in rows for run in row.runs):
        return []
    return [dataclasses.replace(row, runs=tuple(map(_without_near, row.runs))) for row in rows]


def near_targets(all_questions: int, left: int) -> str:
    """What the tables of `without_near_targets` are of, in words."""
    few = f" {left} questions are too few to show much." if left < _FEW else ""
    return (
        f"Only the {left} questions whose answer does not nearly stand in an earlier document. In the other "
        f"{all_questions - left} one document of the user's history holds at least 60 % of the words of the "
        f"answer, so a model can copy it.{few}"
    )


def _without_near(run: Run) -> Run:
    if not run.without_near:
        return run
    return dataclasses.replace(
        run,
        n=run.without_near["n"],
        **_scores(run.without_near),
        records=_kept(run, (id for id, record in (run.records or {}).items() if not record.near)),
        categories={},
    )


def _kept(run: Run, ids: Iterable[str]) -> dict[str, Record] | None:
    return None if run.records is None else {id: run.records[id] for id in ids}


def over(run: Run, part: str) -> Run:
    """The run over the questions of a part of its stream; UserError where it has none such."""
    if part not in run.over:
        there = (
            f"there are {', '.join(run.over)}" if run.over else "it has no parts of a stream; set stream.size"
        )
        raise UserError(f"{run.path}: no scored question is of the part {part!r}; {there}")
    found = run.over[part]
    return dataclasses.replace(
        run,
        n=found.n,
        metrics=found.metrics,
        intervals=found.intervals,
        records=_kept(run, (id for id, record in (run.records or {}).items() if part in record.over)),
        unanswered={id: record for id, record in run.unanswered.items() if part in record.over},
        categories={},
        over={},
        blocks={},
        learned={},
        without_near={},
    )


def order(run: Run) -> str:
    """The order in which a run's questions arrive, and the seed, in words."""
    told = (
        "folds of users"
        if run.config.get("stream.protocol") in ("cross_users", "cross_units")
        else run.config.get("stream.order")
    )
    return f"{told}, seed {run.config.get('seed')}"

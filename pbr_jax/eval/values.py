"""Tables of values: each row's metrics with their intervals, overall and by category."""

import statistics
from collections.abc import Sequence

from pbr_jax.eval import notes as remarks
from pbr_jax.eval.comparable import (
    ABSENT,
    settings,
    shared_clusters,
    statistics_of,
)
from pbr_jax.eval.metrics import LOWER_IS_BETTER, within_range
from pbr_jax.eval.render import Cell, Table
from pbr_jax.eval.runs import Category, Row, Run
from pbr_jax.eval.significance import FEW, Column, estimates

Interval = tuple[float, float]


def mean(row: Row, name: str) -> float | None:
    """The metric of a row, averaged over its seeds; None where a run lacks it."""
    return _mean([run.metrics for run in row.runs], name)


def intervals(row: Row, names: Sequence[str], confidence: float) -> dict[str, Interval]:
    """Intervals over clusters, and over seeds where a row has several; none where nothing can be inferred.

    They are computed from the examples, so that all rows' are of one kind; where a folder holds no examples,
    they are those of its results.json, and several seeds have none.
    """
    clusters = shared_clusters(row.runs)
    columns = {name: statistics_of(row.runs, name, list(clusters)) for name in names} if clusters else {}
    known = {name: Column(pair[1], pair[0]) for name, pair in columns.items() if pair is not None}
    known_intervals = dict(row.first.intervals) if len(row.runs) == 1 else {}
    if known:
        computed = estimates(
            list(known.values()),
            list(clusters.values()),
            resamples=int(setting(row.first, "eval.resamples", 2000.0)),
            confidence=confidence,
            seed=int(setting(row.first, "seed", 0.0)),
        )
        pairs = ((one.low, one.high) for one in computed)
        known_intervals |= {name: within_range(name, pair) for name, pair in zip(known, pairs, strict=True)}
    return {name: pair for name, pair in known_intervals.items() if pair[0] < pair[1]}


def values(rows: Sequence[Row], names: Sequence[str], *, explained: bool = True) -> Table:
    """Every row's metrics, what they were computed on, and the settings in which rows differ.

    `explained`: False where the section has said before how intervals come about.
    """
    confidence = confidence_of(rows[0].first)
    columns = settings(rows)
    table = []
    for i, row in enumerate(rows):
        known = intervals(row, names, confidence)
        texts = [remarks.label(row), *(columns[field][i] for field in columns), str(row.first.n), _count(row)]
        cells = [Cell(text) for text in texts]
        for name in names:
            cells.append(Cell(_text([run.metrics for run in row.runs], name, known.get(name))))
        table.append(cells)
    several = any(len(row.runs) > 1 for row in rows)
    what = rows[0].first.clusters
    caption = _caption(names, confidence, several, what) if explained else _better(names)
    return Table(caption, ["run", *columns, "n", what, *names], table)


def categories(rows: Sequence[Row], names: Sequence[str]) -> list[Table]:
    """Every row's metrics by category; nothing where examples have no categories."""
    return _by(rows, names, "category", [[run.categories for run in row.runs] for row in rows])


def parts(rows: Sequence[Row], names: Sequence[str]) -> list[Table]:
    """Every row's metrics by part of its stream; nothing where no run is a stream."""
    return _by(rows, names, "part of the stream", [[run.over for run in row.runs] for row in rows])


def _by(
    rows: Sequence[Row], names: Sequence[str], kind: str, groups: list[list[dict[str, Category]]]
) -> list[Table]:
    """A line for each row and group of its questions. `groups`: of the runs of each row."""
    table = []
    for row, of_row in zip(rows, groups, strict=True):
        for group in dict.fromkeys(name for run in of_row for name in run):
            here = [run[group] for run in of_row if group in run]
            texts = (_text([one.metrics for one in here], name, _only(here, name)) for name in names)
            count = ABSENT if here[0].users is None else str(here[0].users)
            table.append([Cell(text) for text in (row.label, group, str(here[0].n), count, *texts)])
    what = rows[0].first.clusters
    caption = (
        f"By {kind}, with {confidence_of(rows[0].first):.0%} intervals over the {what} of each; "
        "± is the standard deviation over seeds"
    )
    return [Table(caption, ["run", kind, "n", what, *names], table)] if table else []


def confidence_of(run: Run) -> float:
    """Of the intervals that stand beside this run's numbers."""
    return setting(run, "eval.confidence", 0.95)


def setting(run: Run, field: str, default: float) -> float:
    """A number of the run's config, or the default where an older or edited config has none."""
    value = run.config.get(field)
    return float(value) if isinstance(value, int | float) and value > 0 else default


def _caption(names: Sequence[str], confidence: float, several: bool, what: str) -> str:
    one = what.removesuffix("s")
    caption = (
        f"Metrics with {confidence:.0%} intervals over {what}: a bootstrap from {FEW} {what} on, Student's t "
        f"with fewer (each {one} left out in turn)"
    )
    if several:
        caption += (
            "; where a run was repeated under several seeds: mean ± standard deviation over seeds, and over "
            f"{what} and seeds Student's t (each {one} and each seed left out in turn)"
        )
    return f"{caption}. {_better(names)}"


def _better(names: Sequence[str]) -> str:
    lower = [name for name in names if name in LOWER_IS_BETTER]
    return f"Lower is better for {' and '.join(lower)}." if lower else "Higher is better."


def _mean(metrics: Sequence[dict[str, float]], name: str) -> float | None:
    known = [one[name] for one in metrics if name in one]
    return statistics.fmean(known) if known and len(known) == len(metrics) else None


def _text(metrics: Sequence[dict[str, float]], name: str, interval: Interval | None) -> str:
    value = _mean(metrics, name)
    if value is None:
        return ABSENT
    sure = "" if interval is None else f" [{interval[0]:.4f}, {interval[1]:.4f}]"
    if len(metrics) == 1:
        return f"{value:.4f}{sure}"
    deviation = statistics.stdev(one[name] for one in metrics)
    return f"{value:.4f} ± {deviation:.4f}{sure} ({len(metrics)} seeds)"


def _only(here: Sequence[Category], name: str) -> Interval | None:
    """The interval of a single seed's category; of no use where it has no width."""
    pair = here[0].intervals.get(name) if len(here) == 1 else None
    return pair if pair and pair[0] < pair[1] else None


def _count(row: Row) -> str:
    clusters = shared_clusters(row.runs)
    return str(len(set(clusters.values()))) if clusters else ABSENT

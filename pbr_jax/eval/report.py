"""Tables that set runs side by side, with intervals and paired differences.

One table for each benchmark and split. Rows are runs, labelled by system and the config fields in
which runs of that system differ; runs that differ by seed alone are one row, mean ± standard
deviation. A second table gives differences from the zero-shot run, or from the first where there
is none, by a paired bootstrap over users. A third says what each number was computed on.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from pbr_jax.data.tasks import TASKS
from pbr_jax.eval import plots, remarks, render
from pbr_jax.eval.metrics import LOWER_IS_BETTER, plain_mean, text_metric
from pbr_jax.eval.render import Block, Cell, Figure, Heading, Page, Paragraph, Table
from pbr_jax.eval.runs import Row, Run, differing_fields, read_run, run_folders, table_rows
from pbr_jax.eval.shares import shares_table
from pbr_jax.eval.significance import Difference, Finish, difference, resampled_means
from pbr_jax.types import UserError

_RECOMPUTED = ("f1_macro", "rmse")
"""Metrics that single examples do not have; they are computed from predictions and targets."""

_ABSENT = "–"


def report(
    runs: Sequence[Path], format: str = "md", *, all_metrics: bool = False, reference: str | None = None
) -> str:
    """The report on finished runs (folders with results.json, config.json, predictions.jsonl) and sweeps.

    `format` is md, html or latex. Ranking metrics are shown at k = 5 unless `all_metrics`. HTML is
    one file with a plot of the first metric in it. Differences are from the system `reference`; None:
    from zero_shot, or else the first run. Raises UserError where a folder is no finished run, and where
    no run is of the reference.
    """
    if format not in render.WRITERS:
        raise UserError(f"no report format {format!r}; there are {', '.join(render.WRITERS)}")
    if not runs:
        raise UserError("no runs to report on; give at least one run folder")
    groups: dict[tuple[str, str], list[Run]] = {}
    folders = [folder for path in runs for folder in run_folders(Path(path))]
    for run in map(read_run, dict.fromkeys(folders)):
        groups.setdefault((run.benchmark, run.split), []).append(run)
    page = Page("Results: " + ", ".join(dict.fromkeys(name for name, _ in groups)))
    for (benchmark, split), group in groups.items():
        page.blocks.append(Heading(f"{benchmark}, {split}"))
        page.blocks.extend(_blocks(table_rows(group), all_metrics, reference, plot=format == "html"))
    return render.WRITERS[format](page)


def headline_metrics(names: Sequence[str], all_metrics: bool = False) -> list[str]:
    """The columns to show: ranking metrics at 5 only, recall and NDCG first, unless all are wanted."""
    if all_metrics or not any(name.endswith("@5") for name in names):
        return list(names)
    first = [name for name in ("recall@5", "ndcg@5") if name in names]
    return first + [name for name in names if name not in first and ("@" not in name or name.endswith("@5"))]


def _blocks(rows: list[Row], all_metrics: bool, reference: str | None, plot: bool) -> list[Block]:
    names = headline_metrics(_metric_names(rows), all_metrics)
    blocks: list[Block] = [Paragraph(text, warning=True) for text in _warnings(rows)]
    if not names:
        withheld = Paragraph("These runs have no metrics: their targets are withheld.")
        return [*blocks, withheld, *shares_table(rows), *_costs(rows), _origins(rows)]
    blocks.append(_values(rows, names))
    if plot:
        blocks.append(_figure(rows, names[0]))
    if len(rows) > 1:
        blocks.append(_differences(rows, names, _reference(rows, reference)))
    return [*blocks, *shares_table(rows), *map(Paragraph, _notes(rows)), *_costs(rows), _origins(rows)]


def _metric_names(rows: list[Row]) -> list[str]:
    """Metrics of any row, in the task's order (headline first), others after."""
    found = dict.fromkeys(name for row in rows for run in row.runs for name in run.metrics)
    task = TASKS.get(rows[0].first.benchmark)
    order = [name for name in (task.metrics if task else ()) if name in found]
    return order + [name for name in found if name not in order]


def _mean(row: Row, name: str) -> float | None:
    """The metric of a row, averaged over its seeds."""
    values = [run.metrics[name] for run in row.runs if name in run.metrics]
    return statistics.fmean(values) if len(values) == len(row.runs) else None


def _spread(row: Row, name: str) -> tuple[float, float]:
    """Low and high end: the interval of one run, one standard deviation around several seeds."""
    value = _mean(row, name) or 0.0
    if len(row.runs) > 1:
        deviation = statistics.stdev(run.metrics[name] for run in row.runs)
        return value - deviation, value + deviation
    return row.first.intervals.get(name, (value, value))


def _values(rows: list[Row], names: list[str]) -> Table:
    best = {name: _best(rows, name) for name in names}
    table = []
    for row in rows:
        cells = [Cell(remarks.label(row))]
        for name in names:
            value = _mean(row, name)
            cells.append(Cell(_value_text(row, name), bold=value is not None and value == best[name]))
        table.append(cells)
    run = rows[0].first
    caption = f"Metrics with {_confidence(run):.0%} intervals from a bootstrap over users"
    if any(len(row.runs) > 1 for row in rows):
        caption += "; mean ± standard deviation where a run was repeated under several seeds"
    lower = [name for name in names if name in LOWER_IS_BETTER]
    caption += f". Lower is better for {' and '.join(lower)}." if lower else ". Higher is better."
    return Table(caption, ["run", *names], table)


def _value_text(row: Row, name: str) -> str:
    value = _mean(row, name)
    if value is None:
        return _ABSENT
    low, high = _spread(row, name)
    if len(row.runs) > 1:
        return f"{value:.4f} ± {high - value:.4f} ({len(row.runs)} seeds)"
    return f"{value:.4f} [{low:.4f}, {high:.4f}]" if name in row.first.intervals else f"{value:.4f}"


def _best(rows: list[Row], name: str) -> float | None:
    values = [value for value in (_mean(row, name) for row in rows) if value is not None]
    if len(rows) == 1 or not values:
        return None
    return min(values) if name in LOWER_IS_BETTER else max(values)


def _reference(rows: list[Row], wanted: str | None) -> Row:
    found = next((row for row in rows if row.system == (wanted or "zero_shot")), None)
    if found is None and wanted is not None:
        names = ", ".join(dict.fromkeys(row.system for row in rows))
        raise UserError(f"no run is of the reference {wanted!r}; there are {names}")
    return found or rows[0]


def _differences(rows: list[Row], names: list[str], reference: Row) -> Table:
    table = []
    for row in (row for row in rows if row is not reference):
        found = paired(row, reference, names)
        table.append([Cell(row.label), *(Cell(_difference_text(found.get(name))) for name in names)])
    caption = (
        f"Difference from {reference.label}: {_confidence(reference.first):.0%} interval and p from a "
        "paired bootstrap over users, not corrected for several comparisons"
    )
    return Table(caption, ["run", *(f"Δ {name}" for name in names)], table)


def _difference_text(found: Difference | None) -> str:
    if found is None:
        return _ABSENT
    if found.low == found.high:  # one user, or no question answered differently: nothing to infer from
        return f"{found.value:+.4f}"
    p = f"p={found.p_value:.3f}" if found.p_value >= 0.001 else "p<0.001"
    return f"{found.value:+.4f} [{found.low:+.4f}, {found.high:+.4f}] {p}"


def paired(row: Row, reference: Row, names: Sequence[str]) -> dict[str, Difference]:
    """Row minus reference, metric by metric; empty where they do not hold the same examples.

    Several seeds enter as the mean of their values, each seed resampled alike.
    """
    users = _common_users([*row.runs, *reference.runs])
    if not users:
        return {}
    found: dict[str, Difference] = {}
    columns = {name: _columns([*row.runs, *reference.runs], name, list(users)) for name in names}
    known = {name: pair for name, pair in columns.items() if pair is not None}
    if not known:
        return {}
    run = reference.first
    side_by_side = np.concatenate([part for parts, _ in known.values() for part in parts], axis=1)
    resamples = int(_setting(run, "eval.resamples", 2000.0))
    means = resampled_means(side_by_side, list(users.values()), resamples=resamples, seed=0)
    start = 0
    for name, (parts, finish) in known.items():
        values, resampled = [], []
        for part in parts:
            values.append(float(finish(part.mean(0, keepdims=True))[0]))
            resampled.append(finish(means[:, start : start + part.shape[1]]))
            start += part.shape[1]
        split = len(row.runs)
        value = statistics.fmean(values[:split]) - statistics.fmean(values[split:])
        draws = np.mean(resampled[:split], axis=0) - np.mean(resampled[split:], axis=0)
        found[name] = difference(value, draws, _confidence(run))
    return found


def _common_users(runs: Sequence[Run]) -> dict[str, str]:
    """User of each scored example, sorted by id; empty where runs do not hold the same examples."""
    users = [{id: record.user_id for id, record in (run.records or {}).items()} for run in runs]
    return dict(sorted(users[0].items())) if all(other == users[0] for other in users) else {}


def _columns(runs: Sequence[Run], name: str, ids: list[str]) -> tuple[list[np.ndarray], Finish] | None:
    """Statistics `[n, s]` of each run and how they end in a value; None where a run lacks the metric."""
    records = [[(run.records or {})[id] for id in ids] for run in runs]
    if all(name in record.metrics for column in records for record in column):
        return [np.array([[record.metrics[name]] for record in column]) for column in records], plain_mean
    if name == "expected_rmse" and all("expected_mae" in r.metrics for column in records for r in column):
        squares = [np.array([[r.metrics["expected_mae"] ** 2] for r in column]) for column in records]
        return squares, text_metric("rmse").finish
    task = TASKS.get(runs[0].benchmark)
    answered = all(r.prediction is not None and r.target is not None for column in records for r in column)
    if name not in _RECOMPUTED or task is None or not answered:
        return None
    metric = text_metric(name, task.labels)
    texts = ([(str(r.prediction), str(r.target)) for r in column] for column in records)
    return [metric.statistics(*map(list, zip(*pairs, strict=True))) for pairs in texts], metric.finish


def _warnings(rows: list[Row]) -> list[str]:
    runs = [run for row in rows for run in row.runs]
    found = [f"{run.path} dropped {run.dropped} examples." for run in runs if run.dropped]
    if len({str(run.fingerprint.get("data")) for run in runs}) > 1:
        found.append("The runs read different data (their data hashes differ): numbers are not comparable.")
    scored = [set(run.records) for run in runs if run.records is not None]
    if len({run.n for run in runs}) > 1 or any(ids != scored[0] for ids in scored):
        found.append("The runs did not score the same examples: numbers are not comparable.")
    if len({tuple(sorted(run.variants.items())) for run in runs if run.metrics}) > 1:
        found.append("The runs computed a metric in different variants: numbers are not comparable.")
    return found


def _notes(rows: list[Row]) -> list[str]:
    runs = [run for row in rows for run in row.runs]
    found = [f"{name}: {variant}." for run in runs for name, variant in run.variants.items()]
    found += [note[:1].upper() + note[1:].rstrip(".") + "." for run in runs for note in run.notes]
    found += [
        note for row in rows for note in (remarks.unreadable_answers(row), remarks.fallbacks(row)) if note
    ]
    if len(rows) > 1 and any(run.records is None for run in runs):
        found.append("Runs without predictions.jsonl have no paired difference.")
    return list(dict.fromkeys(found))


def _costs(rows: list[Row]) -> list[Block]:
    """What expanding and searching cost a question; nothing where no language model expanded."""
    parts = {"expand_llm": "language model", "expand_history": "history", "expand_anchor": "anchor",
             "expand_encode": "encoding"}  # fmt: skip
    lines = []
    for row in rows:
        counts, seconds = (_added(getattr(run, name) for run in row.runs) for name in ("counts", "seconds"))
        answers, questions = counts.get("expand_answers", 0), counts.get("examples", 0)
        if not questions:
            continue
        failed = f"{counts.get('expand_parse_failures', 0) / answers:.1%}" if answers else _ABSENT
        failed += f" ({kinds})" if (kinds := remarks.failures(row)) else ""
        asked = [counts.get(f"expand_{name}", 0) for name in ("answers", "prompt_tokens", "answer_tokens")]
        timed = [seconds.get(name, 0) for name in ("rank", *parts)]
        cells = [row.label, failed, *(_short(value / questions) for value in (*asked, *timed))]
        lines.append([Cell(text) for text in cells])
    if not any(run.counts.get("expand_answers") for row in rows for run in row.runs):
        return []
    header = [
        "run",
        "unreadable answers",
        "answers",
        "prompt tokens",
        "answer tokens",
        "seconds",
        *parts.values(),
    ]
    caption = (
        "What expanding and searching cost, a question: answers of the language model and their tokens, "
        "seconds of all and of the parts. Answers from the cache cost no time"
    )
    return [Table(caption, header, lines)]


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _added(numbers: Iterable[Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for found in numbers:
        total |= {name: total.get(name, 0) + value for name, value in found.items()}
    return total


def _origins(rows: list[Row]) -> Table:
    header = ["run", "n", "dropped", "data", "config", "commit", "folder"]
    lines = []
    for row in rows:
        for run in row.runs:
            label = f"{row.label} seed={run.config.get('seed')}" if len(row.runs) > 1 else row.label
            prints = [str(run.fingerprint.get(key) or _ABSENT)[:13] for key in header[3:6]]
            lines.append(
                [Cell(text) for text in (label, str(run.n), str(run.dropped), *prints, str(run.path))]
            )
    return Table("What the numbers were computed on", header, lines)


def _confidence(run: Run) -> float:
    return _setting(run, "eval.confidence", 0.95)


def _setting(run: Run, field: str, default: float) -> float:
    """A number of the run's config, or the default where an older or edited config has none."""
    value = run.config.get(field)
    return float(value) if isinstance(value, int | float) and value > 0 else default


def _figure(rows: list[Row], name: str) -> Block:
    if not plots.available():
        return Paragraph("No plot: matplotlib is not installed (pip install 'pbr-jax[plots]').")
    field = _varied_number(rows)
    points = [(row, point) for row in rows if (point := _point(row, name, field)) is not None]
    if field is None:
        picture, what = plots.bars([point for _, point in points], name), f"{name} of each run"
    else:
        series: dict[str, list[plots.Point]] = {}
        for row, point in points:
            series.setdefault(row.system, []).append(point)
        picture, what = plots.lines(series, name, field), f"{name} over {field}"
    spread = "standard deviations over seeds" if any(len(r.runs) > 1 for r in rows) else "intervals"
    return Figure(plots.svg(picture), f"{what}, with {spread}")


def _point(row: Row, name: str, field: str | None) -> plots.Point | None:
    value = _mean(row, name)
    if value is None:
        return None
    low, high = _spread(row, name)
    x = row.first.config.get(field) if field else None
    return plots.Point(row.label, value, low, high, float(x) if isinstance(x, int | float) else None)


def _varied_number(rows: list[Row]) -> str | None:
    """The one config field that differs between rows of a system, where it is a number throughout."""
    runs = [row.first for row in rows]
    fields = {field for run in runs for field in differing_fields(run, runs)}
    if len(fields) != 1:
        return None
    field = fields.pop()
    values = [run.config.get(field) for run in runs if differing_fields(run, runs)]
    return field if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values) else None

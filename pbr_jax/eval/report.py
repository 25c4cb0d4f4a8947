"""Tables that set runs side by side, with intervals and paired differences.

One table for each benchmark and split. Rows are runs, labelled by system and the config fields in
which runs of that system differ; runs that differ by seed alone are one row. A second table gives
differences from the zero-shot run, or from the first where there is none, and a last one says what
each number was computed on. Read `values` and `differences` for what stands in them, `comparable`
for what may be compared, `significance` for how sure it is.
"""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

from pbr_jax.eval import notes as remarks
from pbr_jax.eval import plots, render
from pbr_jax.eval.blocks import by_block, learned
from pbr_jax.eval.comparable import ABSENT as _ABSENT
from pbr_jax.eval.comparable import needs_texts, obstacles, same_variant
from pbr_jax.eval.costs import costs, throughput
from pbr_jax.eval.differences import differences
from pbr_jax.eval.judged import judged_table
from pbr_jax.eval.label_distribution import shares_table
from pbr_jax.eval.ngram_overlap import copies_table
from pbr_jax.eval.orders import orders
from pbr_jax.eval.render import Block, Cell, Figure, Heading, Page, Paragraph, Table
from pbr_jax.eval.runs import (
    SEEDS,
    Row,
    Run,
    differing_fields,
    read_run,
    run_folders,
    table_rows,
    unfinished,
)
from pbr_jax.eval.subsets import order, over, without_near_targets
from pbr_jax.eval.values import categories, confidence_of, intervals, mean, parts, values
from pbr_jax.types import UserError

_UNBOUNDED = ("limit_history",)  # fields that say how much at most, where none is all


def report(
    runs: Sequence[Path],
    format: str = "md",
    *,
    all_metrics: bool = False,
    reference: str | None = None,
    part: str | None = None,
) -> str:
    """The report on finished runs (folders with results.json, config.json, predictions.jsonl) and sweeps.

    `format` is md, html or latex. Ranking metrics are shown at k = 5 unless `all_metrics`. HTML is
    one file with a plot of the first metric in it. Differences are from the system `reference`; None:
    from zero_shot, or else the first run. `part`: over the questions of a part of the runs' streams alone,
    in a section for each set of questions that this is, for each order of arrival has its own; differences
    are from the first run where a section has no `reference`. Raises UserError where a folder is no finished
    run or has no such part, and where no run is of the reference.
    """
    if format not in render.WRITERS:
        raise UserError(f"no report format {format!r}; there are {', '.join(render.WRITERS)}")
    if not runs:
        raise UserError("no runs to report on; give at least one run folder")
    groups: dict[tuple[str, str, object], list[Run]] = {}
    folders = [folder for path in runs for folder in run_folders(Path(path))]
    for run in map(read_run, dict.fromkeys(folders)):
        run = run if part is None else over(run, part)
        questions = None if part is None or run.records is None else frozenset(run.records)
        groups.setdefault((run.benchmark, run.split, questions), []).append(run)
    every = [run.system for group in groups.values() for run in group]
    elsewhere = part is not None and reference in every
    page = Page("Results: " + ", ".join(dict.fromkeys(name for name, *_ in groups)))
    missing = map(unfinished, map(Path, dict.fromkeys(runs)))
    page.blocks.extend(Paragraph(text, warning=True) for text in missing if text)
    for (benchmark, split, _), group in groups.items():
        told = "" if part is None else f", {part} (order of arrival: {order(group[0])})"
        page.blocks.append(Heading(f"{group[0].title or benchmark}, {split}{told}"))
        of_group = any(run.system == reference for run in group) or not elsewhere
        found = _blocks(table_rows(group), all_metrics, reference if of_group else None, format == "html")
        page.blocks.extend(found)
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
    notes = [*map(Paragraph, _notes(rows)), *costs(rows), _origins(rows)]
    if not names:
        withheld = Paragraph(
            "These runs have no metrics: nothing was answered, or their targets are withheld."
        )
        return [*blocks, withheld, *shares_table(rows), *judged_table(rows), *notes]
    blocks.append(values(rows, names))
    if plot:
        blocks += [_figure(rows, names[0]), *_throughput(rows, names[0])]
    if len(rows) > 1:
        blocks += differences(rows, names, _reference(rows, reference))
    blocks += [*by_block(rows, names[0], plot), *parts(rows, names), *learned(rows)]
    blocks += _without_near(rows, names, reference)
    blocks += [*categories(rows, names), *orders(rows, names)]
    return [*blocks, *shares_table(rows), *copies_table(rows), *judged_table(rows), *notes]


def _without_near(rows: list[Row], names: list[str], reference: str | None) -> list[Block]:
    """The same tables without questions that may be answered by copying from the user's history."""
    rest = without_near_targets(rows)
    if not rest:
        return []
    left = rest[0].first.n
    blocks: list[Block] = [
        Paragraph(
            f"The same without the {rows[0].first.n - left} questions of which a document in the user's own "
            "history holds at least .6 of the target's words:"
        ),
        values(rest, names),
    ]
    return blocks + (differences(rest, names, _reference(rest, reference)) if len(rest) > 1 else [])


def _metric_names(rows: list[Row]) -> list[str]:
    """Metrics of any row, in the task's order (headline first), others after."""
    names = dict.fromkeys(name for row in rows for run in row.runs for name in run.metrics)
    order = [name for name in rows[0].first.task_metrics if name in names]
    return order + [name for name in names if name not in order]


def _reference(rows: list[Row], wanted: str | None) -> Row:
    reference = next((row for row in rows if row.system == (wanted or "zero_shot")), None)
    if reference is None and wanted is not None:
        names = ", ".join(dict.fromkeys(repr(row.system) for row in rows))
        raise UserError(f"no run is of the reference {wanted!r}; there are the systems {names}")
    return reference or rows[0]


def _warnings(rows: list[Row]) -> list[str]:
    runs = [run for row in rows for run in row.runs]
    warnings = [f"{run.path} dropped {run.dropped} examples." for run in runs if run.dropped]
    warnings += [f"The runs {why}: numbers are not comparable." for why in obstacles(runs)]
    for name in _metric_names(rows):
        if not same_variant([run for run in runs if name in run.metrics], name):
            warnings.append(
                f"The runs computed {name} in different variants: its numbers are not comparable."
            )
    return warnings


def _notes(rows: list[Row]) -> list[str]:
    runs = [run for row in rows for run in row.runs]
    notes = [f"{name}: {variant}." for run in runs for name, variant in run.variants.items()]
    notes += [note[:1].upper() + note[1:].rstrip(".") + "." for run in runs for note in run.notes]
    notes += [
        note for row in rows for note in (remarks.unreadable_answers(row), remarks.fallbacks(row)) if note
    ]
    notes += remarks.made_elsewhere(runs)
    if len(rows) > 1 and any(needs_texts(run) for run in runs):
        notes.append("Runs with keep_texts off have no paired difference of f1_macro, rmse and correlation.")
    if len(rows) > 1 and any(run.records is None for run in runs):
        notes.append("Runs without predictions.jsonl have no paired difference.")
    return list(dict.fromkeys(notes))


def _origins(rows: list[Row]) -> Table:
    header = ["run", "n", "dropped", "data", "config", "commit", "folder"]
    lines = []
    for row in rows:
        for run in row.runs:
            label = f"{row.label} {_seeds(run)}" if len(row.runs) > 1 else row.label
            prints = [str(run.fingerprint.get(key) or _ABSENT)[:13] for key in header[3:6]]
            lines.append(
                [Cell(text) for text in (label, str(run.n), str(run.dropped), *prints, str(run.path))]
            )
    return Table("What the numbers were computed on", header, lines)


def _seeds(run: Run) -> str:
    """What tells the runs of one row apart."""
    seeds = {field: run.config.get(field) for field in SEEDS}
    return " ".join(
        f"{field}={value}" for field, value in seeds.items() if field == "seed" or value is not None
    )


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
    return Figure(plots.svg(picture), f"{what}, with intervals where they are known")


def _throughput(rows: list[Row], name: str) -> list[Block]:
    """The metric over questions a second, where a language model or a policy helped to find documents."""
    if not plots.available() or not any(_asks_a_model(run) for row in rows for run in row.runs):
        return []
    speeds = throughput(rows)
    points = [
        dataclasses.replace(point, x=speeds[row.label])
        for row in rows
        if row.label in speeds and (point := _point(row, name, None)) is not None
    ]
    if len(points) < 2:
        return []
    caption = (
        f"{name} over throughput: expanding, searching, choosing and, where rows answer, answering. What was "
        "computed before questions came, such as vectors of documents, is not in it, compiling is; answers "
        "from the cache cost no time"
    )
    return [Figure(plots.svg(plots.against(points, name, "questions a second")), caption)]


def _asks_a_model(run: Run) -> bool:
    return any(run.seconds.get(part, 0) > 0 for part in ("expand_llm", "select_llm", "select_policy"))


def _point(row: Row, name: str, field: str | None) -> plots.Point | None:
    value = mean(row, name)
    if value is None:
        return None
    low, high = intervals(row, [name], confidence_of(row.first)).get(name, (value, value))
    x = row.first.config.get(field) if field else None
    if field is not None and field in _UNBOUNDED and x is None:
        x = math.inf
    return plots.Point(row.label, value, low, high, float(x) if isinstance(x, int | float) else None)


def _varied_number(rows: list[Row]) -> str | None:
    """The one config field that differs between rows of a system, where it is a number throughout."""
    runs = [row.first for row in rows]
    fields = {field for run in runs for field in differing_fields(run, runs)}
    if len(fields) != 1:
        return None
    field = fields.pop()
    values = [run.config.get(field) for run in runs if differing_fields(run, runs)]
    if field in _UNBOUNDED:
        values = [value for value in values if value is not None]
    return field if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values) else None

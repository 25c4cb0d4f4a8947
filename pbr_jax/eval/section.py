"""A section of a report: the runs of one benchmark and split, with all that stands beside their tables."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pbr_jax.base.types import UserError
from pbr_jax.eval import plots
from pbr_jax.eval.differences import ABSENT, differences, needs_texts, obstacles, same_variant
from pbr_jax.eval.render import Block, Figure, Paragraph, Table
from pbr_jax.eval.runs import (
    SEEDS,
    Row,
    Run,
    confidence_of,
    differing_fields,
    near_targets,
    without_near_targets,
)
from pbr_jax.eval.tables import (
    by_block,
    categories,
    copies_table,
    costs,
    fallbacks,
    intervals,
    judged_table,
    learned,
    made_elsewhere,
    mean,
    orders,
    parts,
    shares_table,
    throughput,
    unreadable_answers,
    values,
)

_PLAIN = ("recency", "random", "bm25", "dense")
_USUAL = {
    "neighbours.method": "self", "expand.method": "none", "select.method": "top_k",
    "generator.method": "frozen",
}  # fmt: skip
"""What stands in the other places of a plain system."""

WITHHELD = "These runs have no metrics: nothing was answered, or their targets are withheld."
_UNBOUNDED = ("limit_history",)  # fields that say how much at most, where none is all


@dataclass(frozen=True)
class Section:
    """The rows of a section. `wanted`: the system that differences are from, None: a baseline (`reference`).

    `all_metrics`: whether ranking metrics are shown at other k than 5.
    """

    heading: str
    rows: list[Row]
    wanted: str | None = None
    all_metrics: bool = False

    @cached_property
    def names(self) -> list[str]:
        """The metrics that are shown, the headline one first."""
        return headline_metrics(metric_names(self.rows), self.all_metrics)

    @cached_property
    def reference(self) -> Row:
        """The row that others are compared with; UserError where none is of the wanted system."""
        return reference(self.rows, self.wanted)

    @property
    def runs(self) -> list[Run]:
        return [run for row in self.rows for run in row.runs]


def headline_metrics(names: Sequence[str], all_metrics: bool = False) -> list[str]:
    """The columns to show: ranking metrics at 5 only, recall and NDCG first, unless all are wanted."""
    if all_metrics or not any(name.endswith("@5") for name in names):
        return list(names)
    first = [name for name in ("recall@5", "ndcg@5") if name in names]
    return first + [name for name in names if name not in first and ("@" not in name or name.endswith("@5"))]


def metric_names(rows: Sequence[Row]) -> list[str]:
    """Metrics of any row, in the task's order (headline first), others after."""
    names = dict.fromkeys(name for row in rows for run in row.runs for name in run.metrics)
    order = [name for name in rows[0].first.task_metrics if name in names]
    return order + [name for name in names if name not in order]


def reference(rows: Sequence[Row], wanted: str | None) -> Row:
    """The row of the wanted system.

    None: that of zero_shot, else the first without documents, the first of plain retrieval from the user's
    own documents, or the first row.
    """
    if wanted is None:
        known = [row for row in rows if not row.first.ceiling]
        of_name = (row for row in known if row.system == "zero_shot")
        without = (row for row in known if row.first.config.get("retrieve.method") == "none")
        return [*of_name, *without, *filter(_is_plain, known), *rows][0]
    found = next((row for row in rows if row.system == wanted), None)
    if found is None:
        names = ", ".join(dict.fromkeys(repr(row.system) for row in rows))
        raise UserError(f"no run is of the reference {wanted!r}; there are the systems {names}")
    return found


def _is_plain(row: Row) -> bool:
    """Whether a row is plain retrieval: a baseline of the package, with nothing else in the other slots."""
    config = row.first.config
    return (
        config.get("retrieve.method") in _PLAIN
        and "retrieve.from.class" not in config
        and all(config.get(field, usual) == usual for field, usual in _USUAL.items())
    )


def warnings(section: Section) -> list[str]:
    """Why numbers may not be compared."""
    runs = section.runs
    found = [f"{run.path} dropped {run.dropped} examples." for run in runs if run.dropped]
    found += [f"The runs {why}: numbers are not comparable." for why in obstacles(runs)]
    for name in metric_names(section.rows):
        if not same_variant([run for run in runs if name in run.metrics], name):
            found.append(f"The runs computed {name} in different variants: its numbers are not comparable.")
    return found


def notes(section: Section) -> list[str]:
    """What a reader of the numbers must know, each note once."""
    rows, runs = section.rows, section.runs
    found = [f"{name}: {variant}." for run in runs for name, variant in run.variants.items()]
    found += [_sentence(note) for run in runs for note in run.notes]
    found += [note for row in rows for note in (unreadable_answers(row), fallbacks(row)) if note]
    found += made_elsewhere(runs)
    if len(rows) > 1 and any(needs_texts(run) for run in runs):
        found.append("Runs with keep_texts off have no paired difference of f1_macro, rmse and correlation.")
    if len(rows) > 1 and any(run.records is None for run in runs):
        found.append("Runs without predictions.jsonl have no paired difference.")
    return list(dict.fromkeys(found))


def details(section: Section, *, plots: bool) -> list[Block]:
    """Tables of parts of the questions, answers and costs, with notes and origins; `plots`: and pictures."""
    rows, names = section.rows, section.names
    ends = [*map(Paragraph, notes(section)), *costs(rows), origins(rows)]
    if not names:
        return [Paragraph(WITHHELD), *shares_table(rows), *judged_table(rows), *ends]
    blocks = [*by_block(rows, names[0], plots), *parts(rows, names), *learned(rows), *_without_near(section)]
    blocks += [*categories(rows, names), *orders(rows, names)]
    return [*blocks, *shares_table(rows), *copies_table(rows), *judged_table(rows), *ends]


def _without_near(section: Section) -> list[Block]:
    """Values and differences without questions that may be answered by copying from the user's history."""
    rows, names, rest = section.rows, section.names, without_near_targets(section.rows)
    if not rest:
        return []
    caption = near_targets(rows[0].first.n, rest[0].first.n)
    blocks: list[Block] = [Paragraph(caption), values(rest, names, explained=False)]
    if len(rest) > 1:
        blocks += differences(rest, names, reference(rest, section.wanted), explained=False)
    return blocks


def _sentence(note: str) -> str:
    """With a full stop and, where it does not begin with an option's name, a capital."""
    named = "." in note.partition(" ")[0].rstrip(".:")
    return (note[:1] if named else note[:1].upper()) + note[1:].rstrip(".") + "."


def origins(rows: Sequence[Row]) -> Table:
    """What each number was computed on."""
    header = ["run", "n", "dropped", "data", "config", "commit", "folder"]
    lines = []
    for row in rows:
        for run in row.runs:
            label = f"{row.label} {_seeds(run)}" if len(row.runs) > 1 else row.label
            prints = [str(run.fingerprint.get(key) or ABSENT)[:13] for key in header[3:6]]
            lines.append([label, str(run.n), str(run.dropped), *prints, str(run.path)])
    return Table("What the numbers were computed on", header, lines)


def _seeds(run: Run) -> str:
    """What tells the runs of one row apart."""
    seeds = {field: run.config.get(field) for field in SEEDS}
    return " ".join(
        f"{field}={value}" for field, value in seeds.items() if field == "seed" or value is not None
    )


def figures(rows: Sequence[Row], name: str) -> list[Block]:
    """A metric over the number that was varied, and over throughput where a model found documents."""
    field = _varied_number(rows)
    asked = any(_asks_a_model(run) for row in rows for run in row.runs)
    if not plots.available():
        missing = "No plot: matplotlib is not installed (pip install 'pbr-jax[plots]')."
        return [Paragraph(missing)] if field is not None or asked else []
    return [*_over(rows, name, field), *(_over_throughput(rows, name) if asked else [])]


def _over(rows: Sequence[Row], name: str, field: str | None) -> list[Block]:
    series: dict[str, list[plots.Point]] = {}
    for row in rows if field is not None else ():
        if (point := _point(row, name, field)) is not None:
            series.setdefault(row.system, []).append(point)
    if field is None or not series:
        return []
    caption = f"{name} over {field}, with intervals where they are known"
    return [Figure(plots.svg(plots.lines(series, name, field)), caption)]


def _over_throughput(rows: Sequence[Row], name: str) -> list[Block]:
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


def _varied_number(rows: Sequence[Row]) -> str | None:
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

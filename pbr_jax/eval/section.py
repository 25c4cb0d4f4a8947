"""A section of a report: the runs of one benchmark and split, with all that stands beside their tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from pbr_jax.base.types import UserError
from pbr_jax.eval.differences import ABSENT, differences, needs_texts, obstacles, paired, same_variant
from pbr_jax.eval.render import Block, Paragraph, Table
from pbr_jax.eval.runs import SEEDS, Row, Run, near_targets, without_near_targets
from pbr_jax.eval.significance import Difference
from pbr_jax.eval.tables import (
    absences,
    by_block,
    categories,
    copies_table,
    costs,
    fallbacks,
    judged_table,
    learned,
    made_elsewhere,
    orders,
    parts,
    shares_table,
    unreadable_answers,
    values,
)

_PLAIN = ("recency", "random", "bm25", "dense")
_USUAL = {
    "neighbours.method": "self", "expand.method": "none", "select.method": "top_k",
    "generator.method": "frozen",
}  # fmt: skip
"""What stands in the other places of a plain system."""

WITHHELD = "These runs have no metrics: nothing was scored or targets are withheld, and no evidence is known."


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
    def others(self) -> list[Row]:
        """All rows but the reference."""
        return [row for row in self.rows if row is not self.reference]

    @cached_property
    def compared(self) -> list[dict[str, Difference]]:
        """The paired differences of `others` from the reference in `names`."""
        return [paired(row, self.reference, self.names) for row in self.others]

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

    None: that of one_other_user (the control of a check), else that of zero_shot, the first without
    documents, the first of plain retrieval from the user's own documents, or the first row.
    """
    if wanted is None:
        known = [row for row in rows if not row.first.ceiling]
        of_name = (row for name in ("one_other_user", "zero_shot") for row in known if row.system == name)
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
    found += [
        f"{run.path}: {run.forgotten} questions were removed by pbr-jax forget. Its metrics were computed "
        "with them, its differences are without them."
        for run in runs
        if run.forgotten
    ]
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
    found += absences(rows, section.names)
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
        against = reference(rest, section.wanted)
        by_row = [paired(row, against, names) for row in rest if row is not against]
        blocks += differences(rest, names, against, by_row, explained=False)
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

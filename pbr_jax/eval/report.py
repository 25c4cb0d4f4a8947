"""Reports: tables of several runs, with confidence intervals and paired differences.

There is one section for each benchmark and split. Rows are runs, labelled by system and by the config fields
in which runs of that system differ. Runs that differ only in their seed are one row. A second table contains
paired differences from one row (by default a baseline), and a third describes the data of each number.
Modules: `values` and `differences` compute the tables, `comparable` decides which runs can be compared,
`significance` computes intervals, and `page` writes the web page.
"""

import csv
import dataclasses
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

from pbr_jax.base.types import UserError
from pbr_jax.eval import page, render
from pbr_jax.eval.differences import corrected_p, differences
from pbr_jax.eval.render import Block, Heading, Page, Paragraph
from pbr_jax.eval.run_files import folders_of, left_out, unfinished
from pbr_jax.eval.runs import Run, confidence_of, order, over, read_run, table_rows
from pbr_jax.eval.section import Section, details, headline_metrics, warnings
from pbr_jax.eval.tables import intervals, mean, values

__all__ = ["FORMATS", "headline_metrics", "report"]

FORMATS = ("md", "html", "latex", "csv")
CSV = ("section", "run", "n", "metric", "value", "low", "high", "reference", "difference", "difference_low")
CSV += ("difference_high", "p")


def report(
    runs: Sequence[Path],
    format: str = "md",
    *,
    all_metrics: bool = False,
    reference: str | None = None,
    part: str | None = None,
    verdict: Sequence[Block] = (),
    questions: int = 60,
    title: str = "",
    labels: Mapping[str, str] | None = None,
    rows: Sequence[str] = (),
) -> str:
    """Reports on finished runs (folders with results.json, config.json, predictions.jsonl) and sweeps.

    Args:
      format: md, html, latex or csv. HTML is a single file with a verdict, plots, tables and single
        questions (`pbr_jax.eval.page`). CSV has a line for each row and metric, with the columns `CSV`.
      reference: the system from which differences are computed. None: a baseline (`section.reference`).
      all_metrics: shows all ranking metrics. Otherwise only those at k = 5 are shown.
      part: restricts the report to a part of the runs' streams. There is a section for each order of arrival,
        since its part has other questions. In a section without `reference`, differences are from the first
        run.
      verdict: the text at the beginning. In HTML it replaces the page's own verdict.
      questions: the approximate number of single questions per section in HTML. With 0, the page contains no
        texts and no names of users.
      title: the title of the document. "": the benchmarks.
      labels: names of rows by system.
      rows: the systems that are shown, and compared with the reference. Empty: all.

    Raises UserError if a folder is not a finished run or has no such part, or if no run is of the reference
    or of one of `rows`.
    """
    if format not in FORMATS:
        raise UserError(f"no report format {format!r}; there are {', '.join(FORMATS)}")
    if not runs:
        raise UserError("no runs to report on; give at least one run folder")
    sections = _sections(runs, part, reference, all_metrics, rows)
    given = map(Path, dict.fromkeys(runs))
    missing = [text for path in given for text in (unfinished(path), left_out(path)) if text]
    if labels:
        sections = [_labelled(section, labels) for section in sections]
    names = dict.fromkeys(section.rows[0].first.benchmark for section in sections)
    title = title or "Results: " + ", ".join(names)
    if format == "csv":
        return _csv(sections)
    if format == "html":
        return page.html(title, sections, missing, verdict, questions)
    document = Page(title, [*verdict, *(Paragraph(text, warning=True) for text in missing)])
    for section in sections:
        document.blocks.extend([Heading(section.heading), *_blocks(section)])
    return render.WRITERS[format](document)


def _sections(
    runs: Sequence[Path], part: str | None, reference: str | None, all_metrics: bool, rows: Sequence[str]
) -> list[Section]:
    groups: dict[tuple[str, str, object], list[Run]] = {}
    there = [*map(read_run, folders_of(runs))]
    systems = dict.fromkeys(run.system for run in there)
    for name in rows:
        if name not in systems:
            raise UserError(f"no run is of the system {name!r}; there are {', '.join(systems)}")
    for run in there:
        if rows and run.system not in (*rows, reference):
            continue
        run = run if part is None else over(run, part)
        asked = frozenset({**(run.records or {}), **run.unanswered})
        questions = None if part is None or run.records is None else asked
        groups.setdefault((run.benchmark, run.split, questions), []).append(run)
    every = [run.system for group in groups.values() for run in group]
    elsewhere = part is not None and reference in every
    sections = []
    for (benchmark, split, _), group in groups.items():
        told = "" if part is None else f", {part} (order of arrival: {order(group[0])})"
        heading = f"{group[0].title or benchmark}, {split}{told}"
        of_group = any(run.system == reference for run in group) or not elsewhere
        sections.append(Section(heading, table_rows(group), reference if of_group else None, all_metrics))
    return sections


def _csv(sections: Sequence[Section]) -> str:
    """A line for each row and metric. A value that is not known is an empty cell."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(CSV)
    for section in sections:
        p_values, places = corrected_p(section.compared), [row.label for row in section.others]
        for row in section.rows:
            known = intervals(row, section.names, confidence_of(row.first))
            place = places.index(row.label) if row.label in places else -1
            for name in section.names:
                one = section.compared[place].get(name) if place >= 0 else None
                gain = [""] * 4 if one is None else [section.reference.label, *one[:3]]
                ends, p = known.get(name, ("", "")), p_values.get((place, name), "")
                line = [section.heading, row.label, row.first.n, name, mean(row, name), *ends, *gain, p]
                lines.writerow(line)
    return text.getvalue().rstrip("\n")


def _labelled(section: Section, labels: Mapping[str, str]) -> Section:
    rows = [dataclasses.replace(row, label=labels.get(row.system, row.label)) for row in section.rows]
    return dataclasses.replace(section, rows=rows)


def _blocks(section: Section) -> list[Block]:
    rows, names = section.rows, section.names
    blocks: list[Block] = [Paragraph(text, warning=True) for text in warnings(section)]
    if names:
        blocks.append(values(rows, names))
        if len(rows) > 1:
            blocks += differences(rows, names, section.reference, section.compared)
    return [*blocks, *details(section, plots=False)]

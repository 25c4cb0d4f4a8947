"""Streams block by block, where each block is answered before it is learned from; and what was learned."""

import statistics
from collections.abc import Sequence

import numpy as np

from pbr_jax.eval import plots, render
from pbr_jax.eval.comparable import ABSENT
from pbr_jax.eval.render import Cell, Figure, Table
from pbr_jax.eval.runs import Row

_MOST = 20  # lines of the table


def by_block(rows: Sequence[Row], name: str, plot: bool) -> list[render.Block]:
    """A metric of streams over their blocks, as a table and a plot; nothing where no run is a stream."""
    ordered = [row for row in rows if not _is_folded(row)]
    series = {row.label: found for row in ordered if (found := _course(row, name))}
    if not series:
        return []
    spans = sorted({span for found in series.values() for span in found})
    shown = [spans[i] for i in np.unique(np.linspace(0, len(spans) - 1, _MOST).round().astype(int))]
    lines = [
        [Cell(f"{span[0] + 1} to {span[1]}"), *(Cell(_text(found.get(span))) for found in series.values())]
        for span in shown
    ]
    left_out = "" if len(shown) == len(spans) else f"; {len(shown)} of {len(spans)} blocks"
    shifts = sorted({run.shift for row in rows for run in row.runs if run.shift is not None})
    shifted = f"; the stream shifts after {' or '.join(map(str, shifts))} questions" if shifts else ""
    caption = f"{name} of each block of the stream, and of all questions up to its end{left_out}{shifted}"
    table = Table(caption, ["questions", *series], lines)
    if not (plot and plots.available()):
        return [table]
    points = {label: [(end, *pair) for (_, end), pair in found.items()] for label, found in series.items()}
    what = f"{name} over the stream: dots are blocks, lines are all questions so far"
    return [table, Figure(plots.svg(plots.course(points, name)), what)]


def _is_folded(row: Row) -> bool:
    return row.first.config.get("stream.protocol") in ("cross_users", "cross_units")


def learned(rows: Sequence[Row]) -> list[render.Block]:
    """What the methods of each row report of the stream, averaged over seeds; nothing where none does."""
    rows = [row for row in rows if any(run.learned for run in row.runs)]
    names = dict.fromkeys(name for row in rows for run in row.runs for name in run.learned)
    lines = [[Cell(name), *(Cell(_mean(row, name)) for row in rows)] for name in names]
    caption = "What methods that learned from the stream report of it"
    return [Table(caption, ["report", *(row.label for row in rows)], lines)] if lines else []


def _mean(row: Row, name: str) -> str:
    if any(name not in run.learned for run in row.runs):
        return ABSENT
    mean = statistics.fmean(run.learned[name] for run in row.runs)
    counted = all(run.learned[name].is_integer() for run in row.runs) and mean > 1
    return f"{mean:.0f}" if counted else f"{mean:.4f}"


def _course(row: Row, name: str) -> dict[tuple[int, int], tuple[float, float]]:
    """The metric of each block that all seeds have, and of all questions so far, averaged over seeds."""
    found = {}
    for span in row.first.blocks:
        pairs = [run.blocks.get(span, ({}, {})) for run in row.runs]
        if all(name in block for block, _ in pairs):
            block, so_far = zip(*((block[name], running[name]) for block, running in pairs), strict=True)
            found[span] = (statistics.fmean(block), statistics.fmean(so_far))
    return found


def _text(pair: tuple[float, float] | None) -> str:
    return ABSENT if pair is None else f"{pair[0]:.4f} ({pair[1]:.4f})"

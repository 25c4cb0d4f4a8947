"""Streams block by block: each block is answered before anything is learned from it."""

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
    series = {row.label: found for row in rows if (found := _course(row, name))}
    if not series:
        return []
    spans = sorted({span for found in series.values() for span in found})
    shown = [spans[i] for i in np.unique(np.linspace(0, len(spans) - 1, _MOST).round().astype(int))]
    lines = [
        [Cell(f"{span[0] + 1} to {span[1]}"), *(Cell(_text(found.get(span))) for found in series.values())]
        for span in shown
    ]
    left_out = "" if len(shown) == len(spans) else f"; {len(shown)} of {len(spans)} blocks"
    caption = f"{name} of each block of the stream, and of all questions up to its end{left_out}"
    table = Table(caption, ["questions", *series], lines)
    if not (plot and plots.available()):
        return [table]
    points = {label: [(end, *pair) for (_, end), pair in found.items()] for label, found in series.items()}
    what = f"{name} over the stream: dots are blocks, lines are all questions so far"
    return [table, Figure(plots.svg(plots.course(points, name)), what)]


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

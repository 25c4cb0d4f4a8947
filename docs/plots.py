"""Forest plots and curves of docs/results/*.json as SVG, light and dark, the same bytes each time."""

import io
import textwrap
from collections import defaultdict
from typing import Any

import matplotlib as mpl
import tables
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# Okabe and Ito's colours, which people with any colour vision can distinguish; markers differ too.
THEMES = {
    "light": {"ink": "#1f2328", "faint": "#8c959f", "colours": ("#0072b2", "#d55e00", "#007a5a", "#882255")},
    "dark": {"ink": "#e6edf3", "faint": "#6e7681", "colours": ("#56b4e9", "#e69f00", "#3ccfa0", "#cc79a7")},
}
MARKERS = ("o", "s", "^", "D")
WIDTH, ROW, STEP, GAP = 5.6, 0.2, 0.17, 0.14  # inches of a figure, a label, a marker, between rows
LINE = 64  # characters of a label
SETTINGS: Any = {
    "svg.hashsalt": "pbr_jax",
    "svg.fonttype": "none",
    "font.size": 11,
    "font.family": "sans-serif",
}
OWN = "own documents alone"
CURVES = (  # of the tables over history length, with differences from it
    "filled up: nearest users' (means)",
    "filled up: random users'",
    "nearest users' (means) alone",
)


def draw(table: dict[str, Any], theme: str) -> str:
    """A table's plot: `plot` names the measures of a forest plot, or is ["over"] for curves over columns."""
    with mpl.rc_context(SETTINGS):
        figure = _curves(table, theme) if table["plot"] == ["over"] else _forest(table, theme)
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return file.getvalue()


def _forest(table: dict[str, Any], theme: str) -> Figure:
    """A panel for each unit; a label above each row, below it a marker and an interval for each measure."""
    found = [row for row in tables.rows(table) if row["measure"] in table["plot"] and row["interval"]]
    panels: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in found:
        measure = table["measures"][row["measure"]]
        if bool(row["less"]) == (bool(measure.get("less")) or table["rows_are"] == "difference"):
            panels[measure["unit"]].append(row)
    labels = {unit: list(dict.fromkeys(row["row"] for row in rows)) for unit, rows in panels.items()}
    heights = [_height(labels[unit], panels[unit]) for unit in panels]
    figure = Figure(figsize=(WIDTH, sum(heights) + 0.9 * len(heights)), layout="constrained")
    axes = figure.subplots(len(panels), 1, squeeze=False, gridspec_kw={"height_ratios": heights})[:, 0]
    for ax, (unit, rows) in zip(axes, panels.items(), strict=True):
        _panel(ax, table, rows, unit, theme)
    return figure


def _wrapped(label: str) -> list[str]:
    return textwrap.wrap(label.replace("`", "").replace("$", r"\$"), LINE)


def _height(labels: list[str], rows: list[dict[str, Any]]) -> float:
    return sum(ROW * len(_wrapped(label)) + GAP for label in labels) + STEP * len(rows)


def _panel(ax: Axes, table: dict[str, Any], rows: list[dict[str, Any]], unit: str, theme: str) -> None:
    colours = THEMES[theme]
    measures = [name for name in table["plot"] if any(row["measure"] == name for row in rows)]
    seen, y = set(), 0.0
    for label in dict.fromkeys(row["row"] for row in rows):
        lines = _wrapped(label)
        ax.text(0.0, -y, "\n".join(lines), transform=ax.get_yaxis_transform(), va="top", color=colours["ink"])
        y += ROW * len(lines)
        for row in (one for one in rows if one["row"] == label):
            y += STEP / 2
            which = measures.index(row["measure"])
            _mark(
                ax,
                row,
                -y,
                colours["colours"][which],
                MARKERS[which],
                None if which in seen else row["measure"],
            )
            seen.add(which)
            y += STEP / 2
        y += GAP
    ax.set_ylim(-y, 0.02)
    ax.set_yticks([])
    measure = table["measures"][measures[0]]
    better = f" ({measure['better']} is better)" if measure["better"] else ""
    zero = [0.0] if any(row["less"] or row["interval"][0] <= 0 for row in rows) else []
    _axis(ax, colours, unit + better, [*zero, *([float(measure["chance"])] if "chance" in measure else [])])
    if len(measures) > 1:
        ax.legend(
            loc="lower left", bbox_to_anchor=(0, 1.0), ncols=1, frameon=False, labelcolor=colours["ink"]
        )


def _mark(ax: Axes, row: dict[str, Any], y: float, colour: str, marker: str, label: str | None) -> None:
    low, high = (float(end) for end in row["interval"])
    ax.plot([low, high], [y, y], color=colour, linewidth=1.8, solid_capstyle="butt")
    ax.plot([float(row["value"])], [y], marker, color=colour, markersize=6, label=label)


def _axis(ax: Axes, colours: dict[str, Any], label: str, lines: list[float]) -> None:
    """Name the axis, and draw a line at zero or at what chance reaches."""
    for side in ("top", "left", "right"):
        ax.spines[side].set_visible(False)
    ax.spines["bottom"].set_color(colours["faint"])
    ax.tick_params(colors=colours["ink"])
    ax.set_xlabel(label, color=colours["ink"])
    for x in lines:
        ax.axvline(x, color=colours["faint"], linewidth=1, linestyle=(0, (4, 3)), zorder=0)


def _curves(table: dict[str, Any], theme: str) -> Figure:
    """Over how many own documents there are: the likelihood with them alone, and differences from it."""
    colours, columns = THEMES[theme], list(table["measures"])
    figure = Figure(figsize=(WIDTH, 5.6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": (2, 3)})
    for which, (ax, name) in enumerate([(above, OWN), *((below, name) for name in CURVES)]):
        rows = {row["measure"]: row for row in tables.rows(table) if row["row"] == name}
        xs = [column + 0.07 * (which - 2) * (which > 0) for column in range(len(columns))]
        values = [float(rows[column]["value"]) for column in columns]
        ends = [rows[column]["interval"] or [rows[column]["value"]] * 2 for column in columns]
        errors = [[abs(v - float(end[side])) for v, end in zip(values, ends, strict=True)] for side in (0, 1)]
        style = {"color": colours["colours"][which - 1], "marker": MARKERS[which - 1]}
        ax.errorbar(xs, values, yerr=errors, capsize=2, label=name, **style)
    below.axhline(0, color=colours["faint"], linewidth=1, linestyle=(0, (4, 3)), zorder=0)
    below.set_xticks(range(len(columns)), [column.replace(" own", "") for column in columns])
    for ax, label in ((above, "nats per token"), (below, "minus own alone")):
        _axis(ax, colours, "" if ax is above else "own documents that there are", lines=[])
        ax.spines["left"].set_visible(True)
        ax.spines["left"].set_color(colours["faint"])
        ax.set_ylabel(label, color=colours["ink"])
    figure.legend(loc="outside upper left", frameon=False, labelcolor=colours["ink"])
    return figure

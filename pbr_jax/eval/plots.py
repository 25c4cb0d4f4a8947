"""Pictures: the course of a metric over a stream, vectors on a plane."""

import io
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555")
_SETTINGS: dict[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "report",
}
_SHOWN = "\u200b"


@dataclass(frozen=True)
class Mark:
    """A vector with a name: `label` stands beside it, `name` in a list; `shown`: its ring is bold."""

    label: str
    name: str
    vector: Float[np.ndarray, " d"]
    shown: bool = True


def available() -> bool:
    """Whether matplotlib can be imported."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def course(series: Mapping[str, Sequence[tuple[int, float, float]]], metric: str) -> Any:
    """Blocks of streams as (questions answered by their ends, metric of the block, metric of all questions so
    far): a dot for each block, a line for all so far."""
    figure, axes = _figure(height=4.0)
    for i, (label, blocks) in enumerate(series.items()):
        ends, values, running = zip(*blocks, strict=True)
        colour = _COLOURS[i % len(_COLOURS)]
        axes.plot(ends, values, "o", color=colour, alpha=0.35, ms=4)
        axes.plot(ends, running, color=colour, lw=1.8, label=_label(label))
    axes.set(xlabel="questions answered", ylabel=metric)
    axes.grid(axis="y", color="#dddddd", lw=0.8)
    _legend(axes, loc="best")
    return figure


def plane(groups: Mapping[str, Float[np.ndarray, "_ d"]], title: str = "", marks: Sequence[Mark] = ()) -> Any:
    """Vectors of named groups on their two principal axes, which all groups share; rings around those of
    `marks`, whose names stand beside the plane.

    Such as a user's documents, a query, its expansions and the documents that answer it (PBR's Figure 5).
    The labels tell how much of the variance each axis holds. A colour belongs to a place in `groups`, so an
    empty group keeps its own.
    """
    vectors = np.concatenate(list(groups.values()))
    centre = vectors.mean(0)
    _, lengths, axes = np.linalg.svd(vectors - centre, full_matrices=False)
    axes *= np.where(axes[:, :1] < 0, -1, 1)  # the sign of an axis is arbitrary: fix it
    shares = lengths**2 / max((lengths**2).sum(), 1e-12)
    figure, place = _figure(height=5.0)
    for i, (label, own) in enumerate(groups.items()):
        if not len(own):
            continue
        points = (own - centre) @ axes[:2].T
        place.scatter(*points.T, color=_COLOURS[i % len(_COLOURS)], s=26, alpha=0.75, label=_label(label))
    place.set_xlabel(f"first principal axis ({shares[0]:.0%})")
    place.set_ylabel(f"second principal axis ({shares[1]:.0%})")
    place.set_aspect("equal")
    _legend(place, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3, fontsize=8)
    for mark in marks:
        at = (mark.vector - centre) @ axes[:2].T
        place.scatter(*at, s=90, facecolors="none", edgecolors="black", lw=1.8 if mark.shown else 0.6)
        place.annotate(mark.label, at, xytext=(6, 5), textcoords="offset points", fontsize=8)
    names = "\n".join(f"{mark.label}  {_plain(mark.name)}" for mark in marks)
    place.text(1.03, 1.0, names, transform=place.transAxes, va="top", fontsize=8, linespacing=1.5)
    place.set_title(title.replace("$", r"\$"), loc="left", fontsize=10)
    return figure


def svg(figure: Any, *, title: str = "") -> str:
    """The figure as an `<svg>` element, the same bytes for the same figure.

    With a `title` texts stay texts, which readers can search and whose viewers have fonts for any script.
    """
    import matplotlib

    buffer = io.StringIO()
    settings = {**_SETTINGS, "svg.fonttype": "none"} if title else _SETTINGS
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # of scripts that the font here lacks
        metadata = {"Date": None, "Creator": None} | ({"Title": title} if title else {})
        figure.savefig(buffer, format="svg", metadata=metadata)
    return re.sub(r"^.*?(?=<svg)", "", buffer.getvalue(), count=1, flags=re.DOTALL).strip()


def _figure(height: float) -> tuple[Any, Any]:
    """A figure of its own: no pyplot, so no global state and no window system."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(8.0, height), layout="constrained")
        FigureCanvasAgg(figure)
        return figure, figure.add_subplot()


def _legend(axes: Any, **options: Any) -> None:
    for text in axes.legend(frameon=False, **options).get_texts():
        text.set_text(text.get_text().removeprefix(_SHOWN))


def _label(name: str) -> str:
    """The name as a label that `_legend` shows. matplotlib leaves out those that begin with an underscore."""
    return _SHOWN + _plain(name)


def _plain(label: str) -> str:
    """The label with dollar signs that start no formula, shortened where it would crowd the axes."""
    short = label if len(label) <= 60 else label[:59] + "…"
    return short.replace("$", r"\$")

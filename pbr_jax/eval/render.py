"""A small document, headings to tables, written as Markdown or LaTeX, and in `page` as HTML.

Text of the document is plain; each writer escapes what its format would read as markup.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from pbr_jax.base.tables import Bold, Table
from pbr_jax.base.terminal import visible

_WIDE = 25  # characters of a drawn interval


@dataclass(frozen=True)
class Heading:
    text: str


@dataclass(frozen=True)
class Paragraph:
    text: str
    warning: bool = False


@dataclass(frozen=True)
class Code:
    """Lines that are shown as they stand."""

    text: str


@dataclass(frozen=True)
class Figure:
    """A picture that only HTML shows: an `<svg>` element, and the words for who cannot see it."""

    svg: str
    caption: str


class Interval(NamedTuple):
    """A value and the ends of its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Forest:
    """Intervals under each other on one scale that holds zero.

    `header` names the cells of a line and the value; an interval of None is one that may not be shown, for
    the reason `without`.
    """

    caption: str
    header: list[str]
    lines: list[tuple[list[str], Interval | None]]
    without: str


@dataclass(frozen=True)
class Fold:
    """Blocks under a summary, which HTML shows when the reader opens it."""

    summary: str
    blocks: list["Block"]


Block = Heading | Paragraph | Code | Table | Figure | Forest | Fold


@dataclass(frozen=True)
class Page:
    title: str
    blocks: list[Block] = field(default_factory=list)


def markdown(page: Page) -> str:
    return "\n\n".join([f"# {_md(page.title)}", *filter(None, map(_md_block, page.blocks))]) + "\n"


def _md_block(block: Block) -> str:
    match block:
        case Heading(text):
            return f"## {_md(text)}"
        case Paragraph(text, warning):
            return f"> **Warning:** {_md(text)}" if warning else _md(text)
        case Code(text):
            return f"```\n{visible(text)}\n```"
        case Table(title, header, rows):
            lines = [[_md(name) for name in header], ["---", *["---:"] * (len(header) - 1)]]
            lines += [[f"**{_md(c)}**" if isinstance(c, Bold) else _md(c) for c in row] for row in rows]
            return f"{_md(title)}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)
        case Forest():
            return _md_forest(block)
        case Figure():
            return ""
        case Fold(summary, blocks):
            return "\n\n".join([f"## {_md(summary)}", *filter(None, map(_md_block, blocks))])


def _md_forest(block: Forest) -> str:
    """A table whose last column draws each interval, with the place of zero."""
    ends = [0.0, *(end for _, one in block.lines if one for end in (one.low, one.high))]
    low, high = min(ends), max(ends)
    scale = f"scale: {low:+.2f} to {high:+.2f}" if low < high else ""  # nothing is drawn without a length
    lines = [[*map(_md, block.header), scale]]
    lines.append(["---", *["---:"] * (len(block.header) - 1), "---"])
    for cells, one in block.lines:
        drawn = "" if one is None else f"`{_drawn(one, low, high)}`"
        lines.append([*map(_md, cells), _text(one, block), drawn])
    return f"{_md(block.caption)}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _text(one: Interval | None, block: Forest) -> str:
    if one is None:
        return block.without
    value, low, high = (f"{round(number, 3) + 0.0:+.3f}" for number in one)  # a zero has no minus
    return f"{value} [{low}, {high}]"


def _drawn(one: Interval, lowest: float, highest: float) -> str:
    def place(value: float) -> int:
        return round((value - lowest) / (highest - lowest) * (_WIDE - 1)) if highest > lowest else 0

    low, high = place(one.low), place(one.high)
    cells = ["─" if low <= at <= high else " " for at in range(_WIDE)]
    cells[place(0.0)] = "│"
    cells[place(one.value)] = "•"
    return "".join(cells)


def _md(text: str) -> str:
    """Escapes Markdown; brackets only where they would make a link, for intervals are full of them."""
    text = re.sub(r"([\\`*|#~])", r"\\\1", " ".join(text.split()))
    text = re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", text)  # inside a word it is no markup
    text = re.sub(r"\](?=[(\[:])", r"\\]", text)
    text = re.sub(
        r"&(?=#?\w+;)", "&amp;", text
    )  # the next two: what would begin an entity, a tag, a quotation
    return re.sub(r"^>", "&gt;", re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text))


_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%",
    "_": r"\_", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", "±": r"\ensuremath{\pm}", "Δ": r"\ensuremath{\Delta}",
    "–": "--", "…": r"\ldots{}", "[": "{[}", "]": "{]}",  # a bare [ after \\ is taken for an option
}  # fmt: skip


def latex(page: Page) -> str:
    """Sections and tables to \\input; needs the packages booktabs and graphicx."""
    head = f"% {' '.join(page.title.split())}. Needs \\usepackage{{booktabs,graphicx}}."
    return "\n\n".join([head, *filter(None, map(_latex_block, page.blocks))]) + "\n"


_NARROWED = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}"  # where it would be too wide


def _latex_block(block: Block) -> str:
    match block:
        case Heading(text):
            return rf"\subsection*{{{_tex(text)}}}"
        case Forest(caption, header, lines):
            return _latex_block(Table(caption, header, [[*cells, _text(one, block)] for cells, one in lines]))
        case Paragraph(text, warning):
            return rf"\noindent\textbf{{Warning:}} {_tex(text)}" if warning else rf"\noindent {_tex(text)}"
        case Code(text):
            return "\n".join(rf"\noindent\texttt{{{_tex(line)}}}\\" for line in text.splitlines())
        case Table(title, header, rows):
            lines = [
                [rf"\textbf{{{_tex(c)}}}" if isinstance(c, Bold) else _tex(c) for c in row] for row in rows
            ]
            body = "\n".join(" & ".join(line) + r" \\" for line in lines)
            return (
                f"\\begin{{table}}[htbp]\n\\centering\n\\caption{{{_tex(title)}}}\n{_NARROWED}{{%\n"
                f"\\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}\n\\toprule\n"
                f"{' & '.join(map(_tex, header))} \\\\\n\\midrule\n{body}\n\\bottomrule\n"
                "\\end{tabular}}\n\\end{table}"
            )
        case Figure():
            return ""
        case Fold(summary, blocks):
            return "\n\n".join(filter(None, map(_latex_block, [Heading(summary), *blocks])))


def _tex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))


WRITERS: dict[str, Callable[[Page], str]] = {"md": markdown, "latex": latex}

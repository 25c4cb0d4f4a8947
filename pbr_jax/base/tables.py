"""The table of reports, notebooks and consoles: a title, rows of plain text, notes."""

import html
from collections.abc import Sequence
from dataclasses import dataclass

from pbr_jax.base.terminal import visible


class Bold(str):
    """A cell that reports show in bold."""


@dataclass(frozen=True)
class Table:
    """Plain text throughout. The first column is aligned to the left, the others to the right."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    def text(self) -> str:
        """Aligned lines. Control characters are escapes, and every cell is one line."""
        lines = [[_line(cell) for cell in row] for row in (self.header, *self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        aligned = (
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
            for row in lines
        )
        return "\n".join([_line(self.title), *aligned, *map(_line, self.notes)])

    def html(self) -> str:
        """A `<table>` in which every text is escaped; its colours are the notebook's."""
        head = "".join(
            f'<th scope="col" style="{_style(i)}">{_cell(t)}</th>' for i, t in enumerate(self.header)
        )
        body = "".join(
            "<tr>" + "".join(f'<td style="{_style(i)}">{_cell(t)}</td>' for i, t in enumerate(row)) + "</tr>"
            for row in self.rows
        )
        notes = "".join(f"<p>{_cell(note)}</p>" for note in self.notes)
        return (
            f'<table><caption style="text-align: left">{_cell(self.title)}</caption>'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{notes}"
        )


def number(value: float, sign: str = "") -> str:
    """Three digits; `sign` "+" shows that of positive numbers too."""
    return f"{value:{sign}.3g}" if abs(value) < 1000 else f"{value:{sign}.0f}"


def interval(pair: Sequence[float] | None, sign: str = "") -> str:
    """`[low, high]`; "" where there is none."""
    return "" if pair is None else f"[{number(pair[0], sign)}, {number(pair[1], sign)}]"


def _line(text: str) -> str:
    return visible(" ".join(text.split()))


def _cell(text: str) -> str:
    return html.escape(_line(text))


def _style(column: int) -> str:
    return f"text-align: {'right' if column else 'left'}"

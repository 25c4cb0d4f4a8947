"""A small document, headings to tables, written as Markdown, HTML or LaTeX.

Text of the document is plain; each writer escapes what its format would read as markup.
"""

import html
import re
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Cell:
    text: str
    bold: bool = False


@dataclass(frozen=True)
class Heading:
    text: str


@dataclass(frozen=True)
class Paragraph:
    text: str
    warning: bool = False


@dataclass(frozen=True)
class Table:
    """First column left-aligned, the others right-aligned; the caption stands above."""

    caption: str
    header: list[str]
    rows: list[list[Cell]]


@dataclass(frozen=True)
class Figure:
    """A picture that only HTML shows: an `<svg>` element, and the words for who cannot see it."""

    svg: str
    caption: str


Block = Heading | Paragraph | Table | Figure


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
        case Table(caption, header, rows):
            lines = [[_md(name) for name in header], ["---", *["---:"] * (len(header) - 1)]]
            lines += [[f"**{_md(c.text)}**" if c.bold else _md(c.text) for c in row] for row in rows]
            return f"{_md(caption)}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)
        case Figure():
            return ""


def _md(text: str) -> str:
    """Escapes Markdown; brackets only where they would make a link, for intervals are full of them."""
    text = re.sub(r"([\\`*|#~])", r"\\\1", " ".join(text.split()))
    text = re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", text)  # inside a word it is no markup
    text = re.sub(r"\](?=[(\[:])", r"\\]", text)
    text = re.sub(
        r"&(?=#?\w+;)", "&amp;", text
    )  # the next two: what would begin an entity, a tag, a quotation
    return re.sub(r"^>", "&gt;", re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text))


_CSS = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 72rem; margin: 2rem auto; padding: 1rem }
h1, h2 { line-height: 1.2 } h2 { margin-top: 2.5rem }
.scroll { overflow-x: auto }
table { border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums }
caption { text-align: left; padding-bottom: .5rem; color: #555 }
th, td { padding: .35rem .8rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left }
thead th { border-bottom: 2px solid #888 }
.warning { background: #fff3cd; border-left: 4px solid #e0a800; padding: .5rem 1rem }
figure { margin: 1rem 0 } figure svg { max-width: 100%; height: auto } figcaption { color: #555 }
""".strip()


def html_page(page: Page) -> str:
    title = html.escape(page.title)
    body = "\n".join([f"<h1>{title}</h1>", *map(_html_block, page.blocks)])
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{title}</title>\n'
        f"<style>\n{_CSS}\n</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _html_block(block: Block) -> str:
    match block:
        case Heading(text):
            return f"<h2>{html.escape(text)}</h2>"
        case Paragraph(text, warning):
            if warning:
                return f'<p class="warning"><strong>Warning:</strong> {html.escape(text)}</p>'
            return f"<p>{html.escape(text)}</p>"
        case Table(caption, header, rows):
            return _html_table(caption, header, rows)
        case Figure(svg, caption):
            words = html.escape(caption)
            return f'<figure aria-label="{words}">\n{svg}\n<figcaption>{words}</figcaption>\n</figure>'


def _html_table(caption: str, header: list[str], rows: list[list[Cell]]) -> str:
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in header)
    lines = []
    for row in rows:
        texts = (html.escape(c.text) for c in row)
        cells = (f"<strong>{t}</strong>" if c.bold else t for t, c in zip(texts, row, strict=True))
        lines.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    body = "\n".join(lines)
    return (
        f'<div class="scroll"><table>\n<caption>{html.escape(caption)}</caption>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>"
    )


_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%",
    "_": r"\_", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}", "±": r"\ensuremath{\pm}", "Δ": r"\ensuremath{\Delta}",
    "–": "--", "…": r"\ldots{}", "[": "{[}", "]": "{]}",  # a bare [ after \\ is taken for an option
}  # fmt: skip


def latex(page: Page) -> str:
    """Sections and tables to \\input; needs the booktabs package."""
    head = f"% {' '.join(page.title.split())}. Needs \\usepackage{{booktabs}}."
    return "\n\n".join([head, *filter(None, map(_latex_block, page.blocks))]) + "\n"


def _latex_block(block: Block) -> str:
    match block:
        case Heading(text):
            return rf"\subsection*{{{_tex(text)}}}"
        case Paragraph(text, warning):
            return rf"\noindent\textbf{{Warning:}} {_tex(text)}" if warning else rf"\noindent {_tex(text)}"
        case Table(caption, header, rows):
            lines = [[rf"\textbf{{{_tex(c.text)}}}" if c.bold else _tex(c.text) for c in row] for row in rows]
            body = "\n".join(" & ".join(line) + r" \\" for line in lines)
            return (
                f"\\begin{{table}}[htbp]\n\\centering\n\\caption{{{_tex(caption)}}}\n"
                f"\\begin{{tabular}}{{l{'r' * (len(header) - 1)}}}\n\\toprule\n"
                f"{' & '.join(map(_tex, header))} \\\\\n\\midrule\n{body}\n\\bottomrule\n"
                "\\end{tabular}\n\\end{table}"
            )
        case Figure():
            return ""


def _tex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))


WRITERS: dict[str, Callable[[Page], str]] = {"md": markdown, "html": html_page, "latex": latex}

"""The drawings of README and docs as SVG, light and dark: `python docs/pictures/draw.py` writes them all."""

from collections.abc import Callable
from html import escape
from pathlib import Path

HERE = Path(__file__).parent
THEMES = {
    "light": {"ink": "#1f2328", "note": "#59636e", "fill": "#f6f8fa", "edge": "#8c959f", "line": "#0969da",
              "warm": "#bc4c00"},
    "dark": {"ink": "#f0f6fc", "note": "#9ba4ad", "fill": "#151b23", "edge": "#656c76", "line": "#4493f8",
             "warm": "#f0883e"},
}  # fmt: skip
FONT = 'system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif'


class Drawing:
    """Boxes, lines of text and arrows; lengths are in pixels of the SVG."""

    def __init__(self, theme: str, width: int, height: int, title: str, description: str) -> None:
        self.colours = THEMES[theme]
        ink, note, fill, edge = (self.colours[name] for name in ("ink", "note", "fill", "edge"))
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-8 0 {width + 8} {height}" '
            f'width="{width + 8}" height="{height}" role="img" aria-labelledby="t d">',
            f'<title id="t">{escape(title)}</title>',
            f'<desc id="d">{escape(description)}</desc>',
            f"<style>text {{ font: 14px {FONT}; fill: {ink} }} .name {{ font-weight: 600; font-size: 16px }}",
            f".note {{ fill: {note} }} .box {{ fill: {fill}; stroke: {edge} }}",
            ".arrow { fill: none; stroke-width: 2 }</style>",
            *(self._head(name) for name in ("line", "warm")),
        ]

    def _head(self, name: str) -> str:
        return (
            f'<defs><marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto"><path fill="{self.colours[name]}" d="M0 0 8 4 0 8z"/></marker></defs>'
        )

    def text(self, x: int, y: int, *lines: str, kind: str = "", anchor: str = "start") -> None:
        for number, line in enumerate(lines):
            place = f'x="{x}" y="{y + 18 * number}" text-anchor="{anchor}"'
            self.parts.append(f'<text {place} class="{kind}">{escape(line)}</text>')

    def box(self, x: int, y: int, width: int, height: int, name: str, *notes: str) -> None:
        self.parts.append(f'<rect class="box" x="{x}" y="{y}" width="{width}" height="{height}" rx="8"/>')
        self.text(x + 12, y + 24, name, kind="name")
        self.text(x + 12, y + 44, *notes, kind="note")

    def arrow(self, path: str, colour: str = "line") -> None:
        """An arrow along a path of SVG, such as "M10 10H50V90"; orange ones carry what is learned."""
        self.parts.append(
            f'<path class="arrow" stroke="{self.colours[colour]}" marker-end="url(#{colour})" d="{path}"/>'
        )

    def svg(self) -> str:
        return "\n".join([*self.parts, "</svg>"]) + "\n"


def pipeline(theme: str) -> str:
    about = (
        "A user's question passes expand, neighbours, retrieve, select, prompt and generate. The result is "
        "an answer in the user's manner. How probable the true answer is, or labels, train the slots."
    )
    art = Drawing(theme, 516, 370, "The six slots of a system", about)
    art.text(8, 20, "a user and a question")
    slots = [
        ("1 expand", "reword the question,", "add what the user may mean"),
        ("2 neighbours", "choose whose documents", "may help: own, or similar"),
        ("3 retrieve", "find candidate documents", "by words or by meaning"),
        ("4 select", "rerank the candidates,", "keep the best few"),
        ("5 prompt", "write question and documents", "into a budget of tokens"),
        ("6 generate", "the language model answers,", "or scores the true answer"),
    ]
    for number, slot in enumerate(slots):
        x, y = 8 + 252 * (number % 2), 34 + 98 * (number // 2)
        art.box(x, y, 232, 74, *slot)
        if number % 2 == 0:
            art.arrow(f"M240 {y + 37}H258")
        elif number < 5:
            art.arrow(f"M376 {y + 74}v12H124v10")
    art.arrow("M376 304v20")
    art.text(376, 344, "an answer in the user's manner", anchor="middle")
    for path in ("M262 340H0V169H6", "M0 169V71H6"):
        art.arrow(path, "warm")
    for path in ("M490 340H508V267H494", "M508 267V169H494", "M508 169V71H494"):
        art.arrow(path, "warm")
    art.text(8, 362, "the true answer's likelihood trains 1 to 4 and 6", kind="note")
    return art.svg()


def document(theme: str) -> str:
    about = (
        "A document is stored with its owner and date, embedded by its content, found by a question that may "
        "see it, passed by the privacy gate and shown in a prompt. A new version replaces it. To forget a "
        "user deletes its text, its vectors and the user's name."
    )
    art = Drawing(theme, 460, 560, "The life of a document", about)
    boxes = [
        ("written", "an owner (or shared), a date, an id", "in the store: one SQLite file"),
        ("embedded", "one vector a text, kept by content,", "so an equal text is never encoded twice"),
        ("found", "by words, by meaning or both; others'", "and shared ones if dated earlier"),
        ("let through the gate", "shared, or the asker's own,", "or collaboration says text"),
        ("shown", "in a prompt, cut to the budget", "texts.jsonl keeps what was shown"),
    ]
    for number, box in enumerate(boxes):
        art.box(8, 8 + 92 * number, 300, 72, *box)
        if number < 4:
            art.arrow(f"M158 {80 + 92 * number}v18")
    art.text(330, 34, "a new version:", "a new row; the old", "one is deleted", kind="note")
    art.arrow("M322 44H310", "warm")
    art.box(
        8,
        476,
        444,
        72,
        "deleted or forgotten",
        "text, vectors and the user's name are overwritten;",
        "cached answers that were asked since go too",
    )
    art.arrow("M158 448v26")
    art.arrow("M380 96V474", "warm")
    art.text(388, 280, "forget", kind="note")
    return art.svg()


def purple(theme: str) -> str:
    about = (
        "A policy reads the question and all candidate records, draws several profiles of K records, and "
        "learns from how probable the language model finds the reference answer after each profile."
    )
    art = Drawing(theme, 460, 470, "PURPLE: how the policy learns", about)
    art.box(8, 8, 444, 56, "question and up to 20 candidates", "found by any retriever")
    art.arrow("M230 64v22")
    art.box(
        8,
        88,
        444,
        72,
        "policy",
        "cross-attention to the question, a transformer over",
        "the records: a propensity for each record",
    )
    art.arrow("M230 160v22")
    art.box(8, 184, 444, 56, "profiles", "drawn without replacement, 32 of K records each")
    art.arrow("M230 240v22")
    art.box(
        8,
        264,
        444,
        72,
        "frozen language model",
        "reward: log p(reference answer | profile, question)",
        "each profile is asked once; rewards are kept",
    )
    art.arrow("M230 336v22")
    art.box(8, 360, 444, 56, "advantages", "rewards standardised within the question")
    art.arrow("M30 416v22H2V124H6", "warm")
    art.text(42, 444, "gradient: more of what was worth more", kind="note")
    art.text(42, 462, "In use the K highest propensities stand in the prompt.", kind="note")
    return art.svg()


def luf(theme: str) -> str:
    about = (
        "Questions come in blocks. Each is answered with the present retriever, and its documents "
        "are labelled. After the block the retriever learns from the labels. Remarks are judged and stored."
    )
    art = Drawing(theme, 460, 528, "LUF: a stream of questions", about)
    art.box(8, 8, 444, 56, "a block of questions", "in order of arrival")
    art.arrow("M120 64v22")
    art.box(8, 88, 224, 72, "retrieve", "shared documents, and", "the asker's own store")
    art.arrow("M120 160v22")
    art.box(8, 184, 224, 72, "rerank in levels", "1, 1, 1, 1, 1, 5, 10, 20", "until one is relevant")
    art.arrow("M120 256v22")
    art.box(8, 280, 224, 56, "answer", "scored before learning")
    art.arrow("M232 220h28", "warm")
    art.box(262, 184, 190, 72, "labels", "holds the answer (D+),", "related (Dr), not (D−)")
    art.arrow("M357 184v-22", "warm")
    art.box(262, 88, 190, 72, "learn", "after the block, then", "the next block")
    art.arrow("M262 124h-28", "warm")
    art.arrow("M120 336v38")
    art.box(8, 376, 224, 56, "a user's remark", "summarised to a claim")
    art.arrow("M232 404h28")
    art.box(262, 358, 190, 92, "judge", "beside documents and", "what the model knows:", "true? whose?")
    art.arrow("M357 450v20H234")
    art.box(8, 448, 224, 72, "stores", "personal, or shared after", "two users agree")
    art.arrow("M8 476H3V124H6", "warm")
    return art.svg()


DRAWINGS: dict[str, Callable[[str], str]] = {
    "pipeline": pipeline,
    "document": document,
    "purple": purple,
    "luf": luf,
}


def main() -> None:
    for name, draw in DRAWINGS.items():
        for theme in THEMES:
            (HERE / f"{name}-{theme}.svg").write_text(draw(theme), encoding="utf-8")


if __name__ == "__main__":
    main()

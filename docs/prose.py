"""Checks the prose of README, CHANGELOG and docs: `python docs/prose.py [FILE ...]` prints faults.

A sentence has at most 35 words and makes one claim. A line has at most 100 characters. Code, tables, headings
and comments are not prose.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
WORDS, LINE = 35, 100

_THINGS = (
    "cache|code|command|config|document|encoder|file|folder|function|gate|graph|index|key|method|model|number|"
    "page|process|program|prompt|question|reader|report|reranker|retriever|run|score|stage|store|system|table"
)
BANNED = {
    rf"\b(?:{_THINGS})s? (?:believes?|complains?|feels?|forgives?|gossips?|hopes?|likes?|minds?|promises?|"
    r"speaks?|thinks?|trusts?|wants?|whispers?)\b": "a thing does what only people do; say what happens",
    r"\b(?:is|are|be|been) told (?:apart|from)\b": "write `differ` or `be distinguished`",
    r"\bwithout (?:leave|further ado)\b": "write what has to be set",
    r"\bas far as (?:can|is|was|one)\b": "write what was measured, and what was not",
    r"\b(?:who|what)ever\b": "name the case",
    r"\b(?:of|all by) (?:its|one's) own accord\b": "write what starts it",
    r"\b(?:what|who) (?:is|are) [\w ]{1,30} (?:is|are)\b(?! not)": "an aphorism; name the subject",
    r"\b(?:simply|obviously|of course|needless to say|just|clearly|basically)\b": "leave the word out",
    r"\b(?:leverag|utili[sz]e[ds]?\b|seamless|delv|cutting-edge|state-of-the-art|blazing)": "a plainer word",
    r"\b(?:to the letter|by a hair|in the dark|for good measure|out of the box)\b": "a figure of speech",
    r"[^.]*;[^.;]*;": "two semicolons in a sentence; write sentences",
}

NOT_YET: set[str] = set()
"""Pages that are still to be rewritten. A page that passes is taken off the list; the tests say so."""

GENERATED = ("docs/_build/", "docs/_generated/", "docs/reference/generated/")


def pages() -> list[Path]:
    """README, CHANGELOG, the list of benchmarks and all pages of docs that are written by hand."""
    others = [ROOT / name for name in ("README.md", "CHANGELOG.md", "benchmarks/RESULTS.md")]
    found = [*others, *sorted((ROOT / "docs").rglob("*.md"))]
    return [path for path in found if not name_of(path).startswith(GENERATED)]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def faults(text: str) -> list[str]:
    """What is to be mended in a page, as `LINE: fault`."""
    lines = list(_prose(text))
    found = [
        (number, f"{len(line)} characters, want at most {LINE}; break the line")
        for number, line in lines
        if len(line) > LINE and not re.search(r"https?://\S{40}", line)
    ]
    for number, sentence in _sentences(lines):
        words = len(re.findall(r"[\w`][^\s]*", sentence))
        if words > WORDS:
            found.append((number, f"{words} words, want at most {WORDS}: {sentence[:60]} ..."))
        for pattern, advice in BANNED.items():
            if match := re.search(pattern, sentence, re.IGNORECASE):
                found.append((number, f"{match[0][-50:]!r}: {advice}"))
    return [f"{number}: {fault}" for number, fault in sorted(found)]


def _prose(text: str) -> Iterator[tuple[int, str]]:
    """The numbered lines outside of code, tables, headings, directives and comments; "" parts paragraphs."""
    text = re.sub(r"<!--.*?-->", lambda match: "\n" * match[0].count("\n"), text, flags=re.DOTALL)
    fence = ""
    for number, line in enumerate(text.splitlines(), 1):
        mark = re.match(r"\s*(`{3,}|:{3,})", line)
        if fence:
            fence = "" if line.strip() == fence else fence
            line = ""
        elif mark:
            fence = mark[1] if mark[1][0] == "`" else ""
            line = ""
        yield number, "" if re.match(r"\s*(\||#|\$\$|:[\w-]+:|<|!\[)", line) else line.rstrip()


def _sentences(lines: list[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Sentences of paragraphs and of items of lists, with the numbers of their first lines."""
    paragraph: list[tuple[int, str]] = []
    for number, line in [*lines, (0, "")]:
        if paragraph and (not line or re.match(r"\s*([-*]|\d+\.) ", line)):
            yield from _split(paragraph)
            paragraph = []
        if line:
            paragraph.append((number, re.sub(r"^\s*([-*]|\d+\.) ", "", line).strip()))


def _split(paragraph: list[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    text = " ".join(line for _, line in paragraph)
    text = re.sub(r"`[^`]+`", lambda match: "`" + re.sub(r"[\s.;!?]", "_", match[0][1:-1]) + "`", text)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    number = paragraph[0][0]
    for sentence in re.split(r"(?<=[.!?:])[*_)\"]*\s+(?=[\W\d]*[A-Z`\[])", text):
        yield number, sentence


if __name__ == "__main__":
    paths = [Path(name).resolve() for name in sys.argv[1:]] or pages()
    found = [f"{name_of(p)}:{fault}" for p in paths for fault in faults(p.read_text(encoding="utf-8"))]
    print("\n".join(found))
    sys.exit(1 if found else 0)

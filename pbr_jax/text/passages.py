"""Documents cut into passages. Passages of one document cover the whole of its text."""

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from pbr_jax.base.types import Document
from pbr_jax.options import Corpus

Span = tuple[int, int]
"""Where a passage begins and ends in a text, in characters; the end is not in it."""

_WORD = re.compile(r"\S+")
# Ends of sentences in the scripts that mark them; "e.g. this" is cut too, which costs a passage and no text.
_SENTENCE_END = re.compile(r"(?<=[.!?\u0964\u06d4])[\"')\]\u201d\u2019]*\s+|(?<=[\u3002\uff01\uff1f])|\n+\s*")


def passages(document: Document, options: Corpus) -> list[Document]:
    """The passages of a document, in their order; the document alone where there is nothing to cut or to
    put in front.

    A passage has the fields of its document, but of those of more than `words` words that the text holds only
    what lies in the passage; where the text holds none of them it stands in the place of the longest.
    """
    front = _front(document, options)
    spans = spans_of(document.text, options, document.turns)
    if len(spans) == 1 and not front:
        return [document]
    long = {name: len(v) for name, v in document.fields.items() if len(v.split()) > options.words}
    places = {name: place for name in long if (place := place_of(document, name))}
    main = () if places else sorted(long, key=lambda name: -long[name])[:1]
    kept = {name: v for name, v in document.fields.items() if name not in places}

    def cut(span: Span) -> Document:
        text = document.text[slice(*span)].strip()
        parts = {name: within(document.text, span, place) for name, place in places.items()}
        fields = kept | {name: part for name, part in parts.items() if part} | dict.fromkeys(main, text)
        return as_passage(replace(document, text=front + text, fields=fields, turns=()), span)

    return [cut(span) for span in spans]


def place_of(document: Document, name: str) -> Span | None:
    """Where a field stands in the document's text; None: nowhere."""
    value = document.fields[name]
    place = document.text.find(value)
    return None if place < 0 else (place, place + len(value))


def within(text: str, span: Span, place: Span) -> str:
    """What lies in both spans of a text, without white space around it."""
    return text[max(span[0], place[0]) : max(min(span[1], place[1]), 0)].strip()


def as_passage(document: Document, span: Span) -> Document:
    """A passage of the document that has its id, with an id of its own."""
    return replace(document, id=f"{document.id}[{span[0]}:{span[1]}]", part_of=document.id, span=span)


def spans_of(text: str, options: Corpus, turns: Sequence[int] = ()) -> list[Span]:
    """Where the passages of a text begin and end, ascending; one of the whole text where nothing is cut.

    The first begins with the text and the last ends with it; white space between two belongs to the first.
    """
    if options.chunk == "turns" and turns:
        cut = [window for turn in _parts(text, turns) for window in _windows(text, turn, options)]
    elif options.chunk == "sentences":
        ends = [match.end() for match in _SENTENCE_END.finditer(text)]
        cut = list(_packed(text, _parts(text, ends), options))
    else:
        cut = _windows(text, (0, len(text)), options)
    if not cut:
        return [(0, len(text))]
    starts = [0, *(start for start, _ in cut[1:])]
    ends = [max(stop, after) for (_, stop), after in zip(cut, [*starts[1:], len(text)], strict=True)]
    return list(zip(starts, ends, strict=True))


def _parts(text: str, starts: Iterable[int]) -> list[Span]:
    """The text cut at some places."""
    places = sorted({0, len(text), *(start for start in starts if 0 < start < len(text))})
    return list(itertools.pairwise(places))


def _windows(text: str, span: Span, options: Corpus) -> list[Span]:
    """Windows of `words` words, one every `stride`; the last one ends with the last word."""
    found = [match.span() for match in _WORD.finditer(text, *span)]
    starts = range(0, max(len(found) - options.words, 0) + options.stride, options.stride) if found else ()
    return [(found[i][0], found[min(i + options.words, len(found)) - 1][1]) for i in starts]


def _packed(text: str, sentences: Iterable[Span], options: Corpus) -> Iterable[Span]:
    """Sentences together, as long as they have at most `words` words; longer ones in windows."""
    start, stop, held = 0, 0, 0
    for sentence in sentences:
        count = len(_WORD.findall(text, *sentence))
        if held and held + count > options.words:
            yield start, stop
            held = 0
        if count > options.words:
            yield from _windows(text, sentence, options)
        elif count:
            start, stop, held = (start if held else sentence[0]), sentence[1], held + count
    if held:
        yield start, stop


def _front(document: Document, options: Corpus) -> str:
    """The line before every passage; "" where the document has nothing to stand there."""
    line = document.fields.get(options.front, "") if options.front != "none" else ""
    if options.front == "date" and not line:
        line = day(document.time)
    return f"{' '.join(line.split())}\n" if line.strip() else ""


def day(time: float | None) -> str:
    """The date of a moment, "" where there is none."""
    try:
        return "" if time is None else f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d}"
    except (OverflowError, ValueError, OSError):  # a year that calendars do not reach
        return ""

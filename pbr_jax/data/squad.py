"""SQuAD's format, which XQuAD has too: articles of paragraphs, each with the questions that were asked of it.

Paragraphs have no ids, so the hash of the text is one. A question is of the unit that its article is.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from pbr_jax.data import json_stream
from pbr_jax.data.question_sets import Question, asked
from pbr_jax.data.records import Record


def questions(path: Path) -> Iterator[Question]:
    """The questions in file order. SQuAD 2.0's that their paragraph does not answer have the empty answer."""
    for number, paragraph in _paragraphs(path):
        held = (paragraph_id(paragraph.text("context")),)
        unit = _title(paragraph) or f"article {number}"
        for question in paragraph.records("qas"):
            answers = [answer.text("text") for answer in question.records("answers")] or [""]
            yield Question(question.name("id"), asked(question, "question"), answers, held, unit, number)


def passages(path: Path, *, unique: bool = False) -> Iterator[Record]:
    """The paragraphs as records with `id`, `title` and `text`, each once.

    `unique`: one that stands there twice is a UserError; SQuAD's own files have some.
    """
    seen = set[str]()
    for _, paragraph in _paragraphs(path):
        id = paragraph_id(text := paragraph.text("context"))
        if id not in seen:
            seen.add(id)
            yield Record({"id": id, "title": _title(paragraph), "text": text}, path, paragraph.path)
        elif unique:
            raise paragraph.fault("context", "a paragraph that stands there already", "every one once")


def paragraph_id(text: str) -> str:
    """The id of a paragraph."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _paragraphs(path: Path) -> Iterator[tuple[int, Record]]:
    """The paragraphs, each with its article's number and `title`."""
    for number, article in enumerate(json_stream.load(path).records("data")):
        title = article.text("title") if article.has("title") else ""
        for paragraph in article.records("paragraphs"):
            yield number, Record({**paragraph.values, "title": title}, path, path=paragraph.path)


def _title(paragraph: Record) -> str:
    return paragraph.values["title"].strip()

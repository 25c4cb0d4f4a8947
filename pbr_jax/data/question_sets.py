"""Files of question sets: which there are, and the questions and passages of SQuAD's format and WebQA's.

SQuAD's format, which XQuAD has too, is articles of paragraphs, each with the questions that were asked of it.
Paragraphs have no ids, so the hash of the text is one. A question is of the unit that its article is.

Baidu's WebQA has Chinese questions, each with pieces of web pages (evidences) that may answer it: Li et al.,
"Dataset and Neural Recurrent Sequence Labeling Model for Open-Domain Factoid Question Answering",
https://arxiv.org/abs/1607.06275, 2016. A line of a file is a question: `q_key`, `question_tokens`, and
`evidences` with `evidence_tokens`, `golden_answers` (lists of tokens, or "no_answer") and `type`. Words are
joined without spaces, but for two Latin ones. An evidence that stands with several questions is one passage;
its id is the hash of its text.
"""

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pbr_jax.data import json_stream
from pbr_jax.data.records import Record, kind, whole

_NO_ANSWER = "no_answer"
_GLUED = re.compile(r"(?<![A-Za-z0-9]) | (?![A-Za-z0-9])")


@dataclass(frozen=True)
class Question:
    """A question as released: `id` is empty where the set has none, `answers` None where withheld.

    `held` are the ids of the passages that answer it, where the set says so. `unit` is the article that it
    was asked of, by title, and `article` the number of this in the file.
    """

    id: str
    text: str
    answers: list[str] | None
    held: tuple[str, ...] = ()
    unit: str = ""
    article: int = 0

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of an example that say what is right: the first answer, others, passages, the unit."""
        answers = list(dict.fromkeys(self.answers or [None]))  # type: ignore[arg-type]
        relevant = (self.held,) if self.held else ()
        return {
            "target": answers[0], "alternatives": tuple(answers[1:]), "relevant": relevant, "unit": self.unit
        }  # fmt: skip


FILES = {
    "nq_open": ("NQ-open.{}.jsonl",),
    "squad": ("{}-v1.1.json",),
    "xquad": ("xquad.{}.json",),
    "web_questions": ("{}.json",),
    "web_qa": ("{}.json.gz", "{}.json", "data/{}.json.gz"),
}
"""Names of a set's official files, with the data's name of the split in them."""

ALIASES = {
    "train": ("train", "trainmodel", "training"),
    "dev": ("dev", "validation", "val", "validation.ann"),
    "dev.ir": ("validation.ir",),
    "devtest": ("devtest",),
    "test": ("test", "test.ann"),
    "test.ir": ("test.ir",),
}
"""The data's names of each split."""


def files(name: str, root: str) -> dict[str, Path]:
    """The official files of a set under a root, by split; of XQuAD a split is a language."""
    folder = Path(root)
    if not root or name not in FILES:
        return {}
    if name == "xquad":
        paths = sorted(folder.glob(FILES[name][0].format("*")))
        return {path.name.removeprefix("xquad.").removesuffix(".json"): path for path in paths}
    return {
        split: folder / file.format(one)
        for split, names in ALIASES.items()
        for one in reversed(names)
        for file in reversed(FILES[name])
        if (folder / file.format(one)).is_file()
    }


def asked(record: Record, key: str) -> str:
    """A question's text; UserError where it is blank."""
    if not (question := record.text(key)).strip():
        raise record.fault(key, "an empty string", "a question")
    return question


def strings(record: Record, key: str) -> list[str]:
    """A list of strings alone."""
    values = record.items(key)
    if wrong := [value for value in values if not isinstance(value, str)]:
        raise record.fault(key, f"{kind(wrong[0])} in the list", "strings alone")
    return [whole(value) for value in values]


# -- SQuAD -------------------------------------------------------------------------------------------


def squad_questions(path: Path) -> Iterator[Question]:
    """The questions in file order. SQuAD 2.0's that their paragraph does not answer have the empty answer."""
    for number, paragraph in _paragraphs(path):
        held = (paragraph_id(paragraph.text("context")),)
        unit = _title(paragraph) or f"article {number}"
        for question in paragraph.records("qas"):
            answers = [answer.text("text") for answer in question.records("answers")] or [""]
            yield Question(question.name("id"), asked(question, "question"), answers, held, unit, number)


def squad_passages(path: Path, *, unique: bool = False) -> Iterator[Record]:
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


# -- WebQA -------------------------------------------------------------------------------------------


def web_qa_questions(path: Path) -> Iterator[Question]:
    """The questions in file order; `held` are the evidences of type positive.

    A question that none of its evidences answers has the empty answer.
    """
    for record in json_stream.lines(path):
        answers, held = [], []
        for evidence in record.records("evidences"):
            answers += _answers(evidence)
            if evidence.text("type") == "positive":
                held.append(paragraph_id(_text(evidence, "evidence_tokens")))
        text = _text(record, "question_tokens")
        yield Question(record.name("q_key"), text, answers or [""], tuple(dict.fromkeys(held)))


def web_qa_passages(path: Path) -> Iterator[Record]:
    """The evidences as records with `id` and `text`, each once."""
    seen = set[str]()
    for record in json_stream.lines(path):
        for evidence in record.records("evidences"):
            id = paragraph_id(text := _text(evidence, "evidence_tokens"))
            if id not in seen:
                seen.add(id)
                yield Record({"id": id, "text": text}, path, evidence.label, evidence.path)


def _answers(evidence: Record) -> list[str]:
    lists = enumerate(evidence.items("golden_answers"))
    places = [evidence.inner({f"golden_answers[{i}]": value}, "") for i, value in lists]
    texts = [_joined(strings(place, next(iter(place.values)))) for place in places]
    return [text for text in texts if text and text.lower() != _NO_ANSWER]


def _text(record: Record, key: str) -> str:
    if not (text := _joined(strings(record, key))):
        raise record.fault(key, "no words", "a list of words")
    return text


def _joined(words: Sequence[str]) -> str:
    return _GLUED.sub("", " ".join(words)).strip()

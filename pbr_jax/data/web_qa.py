"""Baidu's WebQA: Chinese questions, each with pieces of web pages (evidences) that may answer it.

Li et al., "Dataset and Neural Recurrent Sequence Labeling Model for Open-Domain Factoid Question
Answering", https://arxiv.org/abs/1607.06275, 2016. A line of a file is a question: `q_key`,
`question_tokens`, and `evidences` with `evidence_tokens`, `golden_answers` (lists of tokens, or "no_answer")
and `type`. Words are joined without spaces, but for two Latin ones. An evidence that stands with several
questions is one passage; its id is the hash of its text.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from pbr_jax.data import json_stream
from pbr_jax.data.question_sets import Question, strings
from pbr_jax.data.records import Record
from pbr_jax.data.squad import paragraph_id

_NO_ANSWER = "no_answer"
_GLUED = re.compile(r"(?<![A-Za-z0-9]) | (?![A-Za-z0-9])")


def questions(path: Path) -> Iterator[Question]:
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


def passages(path: Path) -> Iterator[Record]:
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

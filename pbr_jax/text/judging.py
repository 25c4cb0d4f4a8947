"""Prompts by which a language model judges documents, alone or all of them together, and grades answers.

The structure of the first is that of the papers that `methods.select` names, the wording our own. Records
appear as the labelled lines that answers' prompts have (`prompts.record`). Users' documents are called
records of a user's history, shared ones passages. An answer is graded against the reference by a template
with the fields `{question}`, `{reference}` and `{answer}`. Texts are put in as `clean` leaves them, in one
line each, so that an answer cannot fake another labelled line.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pbr_jax.base.types import Document
from pbr_jax.tasks import Wording
from pbr_jax.text.budget import shorten, water_fill
from pbr_jax.text.prompts import clean, record

YES, NO = "yes", "no"
NONE = "none"  # of several documents helps
NOTHING = "N/A"  # a query that asks for nothing
Messages = list[dict[str, str]]


class _Nouns(NamedTuple):
    """What documents, and the query, are called in prompts."""

    document: str
    documents: str
    query: str
    the_query: str


_RECORDS = _Nouns("record", "records of a user's history", "request", "this request of the user")
_PASSAGES = _Nouns("passage", "passages", "question", "this question")


def _nouns(documents: Sequence[Document]) -> _Nouns:
    return _PASSAGES if documents and all(document.shared for document in documents) else _RECORDS


@dataclass(frozen=True)
class Writer:
    """Writes such prompts in a model's tokens. Query and records together have at most `max_tokens` of them,
    half of which the query may take; each record has at most `words` words."""

    wording: Wording
    words: int
    max_tokens: int
    count: Callable[[str], int]
    truncate: Callable[[str, int], str]

    def fitted(self, query: str, documents: Sequence[Document], times: int = 1) -> tuple[str, list[str]]:
        """The query and the records, cut; the query stands so many times in the prompt."""
        cut: Any = {"count": self.count, "truncate": self.truncate}
        query = shorten(query, max(1, self.max_tokens // (2 * times)), **cut)
        texts = [_first(record(self.wording, d), self.words) for d in documents]
        shares = water_fill(list(map(self.count, texts)), self.max_tokens - times * self.count(query))
        return query, [shorten(text, share, **cut) for text, share in zip(texts, shares)]

    def asks_for(self, query: str, document: Document) -> tuple[Messages, str]:
        """A record, and the query as what should follow it."""
        query, (text,) = self.fitted(query, [document])
        if document.shared:
            return _said(f"A passage:\n{text}\n\nWrite a question that the passage helps to answer."), query
        said = f"A record of a user's history:\n{text}\n\n"
        return _said(f"{said}Write a request of this user that the record helps with."), query

    def is_relevant(self, query: str, document: Document) -> Messages:
        """A record and the query; the answer is `YES` or `NO`."""
        query, (text,) = self.fitted(query, [document])
        if document.shared:
            return _said(
                f"A passage:\n{text}\n\nA question:\n{query}\n\n"
                f"Does the passage help to answer the question? Answer {YES} or {NO}."
            )
        return _said(
            f"A record of a user's history:\n{text}\n\nA new request of the same user:\n{query}\n\n"
            f"Does the record help to answer the request the way this user would? Answer {YES} or {NO}."
        )

    def which(self, query: str, documents: Sequence[Document]) -> Messages:
        """The records, numbered from 1, and the query; the answer is the numbers of those that help."""
        query, texts = self.fitted(query, documents)
        document, all_of_them, request, _ = _nouns(documents)
        listed = "\n\n".join(f"[{number}] {text}" for number, text in enumerate(texts, 1))
        return _said(
            f"Here are {len(texts)} {all_of_them}, each under its number.\n\n{listed}\n\n"
            f"{request.capitalize()}:\n{query}\n\nWhich of the {document}s help to answer the {request}? "
            f"Write their numbers, as in 2, 3. Write {NONE} if there are none."
        )

    def ranks(self, query: str, documents: Sequence[Document]) -> Messages:
        """The records one message each, numbered from 1; the answer is their order."""
        query, texts = self.fitted(query, documents, times=2)
        n, (document, all_of_them, request, the_query) = len(texts), _nouns(documents)
        messages = _said(
            f"You are to rank {n} {all_of_them}, each under a number in brackets, by how much "
            f"they help with {the_query}: {query}"
        )
        messages += _answered(f"Show me the {document}s.")
        for number, text in enumerate(texts, 1):
            messages += _said(f"[{number}] {text}") + _answered(f"I have read {document} [{number}].")
        return messages + _said(
            f"The {request}: {query}\nRank the {n} {document}s above, the most helpful first. Write their "
            "numbers in this form: [2] > [1] > ... Write nothing else."
        )

    def looked_at(
        self, query: str, documents: Sequence[Document], blank: bool = False
    ) -> tuple[Messages, list[tuple[int, int]], tuple[int, int]]:
        """All records and then the query in one message; where in it each record stands, and the query.

        `blank`: nothing is asked, and the records are cut as they are beside the query.
        """
        query, texts = self.fitted(query, documents)
        query = NOTHING if blank else query
        document, all_of_them, request, _ = _nouns(documents)
        content, spans = f"Here are {all_of_them}:", []
        for number, text in enumerate(texts, 1):
            content += f"\n\n[{number}] "
            spans.append((len(content), len(content) + len(text)))
            content += text
        content += f"\n\nFind what helps with the following {request} in the {document}s above.\n\n"
        content += f"{request.capitalize()}: "
        return _said(content + query), spans, (len(content), len(content) + len(query))


def _said(content: str) -> Messages:
    return [{"role": "user", "content": content}]


def _answered(content: str) -> Messages:
    return [{"role": "assistant", "content": content}]


def _first(text: str, words: int) -> str:
    """The first words; a shorter text stays as it is."""
    found = text.split()
    return text if len(found) <= words else " ".join(found[:words])


PROMPT = (
    "Question: {question}\nReference answer: {reference}\nAnswer to grade: {answer}\n\n"
    "Is the answer to grade right, that is, does it say what the reference answer says? Other words and "
    f"further details do not matter. Reply with {YES} or {NO} alone."
)
"""The template where a config gives none."""

_FIELD = re.compile(r"\{(question|reference|answer)\}")


class Graded(NamedTuple):
    """A prompt for the judge, and whether a text in it was cut."""

    content: str
    cut: bool


@dataclass(frozen=True)
class Grader:
    """Writes such prompts in a model's tokens; the three texts together have at most `max_tokens` of them."""

    template: str
    max_tokens: int
    count: Callable[[str], int]
    truncate: Callable[[str, int], str]

    def __call__(self, question: str, reference: str, answer: str) -> Graded:
        texts = [clean(text) for text in (question, reference, answer)]
        shares = water_fill(list(map(self.count, texts)), self.max_tokens)
        cut: Any = {"count": self.count, "truncate": self.truncate}
        shown = [shorten(text, share, **cut) for text, share in zip(texts, shares, strict=True)]
        question, reference, answer = shown
        values = {"question": question, "reference": reference, "answer": answer}
        return Graded(filled(self.template, values), shown != texts)


def filled(template: str, values: Mapping[str, str]) -> str:
    """The template with its fields filled at once: what looks like a field in a text stays as it is."""
    return _FIELD.sub(lambda field: values[field[1]], template)


def prompt_hash(template: str) -> str:
    """SHA-256 of the template and of the two words that are compared."""
    return hashlib.sha256("\0".join([template, YES, NO]).encode()).hexdigest()

"""The prompt by which a language model grades an answer against the reference: yes or no.

The template has the fields `{question}`, `{reference}` and `{answer}`. Texts are put in as `clean` leaves
them, in one line each, so that an answer cannot fake another labelled line.
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pbr_jax.text.budget import shorten, water_fill
from pbr_jax.text.judging import NO, YES
from pbr_jax.text.prompts import clean

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

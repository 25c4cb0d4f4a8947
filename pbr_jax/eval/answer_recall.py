"""Whether passages hold an accepted answer: has_answer of DPR's scorer, the recall of open-domain QA.

A passage holds an answer whose words stand in it one after another. Words are those of DPR's SimpleTokenizer,
in NFD and lower case: runs of letters, digits and marks, and every other visible character by itself. Chinese
puts no spaces between words: a Chinese answer, and any answer in a Chinese passage, is searched as a
substring, in NFKC, lower case and without spaces. No passage holds an answer without words (in DPR's scorer
every one does).

Karpukhin et al., "Dense Passage Retrieval for Open-Domain Question Answering",
https://arxiv.org/abs/2004.04906, 2020.

>>> Finder().rank(["new york"], [(0, "York is new."), (1, "In New York, at sea")])
2.0
"""

import math
import unicodedata
from collections.abc import Hashable, Iterable, Sequence
from functools import cached_property

import regex

from pbr_jax.base.types import Document, Example

_WORD = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")
_HAN = regex.compile(r"\p{Han}")
_OTHER = regex.compile(r"[\p{L}--\p{Han}]+", regex.V1)
_SPACE = regex.compile(r"\s+")
_END = "\0"  # of a word, in which it never stands


class Finder:
    """Looks for answers in passages, each of which it cuts into words once."""

    def __init__(self) -> None:
        self._passages: dict[Hashable, _Text] = {}

    def rank(self, answers: Iterable[str], passages: Iterable[tuple[Hashable, str]]) -> float:
        """The rank, from 1, of the first passage that holds one of the answers; infinity where none does.

        Passages are pairs of what names them and the text, best first.
        """
        wanted = [_Text(answer) for answer in answers]
        for rank, (name, text) in enumerate(passages, start=1):
            if name not in self._passages:
                self._passages[name] = _Text(text)
            if any(_holds(self._passages[name], answer) for answer in wanted):
                return float(rank)
        return math.inf


def accepted(example: Example) -> list[str]:
    """All answers to a question that count as right."""
    return [] if example.target is None else [example.target, *example.alternatives]


def body(document: Document) -> str:
    """A passage without its title."""
    return document.fields.get("text") or document.text


def holds(passage: str, answers: Sequence[str]) -> bool:
    """Whether a passage holds one of the answers."""
    return Finder().rank(answers, [(0, passage)]) == 1


class _Text:
    def __init__(self, text: str) -> None:
        self.text = text

    @cached_property
    def words(self) -> str:
        """All words, each between two ends."""
        found = _WORD.findall(unicodedata.normalize("NFD", self.text))
        return _END.join(["", *(word.lower() for word in found), ""])

    @cached_property
    def characters(self) -> str:
        return _SPACE.sub("", unicodedata.normalize("NFKC", self.text)).lower()

    @cached_property
    def has_han(self) -> bool:
        return _HAN.search(self.text) is not None

    @cached_property
    def is_chinese(self) -> bool:
        """Whether there are more Chinese characters than words of other letters."""
        return self.has_han and len(_HAN.findall(self.text)) > len(_OTHER.findall(self.text))


def _holds(passage: _Text, answer: _Text) -> bool:
    if answer.has_han or passage.is_chinese:
        return bool(answer.characters) and answer.characters in passage.characters
    return len(answer.words) > 1 and answer.words in passage.words

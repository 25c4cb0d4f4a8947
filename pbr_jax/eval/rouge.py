"""ROUGE for feedback: the values of rouge-score, computed for many texts at once.

Reports use rouge-score itself. A language model's feedback needs a value for every candidate document of
every question, hundreds of thousands for a run, and must not wait for them.
"""

import re
from collections import Counter
from collections.abc import Sequence

import numpy as np

_NO_WORD = re.compile(r"[^a-z0-9]+")


def rouge(predictions: Sequence[str], targets: Sequence[str], name: str) -> np.ndarray:
    """ROUGE F-measure of each pair, float64 [n], as rouge-score gives it without a stemmer.

    Args:
      name: "rouge1", common words; or "rougeL", the longest common subsequence of words.

    Reference: Lin, ROUGE: A Package for Automatic Evaluation of Summaries,
    https://aclanthology.org/W04-1013, 2004.

    >>> rouge(["The cat, sat!"], ["the sat cat on"], "rougeL").round(4).tolist()
    [0.5714]
    """
    common = {"rouge1": _overlap, "rougeL": _longest}[name]
    words: dict[str, list[str]] = {}  # a target stands beside many predictions

    def split(text: str) -> list[str]:
        if text not in words:
            words[text] = rouge_words(text)
        return words[text]

    scores = np.zeros(len(predictions))
    for place, (prediction, target) in enumerate(zip(predictions, targets, strict=True)):
        one, two = split(prediction), split(target)
        if both := common(one, two) if one and two else 0:
            precision, recall = both / len(one), both / len(two)
            scores[place] = 2 * precision * recall / (precision + recall)
    return scores


def rouge_words(text: str) -> list[str]:
    """The words that rouge-score sees in a text: lower-cased runs of a-z and 0-9."""
    return [word for word in _NO_WORD.split(text.lower()) if word]


def _overlap(one: list[str], two: list[str]) -> int:
    return (Counter(one) & Counter(two)).total()


def _longest(one: list[str], two: list[str]) -> int:
    from rapidfuzz.distance import LCSseq

    return LCSseq.similarity(one, two)

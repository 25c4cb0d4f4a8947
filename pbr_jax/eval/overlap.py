"""Words that texts share: ROUGE, METEOR, and how much of an answer is copied out of its prompt."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from pbr_jax.base.words import composed, words

_NO_WORD = re.compile(r"[^a-z0-9]+")


def rouge(predictions: Sequence[str], targets: Sequence[str], name: str) -> np.ndarray:
    """ROUGE F-measure of each pair, float64 [n, 1], as the package rouge-score gives it without a stemmer.

    Args:
      name: "rouge1", common words; or "rougeL", the longest common subsequence of words.

    Reference: Lin, ROUGE: A Package for Automatic Evaluation of Summaries,
    https://aclanthology.org/W04-1013, 2004.

    >>> rouge(["The cat, sat!"], ["the sat cat on"], "rougeL").round(4).tolist()
    [[0.5714]]
    """
    common = {"rouge1": _overlap, "rougeL": _longest}[name]
    split = cache(rouge_words)  # a target stands beside many predictions
    scores = np.zeros((len(predictions), 1))
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


METEOR_VARIANT = "exact+stem, no WordNet"
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_LONGEST_STEMMED = 100  # characters; no word is longer, and a stemmer may choke on a repeated letter


class _NoWordNet:
    """A thesaurus in which no word has synonyms."""

    def synsets(self, word: str) -> list[Any]:
        return []


class _Stemmer:
    """Porter's stemmer, which leaves overlong strings as they are."""

    def __init__(self) -> None:
        from nltk.stem.porter import PorterStemmer

        self._stem = cache(PorterStemmer().stem)

    def stem(self, word: str) -> str:
        return word if len(word) > _LONGEST_STEMMED else self._stem(word)


def tokens(text: str) -> list[str]:
    """Words and punctuation marks: nltk's word tokenizer on each sentence.

    Sentences end at `.`, `!` or `?` before white space. nltk's own sentence splitter knows
    abbreviations too, but needs data; the two differ on the full stop of `Mr.` and the like. Tokens are in
    NFC.
    """
    from nltk.tokenize.destructive import NLTKWordTokenizer

    tokenize = NLTKWordTokenizer().tokenize
    return [token for sentence in _SENTENCE_END.split(composed(text).strip()) for token in tokenize(sentence)]


def meteor(predictions: list[str], targets: list[str]) -> list[float]:
    """METEOR in [0, 1] of each prediction against its target, alpha .9, beta 3, gamma .5.

    `(1 - gamma (chunks / matches)^beta) P R / (alpha P + (1 - alpha) R)`, over lower-cased tokens;
    0 where nothing matches.

    Lavie and Agarwal, "METEOR: An Automatic Metric for MT Evaluation with High Levels of
    Correlation with Human Judgments", https://aclanthology.org/W07-0734, 2007.
    """
    from nltk.translate.meteor_score import single_meteor_score

    options: dict[str, Any] = dict(stemmer=_Stemmer(), wordnet=_NoWordNet(), alpha=0.9, beta=3.0, gamma=0.5)
    return [
        float(single_meteor_score(tokens(target), tokens(prediction), **options))
        for prediction, target in zip(predictions, targets, strict=True)
    ]


COPIED_WORDS = 4  # words
COPIED = {
    "question": "answer: in the question",
    "documents": "answer: in the documents",
    "target_question": "target: in the question",
    "target_documents": "target: in the documents",
}


def copied(answer: str, sources: Sequence[str]) -> float:
    """The share of an answer's runs of four words that stand in one of these texts, word for word.

    Words are lower-cased and alphanumeric; an answer of fewer words is one run, and of none copies nothing.
    """
    own = words(answer)
    length = min(COPIED_WORDS, len(own))
    if not length:
        return 0.0
    held = {run for source in sources for run in _runs(words(source), length)}
    runs = list(_runs(own, length))
    return sum(run in held for run in runs) / len(runs)


def _runs(tokens: list[str], length: int) -> Iterator[tuple[str, ...]]:
    return zip(*(tokens[start:] for start in range(length)), strict=False)


def copies(answers: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each share over questions; {} without any."""
    shares_by_name = {name: [one[name] for one in answers if name in one] for name in COPIED}
    return {name: sum(shares) / len(shares) for name, shares in shares_by_name.items() if shares}

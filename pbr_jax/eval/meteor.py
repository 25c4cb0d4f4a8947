"""METEOR without downloads: exact and stem matches, no synonyms.

The full metric also matches WordNet synonyms, whose data would have to be fetched. Results name
this variant, because its numbers are lower than those of the full metric by the synonym matches.
"""

import re
from functools import cache
from typing import Any

from pbr_jax.base.words import composed

VARIANT = "exact+stem, no WordNet"

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

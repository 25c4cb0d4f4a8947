"""BM25 over one user's documents, with the terms that an analyser makes of texts.

The scores are those of `rank_bm25.BM25Okapi`, LaMP's official retriever. For a query of terms t
(each repetition counts) and a document d of |d| terms, among N documents of average length L,

    score = sum_t  idf(t) * f(t, d) * (k1 + 1) / (f(t, d) + k1 * (1 - b + b * |d| / L))
    idf(t) = ln((N - n_t + 1/2) / (n_t + 1/2)),   n_t: the documents that hold t

where a negative idf is replaced by `epsilon` times the mean idf of the vocabulary. Robertson and
Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond", 2009,
https://doi.org/10.1561/1500000019; the floor is rank_bm25's own. Lucene's idf, which is never negative,
is ln(1 + (N - n_t + 1/2) / (n_t + 1/2)).
"""

import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import chain, pairwise
from typing import Any, Literal, get_args

import numpy as np
import regex
from jaxtyping import Float

from pbr_jax.base.types import UserError
from pbr_jax.base.words import composed, words

Analyser = Literal["words", "stem", "whitespace"]
Idf = Literal["okapi", "lucene"]

Terms = Callable[[str], list[str]]
"""From a text to its terms, in order."""

QUESTION_WORDS = frozenset(
    words(
        "a am an and any are as at be been being by can could did do does doing for from had has have having "
        "he her hers him his how i if in into is it its me my of on or our she should so some such than that "
        "the their them then there these they this those to was we were what when where which while who whom "
        "whose why will with would you your"
    )
)
"""English words that ask and join, and do not say what a question is about."""

_UNSPACED = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}ー\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]+")


def terms(analyser: Analyser, language: str = "english", *, question_words: bool = True) -> Terms:
    """What makes terms of texts and queries.

    `whitespace` splits as LaMP does: case and punctuation stay. `words` gives lower-cased words
    (`pbr_jax.base.words`), which match "Tea," with "tea"; scripts without spaces (Chinese, Japanese, Thai,
    Lao, Khmer, Burmese) give pairs of neighbouring characters, as Lucene's CJK analyser does. `stem` reduces
    these words to their stems by the Snowball algorithm of the language: "walks" and "walking" match. All see
    NFC and NFD as one spelling. `question_words` False: without those of `QUESTION_WORDS`.

    Raises UserError for a language without an algorithm, and where PyStemmer is not installed.
    """
    if analyser not in get_args(Analyser):
        raise UserError(f"analyser is {analyser!r}, want one of {', '.join(get_args(Analyser))}")
    split: Terms = _whitespace if analyser == "whitespace" else _words
    split = split if question_words else partial(_telling, split)
    return partial(_stemmed, _stemmer(language), split) if analyser == "stem" else split


def _whitespace(text: str) -> list[str]:
    return composed(text).split()


def _telling(split: Terms, text: str) -> list[str]:
    return [term for term in split(text) if term.lower() not in QUESTION_WORDS]


def _words(text: str) -> list[str]:
    found = words(text, underscore=True)
    return found if text.isascii() else [term for word in found for term in _pairs(word)]


def _pairs(word: str) -> Iterable[str]:
    """The word; of its parts in scripts without spaces pairs of neighbouring characters, or the only one."""
    place = 0
    for part in _UNSPACED.finditer(word):
        yield from [word[place : part.start()]] * (part.start() > place)
        place, characters = part.end(), regex.findall(r"\X", part[0])
        yield from map("".join, pairwise(characters)) if len(characters) > 1 else characters
    yield from [word[place:]] * (place < len(word))


def _stemmed(stemmer: Any, split: Terms, text: str) -> list[str]:
    return stemmer.stemWords(split(text))


def _stemmer(language: str) -> Any:
    try:
        import Stemmer
    except ImportError as error:
        raise UserError(
            "analyser is stem, and PyStemmer is not installed; install it with pip install 'pbr-jax[stem]', "
            "or take analyser words"
        ) from error
    if language not in Stemmer.algorithms():
        known = ", ".join(Stemmer.algorithms())
        raise UserError(
            f"language is {language!r}, want the English name of one whose stems are known: {known}; set "
            "retrieve.language, or select.language of a selection by BM25"
        )
    return Stemmer.Stemmer(language)


class BM25:
    """The texts of one profile, indexed; inverse document frequencies are those of this profile.

    Args:
      texts: the documents; none, and empty ones, are fine.
      k1: saturation of the term frequency, at least 0.
      b: length normalisation, 0 to 1.
      epsilon: the floor of negative idf, as a share of the mean idf. The floor is itself negative
        where most terms occur in most documents, as in a profile of one document.
      split: how texts and queries become terms; see `terms`. As LaMP does where it is left out.
      idf: as the module's head says; Lucene's has no floor.
    """

    def __init__(
        self,
        texts: Sequence[str],
        *,
        k1: float = 1.5,
        b: float = 0.75,
        epsilon: float = 0.25,
        split: Terms = _whitespace,
        idf: Idf = "okapi",
    ) -> None:
        if k1 < 0 or not 0 <= b <= 1:
            raise UserError(f"k1 is {k1} and b is {b}, but k1 must be at least 0 and b between 0 and 1")
        if isinstance(texts, str):
            raise UserError("texts is one string, but must be a sequence of texts")
        self._split = split
        self._vocabulary: dict[str, int] = {}
        self._count = len(texts)
        table = self._vocabulary
        documents = [[table.setdefault(t, len(table)) for t in split(text)] for text in texts]
        self._index = _index(_score_matrix(documents, len(table), k1, b, epsilon, idf)) if table else None

    def __len__(self) -> int:
        return self._count

    def scores(self, query: str) -> Float[np.ndarray, " n"]:
        """The score of each text, in order, as float64; 0 for a text that shares no term with the query."""
        terms = [self._vocabulary[t] for t in self._split(query) if t in self._vocabulary]
        if self._index is None or not terms:
            return np.zeros(self._count, np.float64)
        return self._index.get_scores_from_ids(terms)


def _index(scores: dict[str, Any]) -> Any:
    """A bm25s index that holds these scores.

    We fill its sparse matrix of scores: bm25s has no floor for negative idf, orders terms by a hash that
    changes from process to process, and loops over documents in Python.
    """
    index = _bm25s().BM25(dtype="float64", backend="numpy")
    index.scores = scores
    index.nonoccurrence_array = None  # a term that a document lacks adds nothing
    return index


def _bm25s() -> Any:
    """The library, which takes a second to import, without its warning that a notebook lacks ipywidgets."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="IProgress not found")
        import bm25s
    return bm25s


def _score_matrix(
    documents: list[list[int]], terms: int, k1: float, b: float, epsilon: float, kind: Idf
) -> dict[str, Any]:
    """What each term adds to the score of each document that holds it: sparse, with a column a term."""
    count = len(documents)
    lengths = np.array([len(document) for document in documents])
    flat = np.fromiter(chain.from_iterable(documents), np.int64, int(lengths.sum()))
    cells = flat * count + np.repeat(np.arange(count), lengths)
    cells, frequency = np.unique(cells, return_counts=True)  # sorted by term, then by document
    term, document = np.divmod(cells, count)
    holding = np.bincount(term, minlength=terms)  # documents that hold each term
    odds = (count - holding + 0.5) / (holding + 0.5)
    idf = np.log(odds) if kind == "okapi" else np.log1p(odds)
    idf = np.where(idf < 0, epsilon * idf.mean(), idf)
    saturation = k1 * (1 - b + b * lengths[document] / lengths.mean())
    return {
        "data": idf[term] * frequency * (k1 + 1) / (frequency + saturation),
        "indices": document,
        "indptr": np.concatenate([[0], np.cumsum(holding)]),
        "num_docs": count,
    }

"""BM25 over one user's documents, as LaMP ranks a profile.

The scores are those of `rank_bm25.BM25Okapi`, LaMP's official retriever. For a query of terms t
(each repetition counts) and a document d of |d| terms, among N documents of average length L,

    score = sum_t  idf(t) * f(t, d) * (k1 + 1) / (f(t, d) + k1 * (1 - b + b * |d| / L))
    idf(t) = ln((N - n_t + 1/2) / (n_t + 1/2)),   n_t: the documents that hold t

where a negative idf is replaced by `epsilon` times the mean idf of the vocabulary. Robertson and
Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond", 2009,
https://doi.org/10.1561/1500000019; the floor is rank_bm25's own.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from pbr_jax.types import UserError
from pbr_jax.words import composed, words

Analyser = Literal["whitespace", "words"]

_ANALYSERS: dict[str, Callable[[str], list[str]]] = {
    "whitespace": lambda text: composed(text).split(),
    "words": partial(words, underscore=True),
}


def analyse(text: str, analyser: Analyser = "whitespace") -> list[str]:
    """The terms of a text: `whitespace` splits as LaMP does (case and punctuation stay), `words` gives
    lower-cased words (`pbr_jax.words`), which match "Tea," with "tea"; no stop words are removed. Both
    see NFC and NFD as one spelling."""
    if analyser not in _ANALYSERS:
        raise UserError(f"tokenizer is {analyser!r}, but must be one of {', '.join(sorted(_ANALYSERS))}")
    return _ANALYSERS[analyser](text)


class BM25:
    """The texts of one profile, indexed; inverse document frequencies are those of this profile.

    Args:
      texts: the documents; none, and empty ones, are fine.
      k1: saturation of the term frequency, at least 0.
      b: length normalisation, 0 to 1.
      epsilon: the floor of negative idf, as a share of the mean idf. The floor is itself negative
        where most terms occur in most documents, as in a profile of one document.
      tokenizer: how texts and queries become terms; see `analyse`.
    """

    def __init__(
        self,
        texts: Sequence[str],
        *,
        k1: float = 1.5,
        b: float = 0.75,
        epsilon: float = 0.25,
        tokenizer: Analyser = "whitespace",
    ) -> None:
        if k1 < 0 or not 0 <= b <= 1:
            raise UserError(f"k1 is {k1} and b is {b}, but k1 must be at least 0 and b between 0 and 1")
        if isinstance(texts, str):
            raise UserError("texts is one string, but must be a sequence of texts")
        self._tokenizer: Analyser = tokenizer
        self._vocabulary: dict[str, int] = {}
        self._count = len(texts)
        table = self._vocabulary
        documents = [[table.setdefault(t, len(table)) for t in analyse(text, tokenizer)] for text in texts]
        self._index = _index(documents, table, k1, b, epsilon) if table else None

    def __len__(self) -> int:
        return self._count

    def scores(self, query: str) -> Float[np.ndarray, " n"]:
        """The score of each text, in order, as float64; 0 for a text that shares no term with the query."""
        terms = [self._vocabulary[t] for t in analyse(query, self._tokenizer) if t in self._vocabulary]
        if self._index is None or not terms:
            return np.zeros(self._count, np.float64)
        return self._index.get_scores_from_ids(terms)


def _index(
    documents: list[list[int]], vocabulary: dict[str, int], k1: float, b: float, epsilon: float
) -> Any:
    """A bm25s index that holds rank_bm25's scores.

    We fill its sparse matrix of scores: bm25s has no floor for negative idf, orders terms by a hash that
    changes from process to process, and loops over documents in Python.
    """
    import bm25s  # takes a second to import

    index = bm25s.BM25(k1=k1, b=b, dtype="float64", backend="numpy")
    index.scores = _score_matrix(documents, len(vocabulary), k1, b, epsilon)
    index.nonoccurrence_array = None  # a term that a document lacks adds nothing
    return index


def _score_matrix(
    documents: list[list[int]], terms: int, k1: float, b: float, epsilon: float
) -> dict[str, Any]:
    """What each term adds to the score of each document that holds it: sparse, with a column a term."""
    count = len(documents)
    lengths = np.array([len(document) for document in documents])
    flat = np.fromiter(chain.from_iterable(documents), np.int64, int(lengths.sum()))
    cells = flat * count + np.repeat(np.arange(count), lengths)
    cells, frequency = np.unique(cells, return_counts=True)  # sorted by term, then by document
    term, document = np.divmod(cells, count)
    holding = np.bincount(term, minlength=terms)  # documents that hold each term
    idf = np.log((count - holding + 0.5) / (holding + 0.5))
    idf = np.where(idf < 0, epsilon * idf.mean(), idf)
    saturation = k1 * (1 - b + b * lengths[document] / lengths.mean())
    return {
        "data": idf[term] * frequency * (k1 + 1) / (frequency + saturation),
        "indices": document,
        "indptr": np.concatenate([[0], np.cumsum(holding)]),
        "num_docs": count,
    }

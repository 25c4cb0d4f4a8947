"""BM25's options, for retrieval and selection, and the index that they make of some texts."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from pbr_jax.options import Options, added
from pbr_jax.text import bm25


@dataclass(frozen=True, kw_only=True)
class Okapi(Options):
    """BM25 of words between white space, as LaMP runs it."""

    k1: float = 1.5  # saturation of term frequency. The default is rank_bm25's, as in LaMP
    b: float = 0.75  # strength of length normalisation
    epsilon: float = 0.25  # value that replaces negative idf, as a share of the mean idf

    def check(self) -> None:
        super().check()
        self.at_least("k1", 0)
        self.between("b", 0, 1)
        self.at_least("epsilon", 0)

    def index(self, texts: Sequence[str]) -> bm25.BM25:
        """The texts, indexed."""
        return bm25.BM25(texts, k1=self.k1, b=self.b, epsilon=self.epsilon)


@dataclass(frozen=True, kw_only=True)
class Analysed(Okapi):
    """BM25 of terms as the field takes them."""

    # how texts are split. words: lower-cased, without punctuation; stem: stems of these (PyStemmer);
    # whitespace: at white space only, as in bm25_lamp
    analyser: bm25.Analyser = "words"
    language: str = "english"  # language of the stems: the name of a Snowball algorithm
    # lucene: never negative; okapi: rank_bm25's, negative for words of most documents, with `epsilon`
    idf: bm25.Idf = "lucene"
    # English words that tell little of what is asked, such as what, did and how. out: they are not indexed
    question_words: Literal["keep", "out"] = field(default="keep", metadata=added("keep"))

    @property
    def terms(self) -> bm25.Terms:
        """What makes terms of texts; errors as of `bm25.terms`."""
        return bm25.terms(self.analyser, self.language, question_words=self.question_words == "keep")

    def check_analyser(self) -> None:
        """Raises UserError before any work where stems cannot be made."""
        if self.analyser == "stem":
            _ = self.terms

    def index(self, texts: Sequence[str]) -> bm25.BM25:
        return bm25.BM25(texts, k1=self.k1, b=self.b, epsilon=self.epsilon, split=self.terms, idf=self.idf)

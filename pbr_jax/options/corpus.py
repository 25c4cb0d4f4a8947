"""The options of the corpus: whether whole documents are retrieved, or passages of them."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from pbr_jax.options.base import Options


@dataclass(frozen=True, kw_only=True)
class Corpus(Options):
    """How documents are cut into passages, and how the scores of passages become those of documents.

    A sentence encoder reads the first 256 or 512 tokens of a text, and a single vector represents a long text
    poorly. A long document is therefore easier to retrieve by its passages (Dai, Callan, "Deeper Text
    Understanding for IR with Contextual Neural Language Modeling", SIGIR 2019, whose MaxP is `pool max`).
    """

    section: ClassVar[str] = "corpus"

    # unit of retrieval. none: whole documents; words: windows of `words` words; sentences: as many whole
    # sentences as fit in `words` words; turns: turns of a dialogue, or windows of words for other documents
    chunk: Literal["none", "words", "sentences", "turns"] = "none"
    # maximum length of a passage, in words. Longer sentences and turns are cut into windows. MiniLM reads 256
    # tokens, but vectors of 60 words retrieve better than those of 200
    words: int = 60
    # distance between the starts of two windows, in words, at most `words`. At half of `words`, text cut by
    # one window is whole in the next
    stride: int = 30
    # line put before the text of every passage: the document's title or date, if it has one
    front: Literal["none", "title", "date"] = "none"
    # how the scores of its passages give the score of a document. max: the best one; mean_best_two: the mean
    # of the best two among the retrieved passages (retrieve.k times the number of passages of the longest
    # document); none: passages are ranked individually
    pool: Literal["max", "mean_best_two", "none"] = "max"

    @property
    def active(self) -> bool:
        """Whether documents are cut into passages."""
        return self.chunk != "none"

    def check(self) -> None:
        self.at_least("words", 1)
        self.at_least("stride", 1)
        if self.stride > self.words:
            self.between("stride", 1, self.words)  # words between two windows would be in none

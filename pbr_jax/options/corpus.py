"""What a retriever finds: whole documents, or passages of them."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from pbr_jax.options.base import Options


@dataclass(frozen=True, kw_only=True)
class Corpus(Options):
    """How documents are cut into passages, each a row of the store, and what becomes of those that are found.

    A sentence encoder reads the first 256 or 512 tokens of a text, and one vector says little about many
    things; so a long document is better found by its passages (Dai, Callan, "Deeper Text Understanding for IR
    with Contextual Neural Language Modeling", SIGIR 2019, whose MaxP is `pool max`).
    """

    section: ClassVar[str] = "corpus"

    # none: documents stay whole. words: windows of `words` words. sentences: as many whole sentences as fit
    # in `words` words. turns: the turns of a dialogue, windows of words where a document has none
    chunk: Literal["none", "words", "sentences", "turns"] = "none"
    # of a passage, at most; longer sentences and turns are cut into windows. MiniLM reads 256 tokens, but one
    # vector of 60 words finds better than one of 200
    words: int = 60
    # from the start of a window to that of the next: at half of `words` what one window cuts stands whole in
    # the next
    stride: int = 30
    # what stands before the text of every passage, a line, where the document has it
    front: Literal["none", "title", "date"] = "none"
    # how the passages of a document make its score: the best one; the mean of the best two among the
    # retrieve.k times as many passages as the longest document has; none: passages are ranked by themselves
    pool: Literal["max", "mean_best_two", "none"] = "max"

    @property
    def active(self) -> bool:
        """Whether documents are cut."""
        return self.chunk != "none"

    def check(self) -> None:
        self.at_least("words", 1)
        self.at_least("stride", 1)
        if self.stride > self.words:
            self.between("stride", 1, self.words)  # words between two windows would be in none

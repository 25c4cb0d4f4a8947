"""The options of users' remarks."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from pbr_jax.options.base import Options


@dataclass(frozen=True, kw_only=True)
class Remarks(Options):
    """How users' remarks on a finished run are processed (`pbr-jax feedback`; LUF, section 2.3)."""

    section: ClassVar[str] = "remarks"

    # number of distinct users who must make the same claim before all users see it. LUF has no quorum (1), so
    # one user can change everybody's answers
    quorum: int = 2
    # least cosine of two texts that count as the same claim, for the same operation and target, from -1 to 1.
    # The value is ours
    claim_cosine: float = 0.9
    # what the judge sees with the remark. guided: the retrieved documents and a paragraph that the model
    # writes itself (Knowledge-Guided Discrimination); direct: nothing else (the paper's Table 3)
    judgement: Literal["guided", "direct"] = "guided"
    # all: a remark can also replace or hide a document that it contradicts; add: it can only add one, for
    # models that choose badly
    operations: Literal["all", "add"] = "all"
    documents: int = 4  # number of documents shown to the judge. The paper does not give it
    # token budget of these documents, the paragraph and the remark together in one prompt
    max_tokens: int = 1024
    max_new_tokens: int = 128  # maximum length of a summary, and of the model's own paragraph, in tokens
    # maximum length of a remark, in characters. Add longer texts as documents, with System.add
    max_characters: int = 10_000

    def check(self) -> None:
        self.at_least("quorum", 1)
        self.between("claim_cosine", -1, 1)
        for name in ("documents", "max_new_tokens", "max_characters"):
            self.at_least(name, 1)
        self.at_least("max_tokens", 64)

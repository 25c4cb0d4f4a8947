"""The options of users' remarks."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from pbr_jax.options.base import Options


@dataclass(frozen=True, kw_only=True)
class Remarks(Options):
    """What users tell a finished run (`pbr-jax feedback`), and what becomes of it (LUF, section 2.3)."""

    section: ClassVar[str] = "remarks"

    # distinct users who make one claim before all users see it; LUF has none (1): one user could then change
    # everybody's answers
    quorum: int = 2
    claim_cosine: float = 0.9  # from which two texts of one operation and target make one claim; ours
    # guided: judged beside what was retrieved and what the model itself writes (Knowledge-Guided
    # Discrimination); direct: the remark alone, the paper's Table 3
    judgement: Literal["guided", "direct"] = "guided"
    # all: a remark may replace or hide a document that it contradicts; add: it never does, for models that
    # choose badly
    operations: Literal["all", "add"] = "all"
    documents: int = 4  # that are shown to the judge; the paper does not say
    max_tokens: int = 1024  # of these documents, the paragraph and the remark in one prompt
    max_new_tokens: int = 128  # of a summary, and of the model's own paragraph
    max_characters: int = 10_000  # of a remark: more is a document, to be added with System.add

    def check(self) -> None:
        self.at_least("quorum", 1)
        self.between("claim_cosine", -1, 1)
        for name in ("documents", "max_new_tokens", "max_characters"):
            self.at_least(name, 1)
        self.at_least("max_tokens", 64)

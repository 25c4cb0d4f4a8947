"""The options of labels: how a question's retrieved documents are graded, for methods that learn from it."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from pbr_jax.options.base import Options


@dataclass(frozen=True, kw_only=True)
class Labels(Options):
    """Which documents hold the answer (D+), are related (D^r) or irrelevant (D-), LUF section 2.1."""

    section: ClassVar[str] = "retrieve.labels"

    # yes_no: P(yes) of the language model asked whether a document helps (A.1.1); query_likelihood: how
    # probable it finds the question after a document. Supervision: answer, whether a document holds an
    # accepted answer word by word (DPR); gold, the data's relevant documents. Controls: self, the
    # retriever's own first is D+; random_k, one drawn among the first `among`; shuffled, gold of another
    # question that arrived with it
    kind: Literal["yes_no", "query_likelihood", "answer", "gold", "self", "random_k", "shuffled"] = "yes_no"
    depth: int = 40  # documents of a question that are labelled at most, as many as the paper reranks (A.2)
    judged: int = 10  # the first documents that a language model labels: each costs a call
    max_tokens: int = 1024  # of question and document in its prompt
    # yes_no: P(yes) from which a document is D+: from .5 on the model answers yes, and the paper asks no more
    positive: float = 0.5
    # the language model's grade below which a document is D-, above it D^r with this grade; the paper has no
    # bound. Of ten documents that are equally likely each has .1
    negative: float = 0.1
    # query_likelihood: documents this near to the best one are D+ too, nats a token; 0: the best one alone
    margin: float = 0.0
    among: int = 10  # random_k: the first documents among which one is drawn
    # probability with which a D+ stays one, else it is D-: Figure 3 simulates models that overlook answers
    keep: float = 1.0

    def check(self) -> None:
        self.at_least("depth", 1)
        self.at_least("judged", 1)
        self.at_least("max_tokens", 64)
        self.between("positive", 0, 1)
        self.between("negative", 0, 1)
        self.at_least("margin", 0)
        self.at_least("among", 1)
        self.between("keep", 0, 1)

    @property
    def supervised(self) -> bool:
        """Whether labels read targets or relevant documents."""
        return self.kind in ("answer", "gold", "shuffled")

    @property
    def asks(self) -> bool:
        """Whether a language model gives them."""
        return self.kind in ("yes_no", "query_likelihood")

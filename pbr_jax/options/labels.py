"""The options of labels: how retrieved documents are graded, for methods that learn from the grades."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from pbr_jax.options.base import Options


@dataclass(frozen=True, kw_only=True)
class Labels(Options):
    """How documents are labelled: those that hold the answer (D+), related ones (D^r) and irrelevant ones
    (D-); LUF section 2.1."""

    section: ClassVar[str] = "retrieve.labels"

    # source of the labels. yes_no: the language model's P(yes) when asked whether a document helps (A.1.1);
    # query_likelihood: the likelihood of the question after a document. Supervised: answer (whether a
    # document contains an accepted answer, as in DPR), gold (the relevant documents in the data). Controls:
    # self (the retriever's first document is D+), random_k (one of the first `among`, at random), shuffled
    # (gold labels of another question that arrived with it)
    kind: Literal["yes_no", "query_likelihood", "answer", "gold", "self", "random_k", "shuffled"] = "yes_no"
    depth: int = 40  # maximum number of documents labelled for a question, as many as the paper reranks (A.2)
    judged: int = 10  # number of top-ranked documents that a language model labels. Each costs one call
    max_tokens: int = 1024  # token budget of question and document in the labelling prompt
    # yes_no: least P(yes) of a D+ document, from 0 to 1. The default is where the model's answer is yes; the
    # paper gives no other bound
    positive: float = 0.5
    # grade of the language model below which a document is D-, from 0 to 1. Documents above it are D^r,
    # weighted by their grade. The paper has no such bound. Each of ten equally likely documents has grade 0.1
    negative: float = 0.1
    # query_likelihood: documents within this margin of the best one are D+ too, in nats per token. 0: only
    # the best
    margin: float = 0.0
    among: int = 10  # random_k: number of top-ranked documents among which one is drawn
    # probability that a D+ document keeps its label; otherwise it becomes D-. Figure 3 simulates in this way
    # models that overlook answers
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
        """Whether a language model provides the labels."""
        return self.kind in ("yes_no", "query_likelihood")

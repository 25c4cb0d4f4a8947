"""The options of what the language model makes of candidates, and of what is learned from that."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from pbr_jax.options.base import Options, added


@dataclass(frozen=True, kw_only=True)
class Feedback(Options):
    """What the language model makes of each candidate alone: the teacher of retriever and reranker."""

    section: ClassVar[str] = "feedback"

    # of the answer; auto: the task's first (mae: as 1 - mae / the worst possible). likelihood: nothing is
    # answered, a candidate is worth log p(target | prompt with it) per token of the target, in nats
    metric: str = "auto"
    # what an error of a rating is worth: 1 - error / the worst possible, as ROPG; - error, as CFRAG's code
    errors: Literal["scaled", "negated"] = "scaled"
    limit: int | None = None  # training questions asked, drawn by the seed; None: all
    candidates: int | None = None  # documents from each user; None: as many as retrieve.k
    num_beams: int = 1  # of the answers
    max_new_tokens: int | None = None  # of the answers; None: as generate.max_new_tokens
    # a control: each question's values are permuted among its candidates, drawn by the seed. What is learned
    # from them then is what training does without knowing which documents help
    shuffle: bool = field(default=False, metadata=added(False))

    def check(self) -> None:
        self.at_least("max_new_tokens", 1)
        self.at_least("limit", 1)
        self.at_least("candidates", 2)
        self.at_least("num_beams", 1)


@dataclass(frozen=True, kw_only=True)
class Distillation(Options):
    """How scores of candidates are drawn to what feedback says of them."""

    # reverse_kl: KL(scores || feedback), CFRAG Eq. 8 and 12; forward_kl: KL(feedback || scores), CFRAG as
    # released, and ROPG-KD; reinforce: one sampled candidate against the best-scored one, ROPG-RL
    loss: Literal["reverse_kl", "forward_kl", "reinforce"] = "reverse_kl"
    student_temperature: float = 1.0
    teacher_temperature: float = 1.0  # tau, in the unit of `teacher`
    # how values v of a question's candidates become the teacher's logits: values: v / tau, tau in the
    # values' unit (nats of a likelihood, points of a metric). z_scores: (v - mean) / deviation / tau, so that
    # every question speaks equally loud. bounded_z_scores: (v - mean) / max(deviation, tau), so that a
    # question whose values differ by less than tau does not shout
    teacher: Literal["values", "z_scores", "bounded_z_scores"] = "values"

    def check(self) -> None:
        self.at_least("student_temperature", 1e-6)
        self.at_least("teacher_temperature", 1e-6)

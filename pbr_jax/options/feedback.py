"""The options of the language model's feedback on candidates, and of training with it."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from pbr_jax.options.base import Options, added


@dataclass(frozen=True, kw_only=True)
class Feedback(Options):
    """How the language model values each candidate document alone. These values train the retriever and
    the reranker."""

    section: ClassVar[str] = "feedback"

    # metric of the answer given with a candidate. auto: the task's first metric (mae: 1 - mae / the largest
    # possible error). likelihood: no answer is generated; the value is log p(target | prompt with the
    # candidate) per token of the target, in nats
    metric: str = "auto"
    # value of a rating's error. scaled: 1 - error / the largest possible error, as in ROPG; negated: - error,
    # as in CFRAG's code
    errors: Literal["scaled", "negated"] = "scaled"
    limit: int | None = None  # number of training questions used, drawn by the seed. None: all
    candidates: int | None = None  # number of documents from each user. None: retrieve.k
    num_beams: int = 1  # number of beams for decoding the answers
    # maximum length of the answers, in tokens. None: generate.max_new_tokens
    max_new_tokens: int | None = None
    # control: whether each question's values are permuted among its candidates, by the seed. Training then
    # cannot learn which documents help
    shuffle: bool = field(default=False, metadata=added(False))

    def check(self) -> None:
        self.at_least("max_new_tokens", 1)
        self.at_least("limit", 1)
        self.at_least("candidates", 2)
        self.at_least("num_beams", 1)


@dataclass(frozen=True, kw_only=True)
class Distillation(Options):
    """How training fits the scores of the candidates to the feedback."""

    # reverse_kl: KL(scores || feedback), CFRAG Eq. 8 and 12; forward_kl: KL(feedback || scores), as in
    # CFRAG's released code and ROPG-KD; reinforce: one sampled candidate against the best-scored one, ROPG-RL
    loss: Literal["reverse_kl", "forward_kl", "reinforce"] = "reverse_kl"
    student_temperature: float = 1.0  # temperature by which the scores are divided
    teacher_temperature: float = 1.0  # temperature tau of the feedback, in the unit that `teacher` gives
    # how the values v of a question's candidates become logits. values: v / tau, with tau in the unit of the
    # values (nats for likelihood, points for a metric). z_scores: (v - mean) / deviation / tau, which gives
    # all questions the same weight. bounded_z_scores: (v - mean) / max(deviation, tau), which limits the
    # weight of questions whose values differ by less than tau
    teacher: Literal["values", "z_scores", "bounded_z_scores"] = "values"

    def check(self) -> None:
        self.at_least("student_temperature", 1e-6)
        self.at_least("teacher_temperature", 1e-6)

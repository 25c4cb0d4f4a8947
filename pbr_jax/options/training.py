"""Options of training: its length, batches and optimizer, what is learned from, and the tuned generator."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from pbr_jax.base.types import UserError
from pbr_jax.options.base import FILE, IDLE, Options, TrainingSplit, added


@dataclass(frozen=True, kw_only=True)
class Optimizer(Options):
    """How gradients update parameters."""

    name: Literal["adam", "adamw", "sgd"] = "adamw"  # the optimizer
    learning_rate: float = 1e-3  # peak learning rate
    # learning rate of the heads, which start from random weights. None: learning_rate
    head_learning_rate: float | None = None
    # learning rate after the warm-up. linear and cosine fall to 0
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup: float = 0.0  # share of all steps in which the learning rate rises from 0, from 0 to 1
    weight_decay: float = 0.0  # adam, sgd: added to the gradient (L2); adamw: decoupled
    clip: float | None = 1.0  # maximum global norm of the gradients. None: no clipping
    b1: float = 0.9  # adam, adamw: decay rate of the mean of the gradients
    b2: float = 0.999  # adam, adamw: decay rate of the mean of the squared gradients

    def check(self) -> None:
        self.at_least("learning_rate", 0)
        self.at_least("head_learning_rate", 0)
        self.between("warmup", 0, 1)
        self.at_least("weight_decay", 0)
        self.at_least("clip", 1e-12)


@dataclass(frozen=True, kw_only=True)
class Training(Options):
    """How one part is trained: its length, its batches, and how its best step is chosen."""

    epochs: int = 1  # number of passes over the training examples. 0: the untrained parameters, a control
    batch_size: int = 64  # number of examples in one step, over all devices and hosts
    # number of parts in which the gradient of a batch is computed. None: up to 4 on one CPU, otherwise 1
    accumulate: int | None = 1
    # type of the computation. Trained parameters and the optimizer stay float32; the frozen ones of lora have
    # this type. In bfloat16, products sum in float32
    dtype: Literal["float32", "bfloat16"] = "float32"
    # share held out to choose the best step, from 0 to 0.9. 0: no choice; the last step is taken. User
    # encoder: share of the users. Generator: share of the users, from 8 users to half of them. PURPLE: share
    # of the users, with at least 8 questions. Retriever or reranker: share of the informative questions, at
    # least 8
    selection: float = 0.1
    # what the chosen step maximizes. reward: the objective of the training; for a single question this is a
    # noisy value. rank_correlation: Spearman's correlation of scores and values over all candidates of a
    # question. It needs values of candidates (retriever, reranker, PURPLE, which asks for each alone)
    select_by: Literal["reward", "rank_correlation"] = field(default="reward", metadata=added("reward"))
    evaluate_every: int | None = None  # number of steps between evaluations. None: one epoch
    # number of evaluations without improvement before training stops. None: it never stops early
    patience: int | None = 3
    # number of steps between checkpoints. None: one with every evaluation
    checkpoint_every: int | None = field(default=None, metadata=IDLE)
    devices: int | None = None  # number of devices over which a batch is divided. None: all
    optimizer: Optimizer = field(default_factory=Optimizer)  # how gradients update parameters
    # file of parameters to start from, such as params.safetensors of `pbr-jax export --format state`. With
    # epochs 0 they are used as they are. Retriever, reranker, PURPLE and user encoder
    start: str = field(default="", metadata={**added(""), **FILE})

    def check(self) -> None:
        for name in ("batch_size", "accumulate", "evaluate_every", "patience", "checkpoint_every"):
            self.at_least(name, 1)
        self.at_least("epochs", 0)
        self.at_least("devices", 1)
        self.between("selection", 0, 0.9)

    def check_no_start(self, who: str, instead: str) -> None:
        """Raises UserError if the training should start from a file, which `who` cannot."""
        if self.start:
            raise UserError(f"{who}.start is {self.start}, which this training does not read; {instead}")

    def check_no_values(self, who: str) -> None:
        """Raises UserError if values of candidates should choose the step, but `who` has none."""
        if self.select_by != "reward":
            raise UserError(
                f"{who}.select_by is {self.select_by}, and this training has no values of candidates; set "
                "it to reward"
            )


def tuning(**changes: Any) -> Training:
    """Training options for tuning a pretrained encoder: few epochs, and a higher learning rate for new heads.

    Both rates are among those that CFRAG's paper searches (section 5.1.4). At the tower's rate, a head with
    random weights would hardly change.
    """
    optimizer = Optimizer(name="adam", learning_rate=1e-5, head_learning_rate=1e-3)
    defaults = {"epochs": 2, "batch_size": 8, "accumulate": None, "selection": 0.2, "optimizer": optimizer}
    return Training(**{**defaults, **changes})


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
    # probability that a D+ document loses its label to another document of the ranking, drawn at random. It
    # simulates models that take the wrong document for the answer
    wrong: float = field(default=0.0, metadata=added(0.0))

    def check(self) -> None:
        self.at_least("depth", 1)
        self.at_least("judged", 1)
        self.at_least("max_tokens", 64)
        self.between("positive", 0, 1)
        self.between("negative", 0, 1)
        self.at_least("margin", 0)
        self.at_least("among", 1)
        self.between("keep", 0, 1)
        self.between("wrong", 0, 1)

    @property
    def supervised(self) -> bool:
        """Whether labels read targets or relevant documents."""
        return self.kind in ("answer", "gold", "shuffled")

    @property
    def asks(self) -> bool:
        """Whether a language model provides the labels."""
        return self.kind in ("yes_no", "query_likelihood")


@dataclass(frozen=True, kw_only=True)
class LUFLoss(Options):
    """A weighted sum of three losses over labelled documents (LUF section 2.2). The paper does not give
    these values."""

    section: ClassVar[str] = "retrieve.loss"

    # lambda 1: weight of Eq. 2, which raises the probability of the documents that hold the answer
    strict: float = 1.0
    flaccid: float = 1.0  # lambda 2: weight of Eq. 3, the divergence from the grades of the labels
    hard: float = 1.0  # lambda 3: weight of Eq. 4, the margin over hard negatives
    # tau of Eq. 2 and 3, by which cosines are divided. At 1 their softmax is nearly uniform
    temperature: float = 0.05
    margin: float = 0.1  # gamma of Eq. 4, a difference of cosines
    power: float = 1.0  # exponent of 1 / rank in the weights of Eq. 4, which sum to 1
    # number of best-ranked documents with the answer. Their mean score is s(q, d+) of Eq. 4
    positives: int = 4
    hard_negatives: int = 10  # number of best-ranked irrelevant documents in Eq. 4
    # documents in the three losses. batch: those relevant to some question of the batch, so that no document
    # is only a negative; labelled: all labelled ones, as printed in the paper. In a closed collection,
    # labelled lowers the scores of documents that later questions need
    negatives: Literal["batch", "labelled"] = "batch"
    # whether a question's own related documents are left out of Eq. 2. Otherwise they are negatives there
    mask: bool = False

    def check(self) -> None:
        for name in ("strict", "flaccid", "hard", "power"):
            self.at_least(name, 0)
        self.at_least("temperature", 1e-3)
        self.at_least("margin", 0)
        self.at_least("positives", 1)
        self.at_least("hard_negatives", 1)
        if not (self.strict or self.flaccid or self.hard):
            raise UserError(
                f"{self.named('strict')}, flaccid and hard are all 0, so there is nothing to learn; set one"
            )


def adapting(**changes: Any) -> Training:
    """Training options of LUF's retriever: batches of 32 questions, four epochs, and the last step.

    `learning_rate` is for a tower, and `head_learning_rate` for a map.
    """
    defaults = {
        "epochs": 4, "batch_size": 32, "selection": 0.0, "patience": None,
        "optimizer": Optimizer(learning_rate=5e-5, head_learning_rate=3e-4),
    }  # fmt: skip
    return Training(**{**defaults, **changes})


Documents = Literal["none", "own", "others", "hybrid", "neighbours", "own_neighbours", "pipeline"]
Map = Literal["query", "key", "value", "output", "gate", "up", "down"]


@dataclass(frozen=True, kw_only=True)
class TunedGenerator(Options):
    """The model that answers, scores targets and gives feedback. It is frozen, or tuned on the training
    split.

    A small frozen model gains from any documents that show it the form of an answer. Tuning removes this gain
    from all rows alike. The remaining gain from documents is the value of the user's own words.
    """

    section: ClassVar[str] = "generator"

    # frozen: no weights are trained; lora: low-rank matrices beside the frozen weights; full: all weights
    method: Literal["frozen", "lora", "full"] = "frozen"
    rank: int = 8  # lora: rank of the matrices
    alpha: float = 32.0  # lora: the low-rank update is multiplied by alpha / rank
    # lora: dropout probability of the inputs to the low-rank matrices, from 0 to 0.9; decoder-only models
    dropout: float = 0.05
    targets: tuple[Map, ...] = ("query", "value")  # lora: linear maps that get low-rank matrices
    # which documents training prompts show. Each question is learned once with each item of this list; with
    # "none own own", two thirds of the prompts have own documents. own, others: the nearest documents of the
    # user, or of random training users; hybrid: half of each. neighbours: documents of the most similar user
    # in the cohort (`neighbours.method cohorts` with its defaults); own_neighbours: half own, half
    # neighbours. pipeline: what the config's own pipeline retrieves with the frozen model. With pipeline,
    # others includes the evaluated users
    documents: tuple[Documents, ...] = ("none", "own")
    # number of items of `documents` used for each question, drawn by the seed. None: all
    per_question: int | None = None
    k: int = 3  # number of documents in such a prompt
    # number of training questions, those held out included, drawn by the seed. None: all
    limit: int | None = 300
    # whether layers are recomputed for their gradients. This takes less memory and a third more computation
    remat: bool = False
    # how the generator is trained
    training: Training = field(
        default_factory=lambda: Training(
            epochs=1, batch_size=8, accumulate=None, optimizer=Optimizer(name="adamw", learning_rate=5e-4)
        )
    )

    def check(self) -> None:
        self.at_least("rank", 1)
        self.at_least("k", 1)
        self.at_least("limit", 2)
        self.at_least("per_question", 1)
        self.between("dropout", 0, 0.9)
        self.training.check_no_values("generator.training")
        self.training.check_no_start("generator.training", "set llm.adapter to an exported folder")
        if not self.alpha > 0:
            raise UserError(f"generator.alpha is {self.alpha}, want a positive number")
        if not self.targets:
            raise UserError(
                "generator.targets is empty, want one or more of query, key, value, output, gate, up, down"
            )
        if not self.documents:
            raise UserError(
                "generator.documents is empty, want one or more of none, own, others, hybrid, neighbours, "
                "own_neighbours, pipeline"
            )
        if self.per_question is not None and self.per_question > len(self.documents):
            raise UserError(
                f"generator.per_question is {self.per_question}, and generator.documents names "
                f"{len(self.documents)}; want no more than these"
            )

    @property
    def is_tuned(self) -> bool:
        """Whether the model is trained."""
        return self.method != "frozen"

    def learns(self) -> TrainingSplit:
        """How it uses the training split: without the evaluated split, so that one generator serves every
        evaluation, except if the config's pipeline retrieves the documents of training prompts."""
        if not self.is_tuned:
            return "unused"
        return "needed" if "pipeline" in self.documents else "apart"

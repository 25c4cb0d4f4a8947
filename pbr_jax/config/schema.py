"""The schema of every run: frozen dataclasses, one comment a field, nothing hidden in the code."""

import re
from dataclasses import dataclass, field
from typing import Any, Literal

from pbr_jax.types import UserError


def _at_least(name: str, value: int | float | None, low: int | float, advice: str = "") -> None:
    if value is not None and value < low:
        raise UserError(f"{name} is {value}, want at least {low}{'; ' if advice else ''}{advice}")


def _between(name: str, value: int | float, low: int | float, high: int | float) -> None:
    if not low <= value <= high:
        raise UserError(f"{name} is {value}, want a number from {low} to {high}")


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """Which data to run on."""

    name: str = "synthetic"  # lamp_1 … lamp_5, lamp_7, longlamp_*, personabench, …: pbr_jax/data/tasks.py
    root: str = ""  # folder (or file) with the official files under their official names
    split: str = "dev"  # LaMP: train|dev|test; PersonaBench: noise_0.0 …; LongMemEval: file stem
    training: str = "train"  # what trained systems learn from, and where neighbours come from too


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """The BERT-family text encoder of dense retrieval."""

    model: str = "all-MiniLM-L6-v2"  # the embedded default, or a local folder in Hugging Face format
    pooling: Literal["auto", "cls", "mean"] = "auto"  # auto: as the folder says, else mean
    normalize: Literal["auto", "yes", "no"] = "auto"  # unit length; auto: as the folder says, else no
    max_length: int | None = None  # tokens; None: as the folder says
    batch_tokens: int | None = None  # tokens in one forward pass; None: 512 on CPU, else 16,384
    query_prefix: str = ""  # instruction put before every query (BGE, E5)
    document_prefix: str = ""  # instruction put before every document

    def __post_init__(self) -> None:
        _at_least("encoder.max_length", self.max_length, 3, "two of them are special tokens")
        _at_least("encoder.batch_tokens", self.batch_tokens, 1)


@dataclass(frozen=True, kw_only=True)
class LLM:
    """The frozen language model that answers."""

    model: str = (
        "SmolLM2-135M-Instruct"  # the embedded default, a local folder or GGUF file; http: its name there
    )
    backend: Literal["jax", "http"] = "jax"  # in this process, or a server that speaks OpenAI's protocol
    dtype: Literal["float32", "bfloat16"] = "float32"  # of weights and activations
    batch_size: int = 32  # prompts decoded together
    context: int | None = None  # longest prompt plus answer, in tokens; None: as the model says
    tensor_parallel: int = 1  # devices that share the weights of every layer
    offline: bool = False  # answers come from the cache only; one that is not there is an error
    url: str = ""  # http: where the server's API starts, such as http://127.0.0.1:8000/v1
    tokenizer: str = ""  # http: the served model's tokenizer, a folder or GGUF file; "": counts are estimates
    log_probs: Literal["none", "vllm", "echo", "sglang"] = "none"  # http: how the server gives a prompt's
    key_variable: str = "OPENAI_API_KEY"  # http: the environment variable that holds the key, if it is set
    concurrency: int = 8  # http: requests under way at once
    timeout: float = 120.0  # http: seconds for one request
    retries: int = 6  # http: how often a request that failed for a passing reason is sent again

    def __post_init__(self) -> None:
        _at_least("llm.batch_size", self.batch_size, 1)
        _at_least("llm.context", self.context, 2)
        _at_least("llm.tensor_parallel", self.tensor_parallel, 1)
        _at_least("llm.concurrency", self.concurrency, 1)
        _at_least("llm.timeout", self.timeout, 0.001)
        _at_least("llm.retries", self.retries, 0)
        if self.backend == "http" and not self.url.startswith(("http://", "https://")):
            raise UserError(
                f"llm.url is {self.url!r}, want the address of the server's API, such as http://127.0.0.1:8000/v1"
            )


@dataclass(frozen=True, kw_only=True)
class Expand:
    """Slot 1: query text to query vector(s)."""

    method: Literal[
        "none", "hyde", "query2term", "query2doc", "rewrite", "cot", "mill", "thinkqe", "rafe", "pbr"
    ] = "none"
    max_new_tokens: int = 512  # of an answer of the language model
    history_tokens: int = 2048  # of all documents together that one prompt shows
    k1: int = 5  # documents of the history that are shown or compared (PBR, MILL, ThinkQE, RaFe)
    m: int = 5  # texts that are asked for together: utterances (PBR), sub-queries (MILL), rewrites (RaFe)
    rounds: int = 3  # of looking and writing (ThinkQE)
    released: str = ""  # PBR: a file of utterances and reasoning by question id; "": the LLM writes them
    utterances: bool = True  # PBR: whether these are added to the query
    reasoning: bool = True
    weights: Literal["cosine", "equal"] = "cosine"  # PBR: of utterances and reasoning, Eq. 11 and 12, or 1
    # PBR; query: restarts near the query; cluster: the centre nearest to the query
    anchor: Literal["page_rank", "query", "mean", "cluster", "none"] = "page_rank"
    anchor_weight: float = 1.0  # PBR: of the anchor in the fusion
    clusters: int = 4  # PBR: of a user's documents, where the anchor is the centre of one
    theta: float = 0.75  # PBR: least cosine of an edge between documents
    k2: int = 10  # PBR: edges from a document, the one to itself included
    damping: float = 0.85  # PBR: share of steps along edges, Eq. 9; 1: no restarts, as released
    iterations: int = 100  # PBR: of PageRank, at most
    temperature: float = 0.1  # PBR: of restarts near the query

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "history_tokens", "k1", "m", "rounds", "k2", "iterations", "clusters"):
            _at_least(f"expand.{name}", getattr(self, name), 1)
        _between("expand.theta", self.theta, 0, 1)
        _between("expand.damping", self.damping, 0, 1)
        _at_least("expand.anchor_weight", self.anchor_weight, 0)
        _at_least("expand.temperature", self.temperature, 1e-4)
        if self.released and self.method != "pbr":
            raise UserError(
                f"expand.released is a file for PBR, but expand.method is {self.method}; set one of them back"
            )


@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """Slot 2: whose histories are searched."""

    # contrastive: a trained user encoder (CFRAG); mean: means of document embeddings; random: anybody
    method: Literal["self", "contrastive", "mean", "random"] = "self"
    m: int = 1  # users, the asking user included
    skip: int = 0  # nearest users passed over first (CFRAG Figure 5: m of them)
    snapshots: int = 8  # moments at which dated histories are read anew; a question uses the last before it
    index: Literal["exact", "scann"] = "exact"  # scann: approximate, for tens of thousands of users

    def __post_init__(self) -> None:
        _at_least("neighbours.m", self.m, 1)
        _at_least("neighbours.skip", self.skip, 0)
        _at_least("neighbours.snapshots", self.snapshots, 1)


@dataclass(frozen=True, kw_only=True)
class Retrieve:
    """Slot 3: candidates from those histories."""

    # tuned: dense, taught by the language model's feedback (`retriever`)
    method: Literal["none", "random", "recency", "bm25", "dense", "tuned"] = "dense"
    k: int = 4  # documents from each user
    k1: float = 1.5  # BM25 term saturation (rank_bm25's default, as in LaMP)
    b: float = 0.75  # BM25 length normalisation
    epsilon: float = 0.25  # BM25 floor of negative idf, as a share of the mean idf
    tokenizer: Literal["whitespace", "words"] = "whitespace"  # BM25 terms; words: lower-case, no punctuation

    def __post_init__(self) -> None:
        _at_least("retrieve.k", self.k, 1, "configs/zero_shot.py runs without documents")
        _at_least("retrieve.k1", self.k1, 0)
        _between("retrieve.b", self.b, 0, 1)
        _at_least("retrieve.epsilon", self.epsilon, 0)


@dataclass(frozen=True, kw_only=True)
class Select:
    """Slot 4: the ordered documents that enter the prompt."""

    # bm25, cross_encoder, tuned: candidates are scored anew, the last by what feedback taught (`reranker`)
    method: Literal["top_k", "bm25", "cross_encoder", "tuned"] = "top_k"
    k: int | None = None  # None: as many as were retrieved
    own: int | None = None  # of them from the own history, the rest from others' (CFRAG Figure 7)

    def __post_init__(self) -> None:
        _at_least("select.k", self.k, 1)
        _at_least("select.own", self.own, 0)
        if self.own is not None and (self.k is None or self.own > self.k):
            raise UserError(f"select.own is {self.own} and select.k {self.k}, want own at most k")


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """Slot 5: the token budget of the prompt."""

    max_tokens: int = 512  # of input and profile together (ClusterRAG Eq. 3: L_max)
    gamma: float = 0.6  # share of max_tokens kept free of profile for a long input (Eq. 3)

    def __post_init__(self) -> None:
        _at_least("prompt.max_tokens", self.max_tokens, 16)
        _between("prompt.gamma", self.gamma, 0, 1)


@dataclass(frozen=True, kw_only=True)
class Generate:
    """Slot 6: how the answer is decoded."""

    method: Literal["auto", "none", "ipa"] = "auto"  # auto: ipa, but none on retrieval benchmarks
    max_new_tokens: int | None = None  # None: as the task says
    temperature: float = 0.0  # 0: greedy
    top_p: float = 1.0  # nucleus of the sampled distribution
    num_beams: int = 1  # more than 1: beam search, not sampled

    def __post_init__(self) -> None:
        _at_least("generate.max_new_tokens", self.max_new_tokens, 1)
        _at_least("generate.temperature", self.temperature, 0)
        _between("generate.top_p", self.top_p, 0, 1)
        _at_least("generate.num_beams", self.num_beams, 1)
        if self.num_beams > 1 and self.temperature > 0:
            raise UserError(
                f"generate.num_beams is {self.num_beams} and generate.temperature {self.temperature}; "
                "beam search does not sample: set one of them back"
            )


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """How gradients move parameters."""

    name: Literal["adam", "adamw", "sgd"] = "adamw"
    learning_rate: float = 1e-3  # at its peak
    schedule: Literal["constant", "linear", "cosine"] = "constant"  # after the warm-up; the others fall to 0
    warmup: float = 0.0  # share of all steps in which the learning rate rises from 0
    weight_decay: float = 0.0  # adam, sgd: added to the gradient (L2); adamw: decoupled
    clip: float | None = 1.0  # largest global norm of the gradients; None: not clipped
    b1: float = 0.9
    b2: float = 0.999
    frozen: str = ""  # regular expression: parameters whose path begins with a match do not move

    def __post_init__(self) -> None:
        _at_least("learning_rate", self.learning_rate, 0)
        _between("warmup", self.warmup, 0, 1)
        _at_least("weight_decay", self.weight_decay, 0)
        _at_least("clip", self.clip, 1e-12)
        try:
            re.compile(self.frozen)
        except re.error as error:
            raise UserError(f"frozen is {self.frozen!r}, no regular expression: {error}") from error


@dataclass(frozen=True, kw_only=True)
class Training:
    """One trained part: how long, in what batches, and when to look whether it helps."""

    epochs: int = 1
    batch_size: int = 64  # examples of one step, over all devices and hosts
    accumulate: int | None = 1  # parts that a batch is computed in; None: up to 4 on one CPU, else 1
    dtype: Literal["float32", "bfloat16"] = "float32"  # of the computation; parameters stay float32
    selection: float = 0.1  # share of the training examples held out to choose the best step
    evaluate_every: int | None = None  # steps; None: once an epoch
    patience: int = 3  # evaluations without a better one before training stops
    checkpoint_every: int | None = None  # steps; None: with every evaluation
    devices: int | None = None  # that divide a batch; None: all
    track: Literal["none", "tensorboard", "wandb"] = "none"  # where losses go, beside metrics.jsonl
    optimizer: Optimizer = field(default_factory=Optimizer)

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "accumulate", "evaluate_every", "patience", "checkpoint_every"):
            _at_least(name, getattr(self, name), 1)
        _at_least("devices", self.devices, 1)
        _between("selection", self.selection, 0, 0.9)


@dataclass(frozen=True, kw_only=True)
class UserEncoder:
    """The encoder of histories behind `neighbours.method contrastive` (CFRAG section 4.1)."""

    num_layers: int = 1
    num_heads: int = 2
    max_documents: int = 100  # latest documents of a history that are read
    dropout: float = 0.1
    crop: float | None = 0.7  # share of a history that a cropped view keeps; None: no such view
    mask: float | None = 0.3  # share that a masked view hides
    reorder: float | None = 0.3  # share that a reordered view shuffles
    loss: Literal["cross_view", "nt_xent"] = "cross_view"  # as the paper prints it, as released
    temperature: float = 0.1
    train_embeddings: bool = False  # whether document embeddings move too, as released
    training: Training = field(
        default_factory=lambda: Training(
            epochs=5, optimizer=Optimizer(name="adam", learning_rate=1e-3, weight_decay=1e-5)
        )
    )

    def __post_init__(self) -> None:
        _at_least("user_encoder.temperature", self.temperature, 1e-6)


@dataclass(frozen=True, kw_only=True)
class Feedback:
    """What the language model makes of each candidate alone: the teacher of retriever and reranker."""

    metric: str = "auto"  # of the answer; auto: the task's first (mae: as 1 - mae / the worst possible)
    limit: int | None = None  # training questions asked, drawn by the seed; None: all
    candidates: int | None = None  # documents from each user; None: as many as retrieve.k
    num_beams: int = 1  # of the answers
    max_new_tokens: int | None = None  # of the answers; None: as generate.max_new_tokens

    def __post_init__(self) -> None:
        _at_least("feedback.max_new_tokens", self.max_new_tokens, 1)
        _at_least("feedback.limit", self.limit, 1)
        _at_least("feedback.candidates", self.candidates, 2)
        _at_least("feedback.num_beams", self.num_beams, 1)


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """How scores of candidates are drawn to what feedback says of them."""

    # reverse_kl: KL(scores || feedback), CFRAG Eq. 8 and 12; forward_kl: KL(feedback || scores), CFRAG as
    # released, and ROPG-KD; reinforce: one sampled candidate against the best-scored one, ROPG-RL
    loss: Literal["reverse_kl", "forward_kl", "reinforce"] = "reverse_kl"
    student_temperature: float = 1.0
    teacher_temperature: float = 1.0

    def __post_init__(self) -> None:
        _at_least("student_temperature", self.student_temperature, 1e-6)
        _at_least("teacher_temperature", self.teacher_temperature, 1e-6)


def _tuning(**changes: Any) -> Training:
    optimizer = Optimizer(name="adam", learning_rate=1e-5)
    return Training(**{"epochs": 2, "batch_size": 8, "accumulate": None, "optimizer": optimizer, **changes})


@dataclass(frozen=True, kw_only=True)
class Retriever:
    """The dual encoder of `retrieve.method tuned`; it starts from `encoder.model` (CFRAG section 4.2)."""

    alpha: float = 0.1  # weight of the user's preference beside the query (Eq. 5); 0: no users
    user_layers: int = 2  # of the map of user embeddings (MLP_1); 1 as released
    lesson: Lesson = field(default_factory=Lesson)
    training: Training = field(default_factory=_tuning)

    def __post_init__(self) -> None:
        _between("retriever.alpha", self.alpha, 0, 1)
        _at_least("retriever.user_layers", self.user_layers, 1)


@dataclass(frozen=True, kw_only=True)
class Reranker:
    """The cross-encoder of `select.method tuned` and `cross_encoder` (CFRAG section 4.3)."""

    model: str = "all-MiniLM-L6-v2"  # what it starts from: a reranker's folder, or a plain encoder
    max_length: int = 256  # tokens of query and document together
    users: bool = True  # whether scores know the user (e_u in Eq. 10)
    user_layers: int = 2  # of the map of user embeddings (MLP_2); 1 as released
    lesson: Lesson = field(default_factory=Lesson)
    training: Training = field(default_factory=_tuning)

    def __post_init__(self) -> None:
        _at_least("reranker.max_length", self.max_length, 8)
        _at_least("reranker.user_layers", self.user_layers, 1)


@dataclass(frozen=True, kw_only=True)
class Eval:
    """Intervals of the reported numbers."""

    resamples: int = 2000  # of the paired bootstrap over users
    confidence: float = 0.95

    def __post_init__(self) -> None:
        _at_least("eval.resamples", self.resamples, 1)
        _between("eval.confidence", self.confidence, 0.5, 0.9999)


@dataclass(frozen=True, kw_only=True)
class Config:
    """One run."""

    system: str = "dense"  # the name this run carries in tables
    seed: int = 0  # of everything random
    limit: int | None = None  # first N examples only
    limit_training: int | None = None  # first N examples of the training split: to learn from, and neighbours
    collaboration: Literal["none", "signals", "text"] = "none"  # text: others' documents may enter prompts
    benchmark: Benchmark = field(default_factory=Benchmark)
    encoder: Encoder = field(default_factory=Encoder)
    llm: LLM = field(default_factory=LLM)
    expand: Expand = field(default_factory=Expand)
    neighbours: Neighbours = field(default_factory=Neighbours)
    retrieve: Retrieve = field(default_factory=Retrieve)
    select: Select = field(default_factory=Select)
    prompt: Prompt = field(default_factory=Prompt)
    generate: Generate = field(default_factory=Generate)
    user_encoder: UserEncoder = field(default_factory=UserEncoder)
    feedback: Feedback = field(default_factory=Feedback)
    retriever: Retriever = field(default_factory=Retriever)
    reranker: Reranker = field(default_factory=Reranker)
    eval: Eval = field(default_factory=Eval)

    def __post_init__(self) -> None:
        _at_least("seed", self.seed, 0)
        _at_least("limit", self.limit, 1)
        _at_least("limit_training", self.limit_training, 1)
        if self.neighbours.method != "self" and self.neighbours.m > 1 and self.collaboration != "text":
            raise UserError(
                f"neighbours.method is {self.neighbours.method} with m = {self.neighbours.m}: other users' "
                "documents would enter prompts; say so with collaboration text, or set neighbours.m to 1"
            )

"""Options that several methods share: data, encoders, language models, prompts, feedback."""

import dataclasses
import datetime
import json
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from pbr_jax.options.base import IDLE, Options, added
from pbr_jax.options.training import Optimizer, Training
from pbr_jax.types import UserError


@dataclass(frozen=True, kw_only=True)
class Benchmark(Options):
    """Which data to run on."""

    section: ClassVar[str] = "benchmark"

    name: str = "synthetic"  # lamp_1 … lamp_7, longlamp_*, personabench, …: docs/reference/data_format.md
    root: str = field(default="", metadata=IDLE)  # folder (or file) with the official files
    split: str = "dev"  # LaMP: train|dev|test; PersonaBench: noise_0.0 …; LongMemEval: file stem
    training: str = "train"  # what trained systems learn from, and where neighbours come from too
    # the benchmark and the root that this split is of, where they are not those above: what was learned on
    # one data set is tested on another; "": the same
    training_name: str = field(default="", metadata=added(""))
    training_root: str = field(default="", metadata=IDLE)
    # longmemeval: sessions and relevance as its own code has them, or as PBR's has; LaMP: texts of queries
    # and documents as its own code has them, or as CFRAG's has; locomo, realtalk, lucid: a document is a
    # session, or a turn (docs/reference/data_format.md)
    form: Literal["official", "pbr", "cfrag", "turns"] = "official"

    # prefeval: turns between the preference and the question, as many as in the paper's main table
    inter_turns: int = field(default=10, metadata=added(10))

    # shared passages that every question may be answered from (docs/reference/data_format.md): a .jsonl,
    # .tsv or .json, or the split (xquad: language) of the root whose passages they are
    passages: str = field(default="", metadata=IDLE)
    # file of further shared passages, relevant to nothing
    distractors: str = field(default="", metadata=IDLE)
    # TOML file of what is asked, and how prompts word it, where it is not as the benchmark has it
    task: str = field(default="", metadata=IDLE)

    def check(self) -> None:
        self.at_least("inter_turns", 0)
        if self.inter_turns != Benchmark.inter_turns and self.name != "prefeval":
            raise UserError(
                f"{self.named('inter_turns')} is {self.inter_turns}, and {self.name} has no turns between; "
                "leave it out"
            )

    @property
    def shares(self) -> bool:
        """Whether there are shared passages."""
        return bool(self.passages or self.distractors)


@dataclass(frozen=True, kw_only=True)
class Encoder(Options):
    """The BERT-family text encoder of dense retrieval."""

    section: ClassVar[str] = "encoder"

    # the embedded default, or a local folder in Hugging Face format
    model: str = field(default="all-MiniLM-L6-v2", metadata=IDLE)
    pooling: Literal["auto", "cls", "mean"] = "auto"  # auto: as the folder says, else mean
    normalize: Literal["auto", "yes", "no"] = "auto"  # unit length; auto: as the folder says, else no
    max_length: int | None = None  # tokens; None: as the folder says
    batch_tokens: int | None = None  # tokens in one forward pass; None: 512 on CPU, else 16,384
    # of weights and activations, of this encoder and of select's cross-encoder, once they are trained;
    # bfloat16 is for accelerators. Norms, softmax, pooling and vectors are float32
    dtype: Literal["float32", "bfloat16"] = field(default="float32", metadata=added("float32"))
    query_prefix: str = "auto"  # put before every query (BGE, E5); auto: the folder's prompt, else nothing
    document_prefix: str = "auto"  # put before every document

    def check(self) -> None:
        self.at_least("max_length", 3, "two of them are special tokens")
        self.at_least("batch_tokens", 1)

    @property
    def narrow(self) -> list[str]:
        """What `dtype` adds to what vectors and scores depend on: nothing at float32."""
        return [] if self.dtype == "float32" else [self.dtype]


_ASKED = frozenset(
    {"model", "messages", "prompt", "input_ids", "max_tokens", "max_completion_tokens", "temperature",
     "top_p", "seed", "n", "use_beam_search", "stream", "echo", "logprobs", "prompt_logprobs",
     "sampling_params", "return_logprob", "logprob_start_len"}
)  # fmt: skip
"""Fields of a request that are not `llm.extra_body`'s to set."""


@dataclass(frozen=True, kw_only=True)
class LLM(Options):
    """The frozen language model that answers."""

    section: ClassVar[str] = "llm"

    # the embedded default, a local folder or GGUF file; http: its name there
    model: str = field(default="SmolLM2-135M-Instruct", metadata=IDLE)
    backend: Literal["jax", "http"] = "jax"  # in this process, or a server that speaks OpenAI's protocol
    dtype: Literal["float32", "bfloat16"] = "float32"  # of weights and activations
    batch_size: int = 32  # prompts decoded together
    # longest prompt plus answer, in tokens, longer ones are refused; None: as the model says
    context: int | None = field(default=None, metadata=IDLE)
    # the day that chat templates take for today (Llama 3 prints it), YYYY-MM-DD
    date: str = "2024-07-26"
    # a LoRA adapter for the model: a folder as PEFT saves it; http: its name there; "": none
    adapter: str = field(default="", metadata=IDLE)
    # prompts over the context: told when all others are answered, or cut in the middle
    overflow: Literal["refuse", "cut"] = "refuse"
    tensor_parallel: int = 1  # devices that share the weights of every layer
    # answers come from the cache only; one that is not there is an error
    offline: bool = field(default=False, metadata=IDLE)
    url: str = ""  # http: where the server's API starts, such as http://127.0.0.1:8000/v1
    tokenizer: str = ""  # http: the served model's tokenizer, a folder or GGUF file; "": counts are estimates
    log_probs: Literal["none", "vllm", "echo", "sglang"] = "none"  # http: how the server gives a prompt's
    # http: whose fields are sent beside OpenAI's own, to turn thinking and the server's defaults off. auto:
    # none to OpenAI by its address, else vllm's, which SGLang has too; what is refused is left out
    server: Literal["auto", "vllm", "llama_cpp", "openai"] = "auto"
    extra_body: str = ""  # http: a JSON object whose fields are in every request; null takes a field out
    # http: of a million tokens, in any currency; results.json then has what the run cost
    price_prompt: float | None = field(default=None, metadata=IDLE)
    price_completion: float | None = field(default=None, metadata=IDLE)
    # http: the environment variable that holds the key, if it is set
    key_variable: str = field(default="OPENAI_API_KEY", metadata=IDLE)
    concurrency: int = field(default=8, metadata=IDLE)  # http: requests under way at once
    timeout: float = field(default=120.0, metadata=IDLE)  # http: seconds for one try, to its last byte
    # http: how often a request that failed for a passing reason is sent again
    retries: int = field(default=6, metadata=IDLE)

    def check(self) -> None:
        self.at_least("batch_size", 1)
        self.at_least("context", 2)
        self.at_least("tensor_parallel", 1)
        self.at_least("concurrency", 1)
        self.at_least("timeout", 0.001)
        self.at_least("retries", 0)
        self.at_least("price_prompt", 0)
        try:
            datetime.date.fromisoformat(self.date)
        except ValueError:
            raise UserError(f"{self.named('date')} is {self.date!r}, want a day as YYYY-MM-DD") from None
        self.at_least("price_completion", 0)
        taken = sorted(set(self.extra_fields) & _ASKED)
        if taken:
            raise UserError(
                f"{self.named('extra_body')} has {', '.join(taken)}, which other options say; take it out"
            )
        if self.backend == "http" and not self.url.startswith(("http://", "https://")):
            raise UserError(
                f"{self.named('url')} is {self.url!r}, want the address of the server's API, such as "
                "http://127.0.0.1:8000/v1"
            )
        if self.backend == "http" and self.overflow == "cut":
            raise UserError(
                f"{self.named('overflow')} is cut, and a server is sent texts, not tokens; lower "
                "prompt.max_tokens"
            )

    @property
    def extra_fields(self) -> dict[str, Any]:
        """The object of `extra_body`. Raises UserError for anything else."""
        try:
            fields = json.loads(self.extra_body or "{}")
        except (ValueError, RecursionError):
            fields = None
        if not isinstance(fields, dict):
            raise UserError(
                f"{self.named('extra_body')} is {self.extra_body!r:.80}, want a JSON object, such as "
                '{"reasoning_effort": "low"}'
            )
        return fields

    @property
    def can_score(self) -> bool:
        """Whether the backend says how likely a given answer is."""
        return self.backend == "jax" or (self.log_probs != "none" and bool(self.tokenizer))

    def check_scoring(self, who: str) -> None:
        """Raises UserError, naming who asks, where it does not."""
        if not self.can_score:
            raise UserError(
                f"{who} with a model on a server needs {self.named('log_probs')} (vllm, echo or sglang) and "
                f"{self.named('tokenizer')} (the served model's folder or GGUF file); set both"
            )

    def check_beams(self, num_beams: int) -> None:
        """Raises UserError for a beam search that a server does not offer."""
        if self.backend == "http" and num_beams > 1 and self.log_probs != "vllm":
            raise UserError(
                f"generate.num_beams is {num_beams}, but of servers only vLLM searches beams; "
                f"set it to 1, or {self.named('log_probs')} to vllm if the server is one"
            )


@dataclass(frozen=True, kw_only=True)
class OtherLLM(LLM):
    """A language model beside the one that answers."""

    @property
    def plain(self) -> LLM:
        """The same as any other model, so that one that has two parts is loaded once."""
        return LLM(**{item.name: getattr(self, item.name) for item in dataclasses.fields(self)})


@dataclass(frozen=True, kw_only=True)
class SelectLLM(OtherLLM):
    """The language model that chooses documents, where it is not the one that answers."""

    section: ClassVar[str] = "select.llm"


@dataclass(frozen=True, kw_only=True)
class JudgeLLM(OtherLLM):
    """The language model that grades answers, where it is not the one that gives them."""

    section: ClassVar[str] = "eval.judge_llm"


def _new(default: Any) -> Any:
    return field(default=default, metadata=added(default))


@dataclass(frozen=True, kw_only=True)
class Prompt(Options):
    """Slot 5: the wording of the prompt and its token budget."""

    section: ClassVar[str] = "prompt"

    # own: labelled entries, an open label at the end. lamp: LaMP's structure, a sentence an entry, no labels.
    form: Literal["own", "lamp"] = "own"
    max_tokens: int = 512  # of input and profile together (ClusterRAG Eq. 3: L_max)
    gamma: float = 0.6  # share of max_tokens kept free of profile for a long input (ClusterRAG Eq. 3)
    # of the documents that fit: as select ranked them, the other way round, or by lot (order_seed, question),
    # which training prompts do not follow: they are best first
    order: Literal["best_first", "best_last", "random"] = "best_first"
    order_seed: int = 0
    # a sentence behind the question, such as one that reminds the model of the user's preferences; "": none
    reminder: str = field(default="", metadata=added(""))
    # of a passage that was found (corpus.chunk): itself; with the passages before and after it, between which
    # it is marked; or its whole document, once where several of its passages were found
    show: Literal["passage", "around", "document"] = field(default="passage", metadata=added("passage"))

    # a text about the user, which the language model writes once from the history, before the documents:
    # summary (Richardson et al., 2023); features: what distinguishes the user from random others (AP-Bots,
    # 2025); difference: how the user differs from the most similar others (DPL, 2025). The last two show the
    # model others' documents, which its text can repeat: they need collaboration text
    profile: Literal["none", "summary", "features", "difference"] = _new("none")
    profile_documents: int = _new(16)  # of each user that it is written from, at most
    profile_sample: Literal["newest", "random"] = _new("newest")  # which, where there are more
    # tokens of all documents that it is written from; with others half of them are the user's
    profile_read: int = _new(1024)
    profile_tokens: int = _new(64)  # of the text: an eighth of the default max_tokens
    profile_others: int = _new(3)  # users that features and difference compare with
    # other: that of a random other user, the control of what it says of the user and not of the task
    profile_whose: Literal["own", "other"] = _new("own")
    profile_seed: int = _new(0)  # of what is drawn: users, and documents

    @property
    def shows_others(self) -> bool:
        """Whether what a model has written of other users' documents may stand in the prompt."""
        return self.profile not in ("none", "summary" if self.profile_whose == "own" else "")

    def check(self) -> None:
        self.at_least("max_tokens", 16)
        self.between("gamma", 0, 1)
        for name in ("profile_documents", "profile_others"):
            self.at_least(name, 1)
        self.at_least("profile_read", 64)
        self.at_least("profile_tokens", 8)


@dataclass(frozen=True, kw_only=True)
class UserEncoder(Options):
    """The trained encoder of histories: users as vectors (CFRAG section 4.1)."""

    section: ClassVar[str] = "user_encoder"

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

    def check(self) -> None:
        self.at_least("temperature", 1e-6)
        self.training.check_no_values(self.named("training"))


@dataclass(frozen=True, kw_only=True)
class Eval(Options):
    """What is measured, and the intervals of the reported numbers."""

    section: ClassVar[str] = "eval"

    # of the targets; auto: where answers are generated and the model can score; on: without answers too
    likelihood: Literal["auto", "on", "off"] = "auto"
    resamples: int = 2000  # of the bootstrap over users, where there are 20 of them
    confidence: float = 0.95
    # questions that are shown in full at the end, with the answer (decoded for them if it was not)
    examples: int = field(default=0, metadata=IDLE)
    # llm: a language model grades the answers, the run's as it comes or `judge_llm`; its grades stand in a
    # table of their own, and nothing is compared, chosen or trained by them
    judge: Literal["none", "llm"] = field(default="none", metadata=added("none"))
    judge_llm: JudgeLLM | None = field(default=None, metadata=added(None))
    # with {question}, {reference} and {answer}; answered by yes or no. "": the package's own
    judge_prompt: str = field(default="", metadata=added(""))
    judge_tokens: int = field(
        default=1024, metadata=added(1024)
    )  # of question, reference and answer together in that prompt

    def check(self) -> None:
        self.at_least("examples", 0)
        self.at_least("judge_tokens", 16)
        missing = [f for f in ("{reference}", "{answer}") if self.judge_prompt and f not in self.judge_prompt]
        if missing:
            raise UserError(
                f"{self.named('judge_prompt')} lacks {' and '.join(missing)}, want a text with {{question}}, "
                "{reference} and {answer}, which asks for yes or no"
            )
        self.at_least("resamples", 1)
        self.between("confidence", 0.5, 0.9999)

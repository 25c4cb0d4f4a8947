"""Options that several methods share: language models, data, passages, encoders, prompts, streams, remarks,
evaluation."""

import dataclasses
import datetime
import json
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from pbr_jax.base.types import UserError
from pbr_jax.options.base import IDLE, Options, added
from pbr_jax.options.training import Optimizer, Training

_ASKED = frozenset(
    {"model", "messages", "prompt", "input_ids", "max_tokens", "max_completion_tokens", "temperature",
     "top_p", "seed", "n", "stop", "use_beam_search", "stream", "echo", "logprobs", "prompt_logprobs",
     "sampling_params", "return_logprob", "logprob_start_len"}
)  # fmt: skip
"""Fields of a request that `llm.extra_body` must not set."""


@dataclass(frozen=True, kw_only=True)
class LLM(Options):
    """The frozen language model that answers."""

    section: ClassVar[str] = "llm"

    # embedded default model, or a local folder or GGUF file. http: the model's name on the server
    model: str = field(default="SmolLM2-135M-Instruct", metadata=IDLE)
    # jax: the model runs in this process; http: it runs on a server with an OpenAI-compatible API
    backend: Literal["jax", "http"] = "jax"
    dtype: Literal["float32", "bfloat16"] = "float32"  # type of the weights and activations
    batch_size: int = 32  # number of prompts decoded together
    # maximum length of prompt and answer together, in tokens. None: as the model specifies
    context: int | None = field(default=None, metadata=IDLE)
    date: str = "2024-07-26"  # date that chat templates show as today's (Llama 3 prints it), as YYYY-MM-DD
    # LoRA adapter for the model: a folder saved by PEFT. http: the adapter's name on the server. "": the
    # one beside the model's weights, or none
    adapter: str = field(default="", metadata=IDLE)
    # what happens to a prompt longer than the context. refuse: an error, raised after all other prompts are
    # answered; cut: its middle is removed
    overflow: Literal["refuse", "cut"] = "refuse"
    tensor_parallel: int = 1  # number of devices over which the weights of every layer are split
    # whether answers come only from the cache. An answer that is not cached is then an error
    offline: bool = field(default=False, metadata=IDLE)
    url: str = ""  # http: base URL of the server's API, such as http://127.0.0.1:8000/v1
    # http: tokenizer of the served model, a folder or GGUF file. "": token counts are estimates
    tokenizer: str = ""
    # http: the API by which the server returns the log-probabilities of a prompt's tokens. none: it returns
    # none
    log_probs: Literal["none", "vllm", "echo", "sglang"] = "none"
    # http: whose extra request fields turn off thinking and the server's defaults. auto: none for OpenAI's
    # own address, otherwise vLLM's, which SGLang also accepts; refused fields are left out
    server: Literal["auto", "vllm", "llama_cpp", "openai"] = "auto"
    # http: JSON object with fields for every request. A value of null removes a field. "": none
    extra_body: str = ""
    # http: price of a million prompt tokens, in any currency. results.json then includes the cost of the run
    price_prompt: float | None = field(default=None, metadata=IDLE)
    # http: price of a million generated tokens, in any currency
    price_completion: float | None = field(default=None, metadata=IDLE)
    # number that is part of the key of every cached answer; raise it to ask the model everything anew
    ask_again: int = field(default=0, metadata=added(0))
    # http: share of answers that may be missing because they are withheld, empty or cut off. Their questions
    # are not scored; more of them are an error
    max_failed: float = field(default=0.05, metadata=IDLE)
    # http: whether an answer is refused if the server counts far fewer tokens of the prompt than were sent
    check_prompts: bool = field(default=True, metadata=IDLE)
    # http: environment variable with further headers of every request, as a JSON object of texts
    headers_variable: str = field(default="PBR_JAX_LLM_HEADERS", metadata=IDLE)
    # http: environment variable that holds the API key, if there is one
    key_variable: str = field(default="OPENAI_API_KEY", metadata=IDLE)
    # http: maximum number of requests in progress at a time
    concurrency: int = field(default=8, metadata=IDLE)
    # http: time limit of one attempt, in seconds, up to the last byte of the response
    timeout: float = field(default=120.0, metadata=IDLE)
    # http: how often a request is repeated after a temporary failure
    retries: int = field(default=6, metadata=IDLE)

    def check(self) -> None:
        self.at_least("batch_size", 1)
        self.at_least("context", 2)
        self.at_least("tensor_parallel", 1)
        self.at_least("concurrency", 1)
        self.at_least("timeout", 0.001)
        self.at_least("retries", 0)
        self.at_least("ask_again", 0)
        self.at_least("max_failed", 0)
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
        """The JSON object in `extra_body`. Raises UserError if it is none."""
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
        """Whether the backend can compute the likelihood of a given answer."""
        return self.backend == "jax" or (self.log_probs != "none" and bool(self.tokenizer))

    def check_scoring(self, who: str) -> None:
        """Raises UserError if the backend cannot score answers. `who`: what needs it, for the message."""
        if not self.can_score:
            raise UserError(
                f"{who} with a model on a server needs {self.named('log_probs')} (vllm, echo or sglang) and "
                f"{self.named('tokenizer')} (the served model's folder or GGUF file); set both"
            )

    def check_beams(self, num_beams: int) -> None:
        """Raises UserError for a beam search that the server does not support."""
        if self.backend == "http" and num_beams > 1 and self.log_probs != "vllm":
            raise UserError(
                f"generate.num_beams is {num_beams}, but of servers only vLLM searches beams; "
                f"set it to 1, or {self.named('log_probs')} to vllm if the server is one"
            )


@dataclass(frozen=True, kw_only=True)
class OtherLLM(LLM):
    """A language model in addition to the one that answers."""

    @property
    def plain(self) -> LLM:
        """The same options as `LLM`, so that a model with two roles is loaded only once."""
        return LLM(**{item.name: getattr(self, item.name) for item in dataclasses.fields(self)})


@dataclass(frozen=True, kw_only=True)
class SelectLLM(OtherLLM):
    """The language model that selects documents, if it is not the one that answers."""

    section: ClassVar[str] = "select.llm"


@dataclass(frozen=True, kw_only=True)
class JudgeLLM(OtherLLM):
    """The language model that grades answers, if it is not the model of the run."""

    section: ClassVar[str] = "eval.judge_llm"


@dataclass(frozen=True, kw_only=True)
class Benchmark(Options):
    """The data that the run uses."""

    section: ClassVar[str] = "benchmark"

    # name of the benchmark, such as lamp_1 … lamp_7, longlamp_* or personabench:
    # docs/reference/data_format.md
    name: str = "synthetic"
    root: str = field(default="", metadata=IDLE)  # folder (or file) with the official files
    # evaluated split. LaMP: train, dev or test; PersonaBench: noise_0.0 …; LongMemEval: the file's name
    # without its ending
    split: str = "dev"
    # seed of the made-up data, which have no root. `seed` draws all else
    seed: int = field(default=0, metadata=added(0))
    # training split: what trained methods learn from. Its users can be neighbours too
    training: str = "train"
    # benchmark of the training split, if it differs from benchmark.name, for transfer from one data set to
    # another. "": the same
    training_name: str = field(default="", metadata=added(""))
    # folder of benchmark.training_name. "": benchmark.root
    training_root: str = field(default="", metadata=IDLE)
    # variant of the data. longmemeval: sessions and relevance as in its own code (official) or PBR's (pbr).
    # LaMP: texts as in its own code (official) or CFRAG's (cfrag). locomo, realtalk, lucid: a document is a
    # session (official) or a turn (turns); docs/reference/data_format.md
    form: Literal["official", "pbr", "cfrag", "turns"] = "official"

    # evaluated questions of users who have no document yet. skip: they are left out
    cold_start: Literal["keep", "skip"] = field(default="keep", metadata=added("keep"))
    # prefeval: number of turns between the preference and the question. The default is that of the paper's
    # main table
    inter_turns: int = field(default=10, metadata=added(10))

    # shared passages that all questions can retrieve (docs/reference/data_format.md): a .jsonl, .tsv or .json
    # file, or a split of the root (xquad: a language) whose passages are used. "": none
    passages: str = field(default="", metadata=IDLE)
    # file of additional shared passages that are relevant to no question. "": none
    distractors: str = field(default="", metadata=IDLE)
    # TOML file that defines the task and the wording of its prompts. "": the benchmark's own task
    task: str = field(default="", metadata=IDLE)

    def check(self) -> None:
        self.at_least("inter_turns", 0)
        used = {"inter_turns": self.name == "prefeval", "seed": self.made_up}
        for name, why in {"inter_turns": "has no turns between", "seed": "is not drawn"}.items():
            if (value := getattr(self, name)) != getattr(Benchmark, name) and not used[name]:
                raise UserError(f"{self.named(name)} is {value}, and {self.name} {why}; leave it out")

    @property
    def made_up(self) -> bool:
        """Whether the data are drawn by `seed` and not read from a folder."""
        return self.name == "synthetic" and not self.root

    @property
    def shares(self) -> bool:
        """Whether the benchmark has shared passages."""
        return bool(self.passages or self.distractors)


@dataclass(frozen=True, kw_only=True)
class Encoder(Options):
    """The BERT-family text encoder for dense retrieval."""

    section: ClassVar[str] = "encoder"

    # embedded default model, or a local folder in Hugging Face format
    model: str = field(default="all-MiniLM-L6-v2", metadata=IDLE)
    # how token states become one vector. auto: as the model's folder specifies, otherwise mean
    pooling: Literal["auto", "cls", "mean"] = "auto"
    # whether vectors are scaled to unit length. auto: as the model's folder specifies
    # (a module Normalize, or cosine), otherwise no
    normalize: Literal["auto", "yes", "no"] = "auto"
    # longest input, in tokens; longer ones are cut. None: as the model's folder specifies
    max_length: int | None = None
    # number of tokens in one forward pass. None: 512 on a CPU, 16,384 on an accelerator
    batch_tokens: int | None = None
    # type of the weights and activations, here and in the cross-encoder of select, after training. bfloat16
    # is for accelerators. Norms, softmax, pooling and vectors stay float32
    dtype: Literal["float32", "bfloat16"] = field(default="float32", metadata=added("float32"))
    # text put before every query, as BGE and E5 require. auto: the prompt in the model's folder, otherwise
    # nothing
    query_prefix: str = "auto"
    # text put before every document. auto: the prompt in the model's folder, otherwise nothing
    document_prefix: str = "auto"

    def check(self) -> None:
        self.at_least("max_length", 3, "two of them are special tokens")
        self.at_least("batch_tokens", 1)

    @property
    def narrow(self) -> list[str]:
        """What `dtype` adds to the keys of vectors and scores. At float32, this is nothing."""
        return [] if self.dtype == "float32" else [self.dtype]


def _new(default: Any) -> Any:
    return field(default=default, metadata=added(default))


@dataclass(frozen=True, kw_only=True)
class Prompt(Options):
    """Slot 5: the wording of the prompt, and its token budget."""

    section: ClassVar[str] = "prompt"

    # own: labelled entries, and an open label at the end for the answer; lamp: the structure of LaMP's
    # prompts, one sentence for each entry, without labels
    form: Literal["own", "lamp"] = "own"
    # token budget of the prompt: input, documents and wording together (ClusterRAG Eq. 3: L_max)
    max_tokens: int = 512
    # share of max_tokens reserved for the input, if the input is that long (ClusterRAG Eq. 3), from 0 to 1
    gamma: float = 0.6
    # order of the documents in the prompt. best_first: as select ranked them; best_last: reversed; random:
    # shuffled for each question by order_seed. Training prompts are always best_first
    order: Literal["best_first", "best_last", "random"] = "best_first"
    order_seed: int = 0  # seed of prompt.order random
    # sentence after the question, such as a reminder of the user's preferences. "": none
    reminder: str = field(default="", metadata=added(""))
    # what the prompt shows of a retrieved passage (corpus.chunk). passage: the passage; around: also the
    # passages before and after it, with the retrieved one marked; document: its whole document, shown once
    # even if several of its passages were retrieved
    show: Literal["passage", "around", "document"] = field(default="passage", metadata=added("passage"))

    # text about the user, which the language model writes once from the history; it comes before the
    # documents. summary: Richardson et al., 2023; features: what distinguishes the user from random others
    # (AP-Bots, 2025); difference: how the user differs from the most similar others (DPL, 2025). The last two
    # also read other users' documents, so they need collaboration text
    profile: Literal["none", "summary", "features", "difference"] = _new("none")
    profile_documents: int = _new(16)  # maximum number of documents read from each user for this text
    # which documents are read if a user has more: the newest, or a random sample
    profile_sample: Literal["newest", "random"] = _new("newest")
    # token budget of all documents that the text is written from. If other users are included, half of it is
    # for the user's own documents
    profile_read: int = _new(1024)
    # maximum length of the text, in tokens. The default is an eighth of the default max_tokens
    profile_tokens: int = _new(64)
    profile_others: int = _new(3)  # number of users that features and difference compare with
    # own: the asking user's profile; other: a random other user's. The latter is a control: it shows how much
    # of the gain comes from the task rather than from the user
    profile_whose: Literal["own", "other"] = _new("own")
    profile_seed: int = _new(0)  # seed of the random users and documents

    @property
    def shows_others(self) -> bool:
        """Whether the prompt may contain text that a model wrote from other users' documents."""
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
    """The trained encoder of histories, which represents users as vectors (CFRAG section 4.1)."""

    section: ClassVar[str] = "user_encoder"

    num_layers: int = 1  # number of transformer layers
    num_heads: int = 2  # number of attention heads
    max_documents: int = 100  # number of newest documents that are read from a history
    dropout: float = 0.1  # dropout probability
    crop: float | None = 0.7  # share of a history that a cropped view keeps. None: no such view
    mask: float | None = 0.3  # share of a history that a masked view hides. None: no such view
    reorder: float | None = 0.3  # share of a history that a reordered view shuffles. None: no such view
    # contrastive loss. cross_view: as printed in the paper; nt_xent: as in the released code
    loss: Literal["cross_view", "nt_xent"] = "cross_view"
    temperature: float = 0.1  # temperature of the contrastive loss
    train_embeddings: bool = False  # whether document embeddings are trained too, as in the released code
    # how the encoder is trained
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
    """What is measured, and how confidence intervals are computed."""

    section: ClassVar[str] = "eval"

    # whether the log-likelihood of the targets is measured. auto: if answers are generated and the model can
    # score; on: also without generated answers
    likelihood: Literal["auto", "on", "off"] = "auto"
    # number of bootstrap resamples of the users. The bootstrap is used for at least 20 users
    resamples: int = 10_000
    confidence: float = 0.95  # confidence level of the intervals, from 0.5 to 0.9999
    # number of questions shown in full at the end, with their answers. Answers are decoded for them if
    # necessary
    examples: int = field(default=0, metadata=IDLE)
    # llm: a language model grades the answers, by default the run's own without its tuning (see judge_llm).
    # Its grades are in a separate table; they are never used for comparison, selection or training
    judge: Literal["none", "llm"] = field(default="none", metadata=added("none"))
    # language model that grades the answers. None: the model of the run, without its tuning
    judge_llm: JudgeLLM | None = field(default=None, metadata=added(None))
    # template with {question}, {reference} and {answer} that asks for yes or no. "": the package's own
    judge_prompt: str = field(default="", metadata=added(""))
    # token budget of question, reference and answer together in that prompt
    judge_tokens: int = field(default=1024, metadata=added(1024))

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


@dataclass(frozen=True, kw_only=True)
class Corpus(Options):
    """How documents are cut into passages, and how the scores of passages become those of documents.

    A sentence encoder reads the first 256 or 512 tokens of a text, and a single vector represents a long text
    poorly. A long document is therefore easier to retrieve by its passages (Dai, Callan, "Deeper Text
    Understanding for IR with Contextual Neural Language Modeling", SIGIR 2019, whose MaxP is `pool max`).
    """

    section: ClassVar[str] = "corpus"

    # unit of retrieval. none: whole documents; words: windows of `words` words; sentences: as many whole
    # sentences as fit in `words` words; turns: turns of a dialogue, or windows of words for other documents
    chunk: Literal["none", "words", "sentences", "turns"] = "none"
    # maximum length of a passage, in words. Longer sentences and turns are cut into windows. MiniLM reads 256
    # tokens, but vectors of 60 words retrieve better than those of 200
    words: int = 60
    # distance between the starts of two windows, in words, at most `words`. At half of `words`, text cut by
    # one window is whole in the next
    stride: int = 30
    # line put before the text of every passage: the document's title or date, if it has one
    front: Literal["none", "title", "date"] = "none"
    # how the scores of its passages give the score of a document. max: the best one; none: passages are
    # ranked individually
    pool: Literal["max", "none"] = "max"

    @property
    def active(self) -> bool:
        """Whether documents are cut into passages."""
        return self.chunk != "none"

    def check(self) -> None:
        self.at_least("words", 1)
        self.at_least("stride", 1)
        if self.stride > self.words:
            self.between("stride", 1, self.words)  # words between two windows would be in none


@dataclass(frozen=True, kw_only=True)
class Stream(Options):
    """Questions that arrive in blocks. Each block is answered before methods learn from it.

    Under `cross_users`, folds of users replace the blocks, and each fold is answered with what the other
    folds have taught. `cross_units` does the same for the tuned generator, and for methods that otherwise
    learn from a training split.
    """

    section: ClassVar[str] = "stream"

    size: int | None = None  # number of questions in a block. None: no blocks
    # order of arrival. released: as in the data; shuffled: by the seed of the run, for data released user by
    # user; by_unit: units (articles, dialogues or otherwise users) in random order, each with all its
    # questions; shifted: a random half of the units, then the other half, each shuffled; by_round: the first
    # question of every user, then the second of every user, and so on, with no user twice in a block
    order: Literal["released", "shuffled", "by_unit", "shifted", "by_round"] = "released"
    # prequential: block by block. cross_users: folds of users, for methods that learn from a stream.
    # cross_units: folds of units, for methods trained on a training split; no such split is needed then
    protocol: Literal["prequential", "cross_users", "cross_units"] = field(
        default="prequential", metadata=added("prequential")
    )
    # number of folds of users or units, drawn by the seed. None: one for each user (leave one user out), or
    # with cross_units one for each unit, at most 10
    folds: int | None = field(default=None, metadata=added(None))
    keep: int | None = field(default=None, metadata=IDLE)  # number of newest states kept on disk. None: all

    @property
    def active(self) -> bool:
        """Whether there is a stream."""
        return self.size is not None or self.protocol != "prequential"

    def check(self) -> None:
        self.at_least("size", 1)
        self.at_least("keep", 1)
        self.at_least("folds", 2)
        if self.protocol != "prequential":
            if self.size is not None or self.order != "released":
                raise UserError(
                    f"stream.protocol is {self.protocol}, whose folds have all questions of their users in "
                    "no order; set stream.size to none and stream.order to released, or take prequential"
                )
            if self.protocol == "cross_units" and self.keep is not None:
                raise UserError(
                    f"stream.keep is {self.keep}, and stream.protocol cross_units keeps no states; leave "
                    "stream.keep out"
                )
        elif self.folds is not None:
            raise UserError(
                f"stream.folds is {self.folds}, and stream.protocol prequential has none; take cross_users "
                "or cross_units, or leave stream.folds out"
            )
        elif self.size is None and (self.order, self.keep) != ("released", None):
            raise UserError("stream.size is none, so there is no stream; set it, or leave stream.* out")


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

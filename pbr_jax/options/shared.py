"""Options that several methods share: data, passages, encoders, prompts, streams, remarks, evaluation."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from pbr_jax.base.types import UserError
from pbr_jax.options.base import IDLE, Options, added
from pbr_jax.options.llm import JudgeLLM
from pbr_jax.options.training import Optimizer, Training


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
        if self.inter_turns != Benchmark.inter_turns and self.name != "prefeval":
            raise UserError(
                f"{self.named('inter_turns')} is {self.inter_turns}, and {self.name} has no turns between; "
                "leave it out"
            )

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
    # whether vectors are scaled to unit length. auto: as the model's folder specifies, otherwise no
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
    resamples: int = 2000
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
    # how the scores of its passages give the score of a document. max: the best one; mean_best_two: the mean
    # of the best two among the retrieved passages (retrieve.k times the number of passages of the longest
    # document); none: passages are ranked individually
    pool: Literal["max", "mean_best_two", "none"] = "max"

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

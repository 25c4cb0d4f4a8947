"""The schema of a run's config: options of methods and shared options, and all fields by their dotted names,
such as `retrieve.k` and `retrieve.of.bm25.b`."""

import dataclasses
import difflib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from pbr_jax.base.types import UserError
from pbr_jax.methods import METHODS, expand, generate, neighbours, retrieve, select
from pbr_jax.options import (
    IDLE,
    LLM,
    Benchmark,
    Corpus,
    Encoder,
    Eval,
    Expand,
    Feedback,
    Generate,
    Method,
    Neighbours,
    Options,
    Prompt,
    Remarks,
    Retrieve,
    Select,
    Stream,
    TunedGenerator,
    UserEncoder,
    added,
    hints,
    members_in,
    names_of,
    options_in,
)

SLOTS = {
    "expand": Expand,
    "neighbours": Neighbours,
    "retrieve": Retrieve,
    "select": Select,
    "generate": Generate,
}


@dataclass(frozen=True, kw_only=True)
class Config(Options):
    """The configuration of one run. Each slot takes a method with its options (`pbr_jax.methods`, or a
    class of your own)."""

    system: str = "dense"  # name of this run in tables
    seed: int = 0  # seed of all random choices, also of sampled answers if generate.seed is none
    # number of evaluated examples, spread over the users by `data.users`; None: all
    limit: int | None = None
    # number of examples from the training split, to learn from and to take neighbours from; None: all
    limit_training: int | None = None
    # number of newest documents kept in the asking user's own history for each evaluated question; None: all
    limit_history: int | None = None
    # how other users' data may be used. none: not at all; signals: to fit parameters; text: also to show
    # their documents in prompts
    collaboration: Literal["none", "signals", "text"] = "none"
    # whether questions, prompts, documents, answers and targets are kept in the run's folder
    keep_texts: bool = field(default=True, metadata=IDLE)

    benchmark: Benchmark = field(default_factory=Benchmark)
    corpus: Corpus = field(default_factory=Corpus, metadata=added(Corpus()))
    encoder: Encoder = field(default_factory=Encoder)
    llm: LLM = field(default_factory=LLM)
    expand: Expand = field(default_factory=expand.Nothing)
    neighbours: Neighbours = field(default_factory=neighbours.Self)
    retrieve: Retrieve = field(default_factory=retrieve.Dense)
    select: Select = field(default_factory=select.TopK)
    prompt: Prompt = field(default_factory=Prompt)
    generate: Generate = field(default_factory=generate.Auto)
    generator: TunedGenerator = field(default_factory=TunedGenerator)
    user_encoder: UserEncoder = field(default_factory=UserEncoder)
    feedback: Feedback = field(default_factory=Feedback)
    stream: Stream = field(default_factory=Stream)
    remarks: Remarks = field(default_factory=Remarks, metadata=added(Remarks()))
    eval: Eval = field(default_factory=Eval)

    @property
    def methods(self) -> list[Method]:
        """The methods in the slots."""
        return [getattr(self, slot) for slot in SLOTS]

    def training_documents(self, source: str) -> dict[str, Any]:
        """The changes to a config for retrieving the documents of the generator's training prompts.

        For own, others and neighbours they do not depend on the slots, so one generator serves all rows of a
        table. One document more than shown is retrieved, because one may contain the question's own target.
        """
        frozen, k = TunedGenerator(), self.generator.k + 1
        if source == "pipeline":
            return {"generator": frozen}
        others = source == "others"
        users = {
            "own": neighbours.Self(),
            "others": neighbours.Random(m=2 * k, own=False),
            "neighbours": neighbours.Cohorts(own=False),
        }[source]
        return {
            "generator": frozen,
            "collaboration": "text" if users.others or self.prompt.shows_others else "signals",
            "expand": expand.Nothing(),
            "neighbours": users,
            "retrieve": retrieve.Dense(k=1 if others else k),
            "select": select.TopK(k=k),
        }

    def similar_users(self, count: int) -> Neighbours:
        """The method that finds `count` users to compare a user with (`prompt.profile difference`)."""
        return neighbours.Mean(m=count + 1)

    def check(self) -> None:
        self.between("seed", 0, 2**32 - 1)
        self.at_least("limit", 1)
        self.at_least("limit_training", 1)
        self.at_least("limit_history", 0)
        for slot in SLOTS:
            _check_method(slot, getattr(self, slot))
        if self.prompt.shows_others and self.collaboration != "text":
            raise UserError(
                f"prompt.profile is {self.prompt.profile} (profile_whose {self.prompt.profile_whose}): the "
                "language model reads other users' documents, and what it writes of them would enter "
                "prompts; say so with collaboration text, or take prompt.profile summary of the own history"
            )
        users = self.neighbours
        if users.others and self.collaboration != "text":
            instead = "set neighbours.m to 1" if users.others < users.m else "take another method"
            raise UserError(
                f"neighbours.method is {users.method} with m = {users.m}: other users' documents would enter "
                f"prompts; say so with collaboration text, or {instead}"
            )


def _check_method(slot: str, method: Method) -> None:
    """Custom classes must have one name, so that a config can be written and read again."""
    default = next(item.default for item in dataclasses.fields(method) if item.name == "method")
    if not isinstance(default, str) or method.method != default:
        name = type(method).__name__
        raise UserError(
            f"{slot}.method is {method.method!r} in the class {name}; give it one name, such as method: "
            f'Literal["{name.lower()}"] = "{name.lower()}"'
        )


def entries(options: Any, prefix: str = "", *, opened: bool = False) -> Iterator[tuple[str, Any, Any]]:
    """All fields of options and of options inside them: dotted name, type and value.

    Fields of a method's members stand under the members' names. `opened`: options that may be none, and are,
    have their fields too.
    """
    for name, hint in hints(type(options)).items():
        value = getattr(options, name)
        yield prefix + name, hint, value
        if opened and value is None and (kind := options_in(hint)):
            value = kind()
        inner = {"": value} if isinstance(value, Options) else members(value)
        for member, one in inner.items():
            yield from entries(one, f"{prefix}{name}.{member}{'.' * bool(member)}", opened=opened)


def values(config: Any, *, opened: bool = False) -> dict[str, Any]:
    """The values of a config by their dotted names, such as `retrieve.k`; `opened` as in `entries`."""
    found = entries(config, opened=opened)
    return {name: value for name, _, value in found if not isinstance(value, Options)}


def names(config: Any) -> list[str]:
    """All dotted field names of a config."""
    return [*values(config)]


def members(value: Any) -> dict[str, Method]:
    """The methods that a method is made of, such as the retrievers of `retrieve.of`, by their names; none of
    another value."""
    if not isinstance(value, tuple) or not all(isinstance(one, Method) for one in value):
        return {}
    return dict(zip(names_of(value), value, strict=True))


_RENAMED = {"reader": "generator", "lesson": "distillation"}
"""Parts of field names that older versions had, and what they are called now."""

_RENAMED_FIELDS = {"tokenizer": "analyser"}
"""The same of fields of slots' methods, where another field has the old name."""


_LENGTHS = "leave it out; the model's folder says how long texts are"
_REMOVED = {
    "select.control": ("none", "guessed rewards were not shown to help; raise select.rollouts"),
    "select.proposals": (64, "guessed rewards were not shown to help; raise select.rollouts"),
    "retrieve.centroid": ("mean", "leave it out; centroids are means of documents' vectors"),
    "query_length": (None, _LENGTHS),
    "document_length": (None, _LENGTHS),
    "stop_words": ("none", "leave it out; the idf gives frequent words little weight"),
    "track": ("none", "read the losses in metrics.jsonl of the training's folder"),
    "optimizer.frozen": ("", "leave it out; of a generator, set generator.method lora"),
}
"""Ends of fields that older versions had: the value that changed nothing, and what replaces others."""


def removed(name: str) -> tuple[Any, str] | None:
    """What `_REMOVED` says of a field's name; None where it was never there."""
    return next((said for end, said in _REMOVED.items() if f".{name}".endswith(f".{end}")), None)


def unknown(name: str, config: Config) -> UserError:
    """The error for a field that does not exist, with the nearest names, or the method that has it."""
    slot, _, field = name.partition(".")
    owners = _owners(slot, field) if slot in SLOTS else []
    if owners and (have := getattr(config, slot).method) not in owners:
        return UserError(
            f"{name} belongs to {' and '.join(owners)}, and {slot}.method is {have}; "
            f"set {slot}.method, or leave it out"
        )
    renamed = _RENAMED | (_RENAMED_FIELDS if slot in SLOTS else {})
    for old, new in renamed.items():
        if old in name.split("."):
            return UserError(f"unknown config field {name!r}: {old!r} is now {new!r}; write {new!r}")
    if gone := removed(name):
        return UserError(f"config field {name!r} was removed: {gone[1]}")
    known = [*values(config, opened=True)]
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    near += [k for k in known if k.rsplit(".", 1)[-1] == name.rsplit(".", 1)[-1] and k not in near]
    hint = f"did you mean {' or '.join(near[:3])}?" if near else "pbr-jax run CONFIG.py --help-all lists all"
    return UserError(f"unknown config field {name!r}; {hint}")


def _owners(slot: str, field: str) -> list[str]:
    """The methods of a slot that have a field, or have members, whose field it is."""
    begin = field.partition(".")[0]
    return [
        name_of(cls)
        for cls in METHODS[slot]
        if any(
            name == field or (name == begin and members_in(hint))
            for name, hint, _ in entries(cast(Any, cls)(), opened=True)
        )
    ]


def name_of(cls: type[Method]) -> str:
    """The name of a method: its `method` field's default."""
    return next(str(item.default) for item in dataclasses.fields(cls) if item.name == "method")

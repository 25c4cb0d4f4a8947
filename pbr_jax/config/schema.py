"""The schema of a run's config, which contains the options of the methods and the shared options."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from pbr_jax.base.types import UserError
from pbr_jax.methods import expand, generate, neighbours, retrieve, select
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

"""What flows through the pipeline: documents, examples, candidates, and the model pair.

Every other module speaks in these words. They are plain frozen dataclasses: an example read from a
benchmark, a document of a user's history, a candidate that a retriever scored.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np


class UserError(ValueError):
    """Something the user can mend: a wrong path, a malformed record, an unknown field.

    The command line prints it as one line and exits with code 2. The message says what was found,
    what was wanted and what to do, and names file, record and field where there are any.
    """


@dataclass(frozen=True, slots=True)
class Document:
    """One record of a user's history, or of a shared collection.

    `text` is what a retriever indexes; `fields` holds the record as released (title, abstract, tag,
    ...), which prompts are written from. `time` is in seconds since 1970-01-01 UTC, or None where
    the record carries no date; of a coarse date ("2015") it is the first moment, and `until` the last one
    that it may mean. None: the same as `time`. A `shared` document has no owner: its `user_id` is "", and
    every user may see it.

    `part_of` is the id of the document that this is a passage of, and `span` where it begins and ends in that
    one's text, in characters; "": it is whole. `turns` are the places in `text` where turns of a dialogue
    begin, ascending; () where it has none.
    """

    id: str
    user_id: str
    text: str
    fields: Mapping[str, str] = field(default_factory=dict)
    time: float | None = None
    until: float | None = None
    shared: bool = False
    part_of: str = ""
    span: tuple[int, int] = (0, 0)
    turns: tuple[int, ...] = ()

    @property
    def whole(self) -> str:
        """The id of the document itself, or of the one that it is a passage of."""
        return self.part_of or self.id


@dataclass(frozen=True, slots=True)
class Example:
    """One question of one user, with the history that this user had when asking.

    `query` is the text that retrievers see, `input` the whole task input that a prompt contains.
    `target` is None where labels are withheld; `alternatives` are further answers that count as right,
    in question sets that accept several; of a dialogue state its one reference
    (`pbr_jax.tasks.states`). `relevant` is the ground truth of retrieval benchmarks: one group per
    needed fact, each group the ids of documents that alternatively hold it. `scored` is False for
    questions that the benchmark's official scorer leaves out of its averages. `time` is the moment of
    the question, of a coarse date the first, in seconds since 1970-01-01 UTC, None where the data is
    not dated. `training` marks a question of the training split that stands beside the evaluated one in
    a store. `unit` names what questions belong together (an article, a dialogue): the cluster of
    intervals; "": the user is. `options` are the answers that a multiple-choice question offers, the
    target among them, in an order that does not tell which it is; () where it offers none.
    """

    id: str
    user_id: str
    query: str
    input: str
    target: str | None
    profile: tuple[Document, ...] = ()
    time: float | None = None
    relevant: tuple[tuple[str, ...], ...] = ()
    category: str = ""
    scored: bool = True
    alternatives: tuple[str, ...] = ()
    training: bool = False
    unit: str = ""
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A document with the score that a retriever or selector gave it (higher is better).

    `row` is the document's place in the store and in the embedding matrix. `scores` are those of the parts
    that the score is made of, as they were given, by the parts' names; empty where it is not made of parts.
    """

    document: Document
    score: float
    row: int
    scores: Mapping[str, float] = field(default_factory=lambda: _NO_PARTS)


_NO_PARTS: Mapping[str, float] = MappingProxyType({})  # one for all: rankings hold many candidates


class Feedback(NamedTuple):
    """The candidates of one question, as rows of the store, and their values, the higher the better."""

    rows: np.ndarray  # int64 [c]
    values: np.ndarray  # float32 [c]


Params = dict[str, Any]
"""Weights as nested dicts of arrays; every leaf has a path such as `layers/attention/query/kernel`."""


class Model(NamedTuple):
    """A model is two pure functions.

    `init(key) -> params` makes random weights; `apply(params, ...) -> output` computes. The factory
    that returns the pair documents the arguments of `apply`.
    """

    init: Callable[..., Params]
    apply: Callable[..., Any]

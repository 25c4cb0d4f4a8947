"""Data types of the pipeline: documents, examples, candidates and models.

All modules use these types. They are frozen dataclasses and named tuples: an example of a benchmark, a
document of a user's history, a candidate that a retriever scored.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np


class UserError(ValueError):
    """An error that the user can correct, such as a wrong path, a malformed record or an unknown field.

    The command line prints the message on one line and exits with code 2. The message says what was found,
    what was expected and what to do. It names the file, record and field if there are any.
    """


SPEAKERS = "speakers"
"""The field of a document that names who speaks in it, with a comma between two names."""


@dataclass(frozen=True, slots=True)
class Document:
    """One record of a user's history, or of a shared collection.

    `text` is the text that a retriever indexes. `fields` contains the record as released (title, abstract,
    tag, ...), from which prompts are written.

    `time` is in seconds since 1970-01-01 UTC; None: the record has no date. For a coarse date ("2015"),
    `time` is its first moment and `until` its last. `until` None: the same as `time`. A `shared` document
    has no owner: its `user_id` is "", and every user may see it.

    For a passage, `part_of` is the id of the document that it was cut from, and `span` is its start and end
    in the text of that document, in characters. `part_of` "": it is a whole document. `turns` are the
    character offsets in `text` at which turns of a dialogue begin, ascending; (): there are none.
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
        """The id of this document, or of the document that this passage was cut from."""
        return self.part_of or self.id


@dataclass(frozen=True, slots=True)
class Example:
    """One question of one user, with the history that this user had when asking.

    `query` is the text for retrievers, and `input` is the complete task input in the prompt. `profile` is the
    user's history at the time of the question; it is empty in examples that are read from a store.

    `target` is the right answer; None: labels are withheld. `alternatives` are further right answers, for
    question sets that accept several; for a dialogue state it is its one reference (`pbr_jax.tasks.states`).
    `options` are the answers of a multiple-choice question, including the target, in an order that does not
    reveal the target; (): it is not multiple choice.

    `relevant` is the ground truth for retrieval. It has one group per needed fact: the ids of the documents
    that contain this fact. Any one document of a group is enough.

    `scored` is False for questions that the benchmark's official scorer excludes from its averages. `time` is
    the time of the question in seconds since 1970-01-01 UTC, for a coarse date its first moment; None: the
    data has no dates. `training` is True for questions of the training split in a store that also contains
    the evaluated split. `unit` names the article or dialogue that the question belongs to. Confidence
    intervals are computed over units; "": they are computed over users.
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

    `row` is the row number of the document in the store and in the embedding matrix. If the score combines
    several parts, `scores` contains the original score of each part by name. Otherwise it is empty.

    A text that is no document of the store, such as a summary or the memory of another program, has the row
    `NO_ROW`. Its document's `user_id` owns it, and `sources` are the ids of that user's documents from which
    it was made. Candidates with a row have no `sources`.
    """

    document: Document
    score: float
    row: int
    scores: Mapping[str, float] = field(default_factory=lambda: _NO_PARTS)
    sources: tuple[str, ...] = ()


NO_ROW = int(np.iinfo(np.int64).max)
"""The row of a candidate with a text of its own. It is out of the bounds of any array over documents."""

_NO_PARTS: Mapping[str, float] = MappingProxyType({})  # one for all: rankings hold many candidates


class Feedback(NamedTuple):
    """The candidates of one question as row numbers of the store, and their values. Higher is better."""

    rows: np.ndarray  # int64 [c]
    values: np.ndarray  # float32 [c]


Params = dict[str, Any]
"""Weights as nested dicts of arrays. Each leaf has a path such as `layers/attention/query/kernel`."""


class Model(NamedTuple):
    """A model as a pair of pure functions.

    `init(key) -> params` draws random weights, and `apply(params, ...) -> output` computes the output. The
    arguments of `apply` are documented by the function that returns the pair.
    """

    init: Callable[..., Params]
    apply: Callable[..., Any]

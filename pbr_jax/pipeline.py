"""The pipeline: six slots that turn a question of a user into a personalized answer.

::

     (user, query)
         │ neighbours  user → users whose histories are searched
         │ expand      query text → queries to search for
         │ retrieve    histories → scored candidates
         │ select      candidates → the ordered documents of the prompt
         │ prompt      question, documents → messages within a budget of tokens
         │ generate    question, documents, prompts → answer
         ▼
      answer

A slot is a callable on a batch of examples, and a method (`pbr_jax.methods`) fills a slot. A system is a
choice of methods for all slots, which `pbr_jax.system.System` combines. Runs, training and single questions
all use it, and with it `rank`: the first four slots and the privacy check (the gate).
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from pbr_jax.base.types import Candidate, Document, Example
from pbr_jax.llm.protocol import OnBatch, Score
from pbr_jax.text.prompts import Written


class Query(NamedTuple):
    """The texts to search for, and a query vector [d] if the expansion computed one."""

    texts: tuple[str, ...]
    vector: np.ndarray | None = None


class Neighbour(NamedTuple):
    """A user whose history is searched, and the weight of that user's scores.

    `Neighbour("")` stands for the shared documents, which belong to no user.
    """

    user_id: str
    weight: float = 1.0


class Answer(NamedTuple):
    """A model's raw answer and its prompt.

    `probabilities` are those of the task's labels or of the question's options, and add up to 1. None: not
    all of them were scored. If options were listed in several orders, `places` contains a share for each
    position in the list: in how many of the orders the option at this position was the most probable.
    """

    text: str
    prompt: Written
    prompt_tokens: int
    probabilities: Mapping[str, float] | None = None
    places: tuple[float, ...] | None = None


Examples = Sequence[Example]
Ranking = list[Candidate]
Queries = Sequence[Query]
"""The queries of each example."""
Searched = Sequence[Sequence[Neighbour]]
"""The users whose histories are searched for each example."""

ExpandSlot = Callable[[Examples], list[Query]]
NeighboursSlot = Callable[[Examples], list[list[Neighbour]]]
RetrieveSlot = Callable[[Examples, Queries, Searched], list[Ranking]]
SelectSlot = Callable[[Examples, Queries, Sequence[Ranking]], list[Ranking]]
PromptWriter = Callable[[Examples, Sequence[Ranking]], list[Written]]


@runtime_checkable
class GenerateSlot(Protocol):
    """Answers examples, given their documents. Calls `on_batch(positions, texts)` as answers are finished."""

    def __call__(
        self,
        examples: Examples,
        rankings: Sequence[Ranking],
        write: PromptWriter,
        *,
        on_batch: OnBatch | None = None,
    ) -> list[Answer]: ...


OnScored = Callable[[int], object]
"""A function that is called with the number of newly scored targets."""


@runtime_checkable
class Scoring(Protocol):
    """A generate slot that computes its own likelihood. `score` returns the prompt of each example, and the
    log-probability and token count of its target."""

    def score(
        self,
        examples: Examples,
        rankings: Sequence[Ranking],
        write: PromptWriter,
        *,
        on_batch: OnScored | None = None,
    ) -> list[tuple[Written, Score]]: ...


class Pipeline(NamedTuple):
    """The first four slots of a system, which choose and order the documents of a prompt."""

    expand: ExpandSlot
    neighbours: NeighboursSlot
    retrieve: RetrieveSlot
    select: SelectSlot


@dataclass(frozen=True)
class Tally:
    """Counts, and seconds by part of the computation."""

    counts: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Adds the duration of a `with` block to the seconds of a part."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - start


def rank(
    pipeline: Pipeline, examples: Examples, collaboration: str, users: Searched | None = None
) -> list[Ranking]:
    """Applies the first four slots, and returns the ordered documents of every example.

    `users` is the result of `pipeline.neighbours`, if it is known.

    Raises RuntimeError if a ranking contains another user's document and `collaboration` is not "text". This
    check applies to every method. Shared documents are not private, so they pass it. It comes twice, because
    some ways to select ask a language model about what was retrieved.
    """
    queries = pipeline.expand(examples)
    users = pipeline.neighbours(examples) if users is None else users
    found = pipeline.retrieve(examples, queries, users)
    refuse_foreign(examples, found, collaboration)
    rankings = pipeline.select(examples, queries, found)
    refuse_foreign(examples, rankings, collaboration)
    return [list(ranking) for ranking in rankings]


def refuse_foreign(examples: Examples, rankings: Sequence[Ranking], collaboration: str) -> None:
    """The privacy check (the gate): raises RuntimeError if a ranking contains another user's document and
    `collaboration` is not "text"."""
    for example, ranking in zip(examples, rankings, strict=True):
        foreign = [c.document.id for c in ranking if not _is_open_to(example.user_id, c.document)]
        if foreign and collaboration != "text":
            raise RuntimeError(
                f"example {example.id}: documents {foreign} belong to other users, but collaboration is "
                f"{collaboration!r}; nothing was written"
            )


def _is_open_to(user_id: str, document: Document) -> bool:
    """Whether a user may see a document at any level of collaboration."""
    return not document.user_id if document.shared else document.user_id == user_id

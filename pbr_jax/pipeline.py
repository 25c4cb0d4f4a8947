"""One pipeline, six slots: how a question of a user becomes a personalized answer.

::

     (user, query)
         │ expand      query text → what is searched for
         │ neighbours  user → users whose histories are searched
         │ retrieve    histories → scored candidates
         │ select      candidates → the ordered documents of the prompt
         │ prompt      question, documents, token budget → messages
         │ generate    question, documents, prompts → answer
         ▼
      answer

A slot is a plain callable on a batch of examples; a system is a choice of methods (`pbr_jax.methods`), one
file each. `pbr_jax.system.System` binds them: runs, training and single questions all go through it, and
through `rank` here, the first four slots and the privacy check (the gate).
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from pbr_jax.llm.protocol import OnBatch, Score
from pbr_jax.text.prompts import Written
from pbr_jax.types import Candidate, Document, Example


class Query(NamedTuple):
    """What is searched for: texts, and a vector [d] where an expansion has combined several."""

    texts: tuple[str, ...]
    vector: np.ndarray | None = None


class Neighbour(NamedTuple):
    """A user whose history is searched, and the weight of that user's scores.

    `Neighbour("")` stands for the shared documents, which nobody owns.
    """

    user_id: str
    weight: float = 1.0


class Answer(NamedTuple):
    """A model's raw answer, and the prompt that it was made from.

    `probabilities` of the task's labels, or of the question's options, which add up to 1, where all of them
    were scored. `places`: in which share of the orders in which options were listed that at each place was
    the most probable one.
    """

    text: str
    prompt: Written
    prompt_tokens: int
    probabilities: Mapping[str, float] | None = None
    places: tuple[float, ...] | None = None


Examples = Sequence[Example]
Ranking = list[Candidate]

ExpandSlot = Callable[[Examples], list[Query]]
NeighboursSlot = Callable[[Examples], list[list[Neighbour]]]
RetrieveSlot = Callable[[Examples, Sequence[Query], Sequence[Sequence[Neighbour]]], list[Ranking]]
SelectSlot = Callable[[Examples, Sequence[Query], Sequence[Ranking]], list[Ranking]]
PromptWriter = Callable[[Examples, Sequence[Ranking]], list[Written]]


@runtime_checkable
class GenerateSlot(Protocol):
    """Answers to examples from their documents; `on_batch(positions, texts)` is called with
    finished ones."""

    def __call__(
        self,
        examples: Examples,
        rankings: Sequence[Ranking],
        write: PromptWriter,
        *,
        on_batch: OnBatch | None = None,
    ) -> list[Answer]: ...


OnScored = Callable[[int], object]
"""Called with how many more targets are scored."""


@runtime_checkable
class Scoring(Protocol):
    """A generate component with its own likelihood: for each example the prompt used, the log-probability
    and token count of the target."""

    def score(
        self,
        examples: Examples,
        rankings: Sequence[Ranking],
        write: PromptWriter,
        *,
        on_batch: OnScored | None = None,
    ) -> list[tuple[Written, Score]]: ...


class Pipeline(NamedTuple):
    """The first four slots of a system: from a question to the ordered documents of its prompt."""

    expand: ExpandSlot
    neighbours: NeighboursSlot
    retrieve: RetrieveSlot
    select: SelectSlot


@dataclass(frozen=True)
class Tally:
    """Counters and timings."""

    counts: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Adds the seconds of a block to those of this part."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - start


def rank(
    pipeline: Pipeline,
    examples: Examples,
    collaboration: str,
    users: Sequence[Sequence[Neighbour]] | None = None,
) -> list[Ranking]:
    """The first four slots: ordered documents for every example.

    `users` are what `pipeline.neighbours` gives, where that is known.

    Raises RuntimeError rather than pass another user's document on when `collaboration` is not "text":
    whatever a method does, this is where private text is stopped. Shared documents are nobody's private text.
    """
    queries = pipeline.expand(examples)
    users = pipeline.neighbours(examples) if users is None else users
    rankings = pipeline.select(examples, queries, pipeline.retrieve(examples, queries, users))
    refuse_foreign(examples, rankings, collaboration)
    return [list(ranking) for ranking in rankings]


def refuse_foreign(examples: Examples, rankings: Sequence[Ranking], collaboration: str) -> None:
    """The gate: raises RuntimeError where a ranking holds another user's document and `collaboration` is not
    "text"."""
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

"""One pipeline, six slots: how a question of a user becomes a personalized answer.

     (user, query)
         │ expand      query text → what is searched for
         │ neighbours  user → users whose histories are searched
         │ retrieve    histories → scored candidates
         │ select      candidates → the ordered documents of the prompt
         │ prompt      task, question, documents, token budget → messages
         │ generate    messages → answer
         ▼
      answer

A slot is a plain callable on a batch of examples; a system is a choice of six callables (`build`). Runs
and single questions (`pbr-jax ask`) flow through the same functions.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from pbr_jax.config import Config
from pbr_jax.data.tasks import Task
from pbr_jax.index.store import Store
from pbr_jax.llm.protocol import LLM
from pbr_jax.pipeline.rerank import Reranker
from pbr_jax.pipeline.users import Users
from pbr_jax.text import prompts
from pbr_jax.text.encode import TextEncoder
from pbr_jax.types import Candidate, Example


class Query(NamedTuple):
    """What is searched for: texts, and a vector [d] where an expansion has combined several."""

    texts: tuple[str, ...]
    vector: np.ndarray | None = None


class Neighbour(NamedTuple):
    """A user whose history is searched, and how much that user's documents count."""

    user_id: str
    weight: float = 1.0


Examples = Sequence[Example]
Ranking = list[Candidate]
Messages = list[dict[str, str]]

Expand = Callable[[Examples], list[Query]]
FindNeighbours = Callable[[Examples], list[list[Neighbour]]]
Retrieve = Callable[[Examples, Sequence[Query], Sequence[Sequence[Neighbour]]], list[Ranking]]
Select = Callable[[Examples, Sequence[Query], Sequence[Ranking]], list[Ranking]]
Prompt = Callable[[Examples, Sequence[Ranking]], list[Messages]]
Generate = Callable[..., list[str]]

Personalize = Callable[[Examples, np.ndarray], np.ndarray]
"""Query vectors [e d] to those whose inner product with a document also counts what the user prefers."""


class Pipeline(NamedTuple):
    """A system: one callable a slot. `generate` is None where only documents are wanted."""

    expand: Expand
    neighbours: FindNeighbours
    retrieve: Retrieve
    select: Select
    prompt: Prompt
    generate: Generate | None


@dataclass(frozen=True)
class Tally:
    """What slots count on the way, and the seconds that parts of them take; both reach results.json."""

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


@dataclass(frozen=True)
class Resources:
    """What the slots stand on; those that a system does not use are None.

    `embeddings` are the document vectors, float32 [n, d], row by row as in `store`; `encoder` made them, and
    encodes queries.
    """

    task: Task
    store: Store
    encoder: TextEncoder | None = None
    embeddings: np.ndarray | None = None
    llm: LLM | None = None
    users: Users | None = None
    personalize: Personalize | None = None
    reranker: Reranker | None = None
    tally: Tally = field(default_factory=Tally)


def build(config: Config, resources: Resources, depth: int) -> Pipeline:
    """The six slots of a config; `depth` is how many documents each user contributes to the ranking."""
    from pbr_jax.pipeline import expand, generate, neighbours, retrieve, select

    return Pipeline(
        expand=expand.METHODS[config.expand.method](config, resources),
        neighbours=neighbours.METHODS[config.neighbours.method](config, resources),
        retrieve=retrieve.METHODS[config.retrieve.method](config, resources, depth),
        select=select.METHODS[config.select.method](config, resources),
        prompt=generate.prompt(config, resources),
        generate=generate.ipa(config, resources) if resources.llm is not None else None,
    )


def rank(pipeline: Pipeline, examples: Examples, collaboration: str) -> list[Ranking]:
    """The first four slots: ordered documents for every example.

    Raises RuntimeError rather than pass another user's document on when `collaboration` is not "text":
    whatever a retriever does, this is where private text is stopped.
    """
    queries = pipeline.expand(examples)
    users = pipeline.neighbours(examples)
    rankings = pipeline.select(examples, queries, pipeline.retrieve(examples, queries, users))
    for example, ranking in zip(examples, rankings, strict=True):
        foreign = [c.document.id for c in ranking if c.document.user_id != example.user_id]
        if foreign and collaboration != "text":
            raise RuntimeError(
                f"example {example.id}: documents {foreign} belong to other users, but collaboration is "
                f"{collaboration!r}; nothing was written"
            )
    return rankings


def answer(pipeline: Pipeline, task: Task, examples: Examples, rankings: Sequence[Ranking]) -> list[str]:
    """The last two slots: the answer to every example, given its documents."""
    if pipeline.generate is None:
        raise ValueError("this pipeline has no language model; set generate.method to ipa")
    texts = pipeline.generate(pipeline.prompt(examples, rankings))
    return [prompts.answer(task, text) for text in texts]

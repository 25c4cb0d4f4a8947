"""What the expansions share: asking the language model, looking into the history, and vectors of texts."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeVar

import numpy as np

from pbr_jax.config import Config
from pbr_jax.llm.protocol import LLM
from pbr_jax.pipeline import retrieve
from pbr_jax.pipeline.pipeline import Examples, Neighbour, Query, Ranking, Resources
from pbr_jax.text.encode import Role, TextEncoder

_T = TypeVar("_T")

REPEATS = 5  # of the query beside a long text, so that its words keep their weight (query2doc, section 3)


def model(resources: Resources) -> LLM:
    if resources.llm is None:
        raise ValueError("this expansion asks a language model; none was given")
    return resources.llm


def ask(
    config: Config, resources: Resources, prompts: Sequence[str], read: Callable[[str], _T | None]
) -> list[_T | None]:
    """The model's answers as `read` understands them, None where it does not. Greedy, and counted."""
    if not prompts:
        return []
    llm, tally = model(resources), resources.tally
    messages = [[{"role": "user", "content": prompt}] for prompt in prompts]
    with tally.timed("expand_llm"):
        texts = llm.generate(messages, max_new_tokens=config.expand.max_new_tokens, seed=config.seed)
    answers = [read(text) for text in texts]
    tally.counts["expand_answers"] += len(answers)
    tally.counts["expand_parse_failures"] += sum(answer is None for answer in answers)
    tally.counts["expand_prompt_tokens"] += sum(map(llm.num_tokens, messages))
    tally.counts["expand_answer_tokens"] += sum(map(llm.count, texts))
    return answers


def look(
    config: Config, resources: Resources, examples: Examples, queries: Sequence[Query], k: int
) -> list[Ranking]:
    """The `k` nearest documents of the asking user's own history."""
    search = retrieve.dense(config, resources, k)
    with resources.tally.timed("expand_history"):
        return search(examples, queries, [[Neighbour(example.user_id)] for example in examples])


def joined(resources: Resources, queries: Sequence[str], additions: Sequence[Sequence[str]]) -> list[Query]:
    """Each query with texts added: the vector is that of one text, the query first (query2doc)."""
    whole = [" ".join((query, *added)) for query, added in zip(queries, additions)]
    return with_vectors(words(queries, additions), vectors(resources, whole, "query"))


def averaged(resources: Resources, queries: Sequence[str], additions: Sequence[Sequence[str]]) -> list[Query]:
    """Each query with passages added: the vector is the mean of the query's and the passages' (HyDE)."""
    texts, own = words(queries, additions), vectors(resources, queries, "query")
    if own is None:
        return with_vectors(texts, None)
    sums, counts = sums_of(resources, additions, "document")
    return with_vectors(texts, (own + sums) / (1 + counts))


def words(queries: Sequence[str], additions: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """What word retrievers search for: the query, several times where long texts stand beside it."""
    return [(*[query] * REPEATS, *added) if added else (query,) for query, added in zip(queries, additions)]


def with_vectors(texts: Sequence[tuple[str, ...]], made: np.ndarray | None) -> list[Query]:
    if made is None:
        return [Query(of_query) for of_query in texts]
    return [Query(of_query, vector) for of_query, vector in zip(texts, made, strict=True)]


def vectors(resources: Resources, texts: Sequence[str], role: Role) -> np.ndarray | None:
    """Embeddings [n d], None where the run has no encoder."""
    return None if resources.encoder is None else encoded(resources, texts, role)


def encoded(resources: Resources, texts: Sequence[str], role: Role) -> np.ndarray:
    """Embeddings [n d]."""
    if resources.encoder is None:
        raise ValueError("this expansion compares texts by their vectors; no encoder was given")
    return _encoded(resources.encoder, tuple(texts), role)


@lru_cache(maxsize=4)
def _encoded(encoder: TextEncoder, texts: tuple[str, ...], role: Role) -> np.ndarray:
    """Kept, because the runs of a sweep ask for the same texts again."""
    return encoder.encode(texts, role=role)


def sums_of(
    resources: Resources, texts: Sequence[Sequence[str]], role: Role
) -> tuple[np.ndarray, np.ndarray]:
    """The sum [n d] of each list's embeddings, and how many they are [n 1]."""
    counts = np.array([len(of_query) for of_query in texts])
    made = encoded(resources, [text for of_query in texts for text in of_query], role)
    sums = np.zeros((len(texts), made.shape[1]), np.float32)
    np.add.at(sums, np.repeat(np.arange(len(texts)), counts), made)
    return sums, counts[:, None].astype(np.float32)

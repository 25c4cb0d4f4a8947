"""A small world: users with histories, an encoder of bags of words, and a scripted language model."""

import zlib
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from pbr_jax.base.types import Document, Example
from pbr_jax.corpus.store import Store
from pbr_jax.llm.protocol import Sampling, Score
from pbr_jax.pipeline import Tally
from pbr_jax.text.encode import TextEncoder

DIM = 32


class Bags(TextEncoder):
    """The normalised sum of a random vector for each word."""

    tokenizer: Any = SimpleNamespace(max_length=None)  # reads texts of any length

    def __init__(self) -> None:
        pass

    @property
    def dim(self) -> int:
        return DIM

    def prefix(self, role) -> str:
        return ""

    @property
    def fingerprint(self) -> str:
        return "bags"

    def vectors_key(self, role: str) -> str:
        return f"bags {role}"

    def encode(self, texts: Sequence[str], *, role: str = "document", progress: bool = False) -> np.ndarray:
        return np.stack([vector(text) for text in texts]) if texts else np.zeros((0, DIM), np.float32)


def vector(text: str) -> np.ndarray:
    words = text.lower().split() or [""]
    total = sum(np.random.default_rng(zlib.crc32(word.encode())).normal(size=DIM) for word in words)
    return np.asarray(total / np.linalg.norm(total), np.float32)


class World(NamedTuple):
    """What an expansion may ask for."""

    tally: Tally
    store: Store
    encoder: TextEncoder | None
    embeddings: np.ndarray | None
    llm: Any


class Scripted:
    """A language model that answers by a function of the prompt, and remembers what it was asked."""

    fingerprint = "scripted"

    def __init__(
        self, answer: Callable[[str], str], score: Callable[[str, str], float] | None = None
    ) -> None:
        self.answer, self.scored = answer, score
        self.prompts: list[str] = []
        self.samplings: list[Sampling] = []

    def generate(self, prompts: Sequence[Any], sampling: Sampling, **_: Any) -> list[str]:
        contents = [prompt[0]["content"] for prompt in prompts]
        self.prompts += contents
        self.samplings.append(sampling)
        return [self.answer(content) for content in contents]

    def score(self, prompts: Sequence[Any], targets: Sequence[str], **_: Any) -> list[Score]:
        assert self.scored is not None
        contents = [prompt[0]["content"] for prompt in prompts]
        self.prompts += contents
        return [Score(self.scored(content, target), 2) for content, target in zip(contents, targets)]

    def count(self, text: str) -> int:
        return len(text.split())

    def truncate(self, text: str, tokens: int) -> str:
        return " ".join(text.split()[:tokens])

    def render(self, prompt: Any) -> str:
        return prompt[0]["content"]

    def num_tokens(self, prompt: Any) -> int:
        return len(prompt[0]["content"].split())


HISTORIES = {
    "ann": ["green tea in the morning", "black tea at noon", "my dog sleeps", "a walk with my dog",
            "rain again in bergen", "moved to bergen in may"],
    "bob": ["SECRET canary of bob about tea", "bob runs marathons"],
    "cyd": [],
    "dan": ["only one note on tea"],
}  # fmt: skip


def example(user: str, query: str = "which tea do i like") -> Example:
    profile = tuple(Document(f"{user}{i}", user, text) for i, text in enumerate(HISTORIES[user]))
    return Example(f"q-{user}", user, query, query, None, profile)

"""An encoder whose vectors are a function of the text alone, and remembers what it was asked."""

import zlib
from types import SimpleNamespace
from typing import Any

import numpy as np

from pbr_jax.text.encode import TextEncoder


def vector(text: str) -> np.ndarray:
    """A unit vector, of which some mean of all is left."""
    drawn = np.random.default_rng(zlib.crc32(text.encode())).normal(size=8) + 0.5
    return (drawn / np.linalg.norm(drawn)).astype(np.float32)


class Hashed(TextEncoder):
    tokenizer: Any = SimpleNamespace(max_length=None)  # reads texts of any length

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []

    def encode(self, texts, *, role="document", progress=False) -> np.ndarray:
        self.asked.append((role, *texts))
        return np.stack([vector(text) for text in texts]) if texts else np.zeros((0, 8), np.float32)

"""Multiple-choice questions as prompts: the answers behind the question, by letters, in several orders.

Language models prefer some places and letters whatever stands there (Zheng et al., "Large Language Models Are
Not Robust Multiple Choice Selectors", 2024, https://arxiv.org/abs/2309.03882). Averaged over rotations in
which every answer stands at every place, a preference that adds to a place's log-probability cancels.
"""

import hashlib
import string
from collections.abc import Sequence

import numpy as np

LETTERS = string.ascii_uppercase


def orders(count: int, most: int | None, *, seed: int, name: str) -> list[list[int]]:
    """Orders of so many answers: one that seed and question draw, and its rotations, at most `most`.

    All rotations (`most` None) put every answer at every place once; fewer are evenly spaced.
    """
    digest = hashlib.sha256(f"{seed}\0options\0{name}".encode()).digest()
    first = np.random.default_rng(int.from_bytes(digest[:8], "big")).permutation(count)
    number = count if most is None else min(most, count)
    return [np.roll(first, -(count * turn // number)).tolist() for turn in range(number)]


def listed(text: str, options: Sequence[str]) -> str:
    """The question with its answers behind it, a letter and a line each."""
    lines = [
        f"{letter}. {' '.join(option.split())}" for letter, option in zip(LETTERS, options, strict=False)
    ]
    return "\n".join([f"{text}\n\nAnswers to choose from:", *lines])

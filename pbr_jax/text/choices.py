"""Multiple-choice questions as prompts, and prompts whose question says nothing.

The answers stand behind the question, by letters, in several orders. Language models prefer some places and
letters whatever stands there (Zheng et al., "Large Language Models Are Not Robust Multiple Choice Selectors",
2024, https://arxiv.org/abs/2309.03882). Averaged over rotations in which every answer stands at every place,
a preference that adds to a place's log-probability cancels. What a model prefers before it has read a
question shows in a content-free prompt (Zhao et al., "Calibrate Before Use: Improving Few-Shot Performance of
Language Models", 2021, https://arxiv.org/abs/2102.09690, section 5).
"""

import re
import string
from collections.abc import Sequence

import numpy as np

from pbr_jax.base.draws import generator
from pbr_jax.base.types import Example
from pbr_jax.text.prompts import Written

LETTERS = string.ascii_uppercase


def orders(count: int, most: int | None, *, seed: int, name: str) -> list[list[int]]:
    """Orders of so many answers: one that seed and question draw, and its rotations, at most `most`.

    All rotations (`most` None) put every answer at every place once; fewer are evenly spaced.
    """
    first = generator(seed, "options", name).permutation(count)
    number = count if most is None else min(most, count)
    return [np.roll(first, -(count * turn // number)).tolist() for turn in range(number)]


def listed(text: str, options: Sequence[str]) -> str:
    """The question with its answers behind it, a letter and a line each."""
    lines = [
        f"{letter}. {' '.join(option.split())}" for letter, option in zip(LETTERS, options, strict=False)
    ]
    return "\n".join([f"{text}\n\nAnswers to choose from:", *lines])


NOTHING = "N/A"
# LaMP-1 quotes its titles, and titles may hold quotes: each ends before what has to follow it.
_TITLES = re.compile(r'".*?"(?=, which |\s*\[2\]:\s*"|\s*$)', re.DOTALL)


def content_free_input(example: Example) -> str:
    """The input with `NOTHING` in place of what is asked about; its instruction stays."""
    if example.query and example.query in example.input:
        before, _, after = example.input.rpartition(example.query)
        return f"{before}{NOTHING}{after}"
    replaced, count = _TITLES.subn(f'"{NOTHING}"', example.input)
    return replaced if count else NOTHING


def content_free(example: Example, written: Written) -> Written:
    """The example's prompt with the content-free input; the documents stay, cut as they were."""
    *before, user = written.messages
    start, end = written.asked
    free, content = content_free_input(example), user["content"]
    messages = [*before, {**user, "content": f"{content[:start]}{free}{content[end:]}"}]
    return Written(messages, written.documents, (start, start + len(free)))

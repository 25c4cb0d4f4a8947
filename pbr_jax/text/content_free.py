"""Prompts whose question says nothing: what a model prefers before it has read one.

Zhao et al., "Calibrate Before Use: Improving Few-Shot Performance of Language Models", 2021,
https://arxiv.org/abs/2102.09690, section 5.
"""

import re

from pbr_jax.base.types import Example
from pbr_jax.text.prompts import Written

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

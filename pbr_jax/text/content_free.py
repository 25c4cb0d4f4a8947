"""Prompts whose question says nothing: what a model prefers before it has read one.

Zhao et al., "Calibrate Before Use: Improving Few-Shot Performance of Language Models", 2021,
https://arxiv.org/abs/2102.09690, section 5.
"""

import re

from pbr_jax.data.tasks import Task
from pbr_jax.text.forms import FORMS
from pbr_jax.text.prompts import CLOSE, Written
from pbr_jax.types import Example

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


def content_free(task: Task, example: Example, written: Written) -> Written:
    """The example's prompt with the content-free input; the documents stay, cut as they were."""
    form = FORMS[task.name]
    *before, user = written.messages
    # A document cannot hold the mark, and the input comes after it.
    head, mark, _ = user["content"].partition(f"{CLOSE}\n{form.ask}\n\n") if written.documents else ("",) * 3
    cue = f"\n{form.cue}" if before else ""  # where no wording fits, the input stands alone
    content = f"{head}{mark}{content_free_input(example)}{cue}"
    return Written([*before, {**user, "content": content}], written.documents)

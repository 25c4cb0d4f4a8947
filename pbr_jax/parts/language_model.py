"""The frozen language model, and the prompts that are counted in its tokens."""

from collections.abc import Sequence
from functools import partial

import pbr_jax.llm
from pbr_jax.data import Task
from pbr_jax.graph import Given, Node
from pbr_jax.llm import LLM
from pbr_jax.options import LLM as Options
from pbr_jax.options import Prompt
from pbr_jax.parts.run import Run, once
from pbr_jax.pipeline import Examples, PromptWriter, Ranking
from pbr_jax.text import prompts
from pbr_jax.text.forms import form_of
from pbr_jax.text.prompts import Written


@once
def frozen(run: Run) -> Node:
    """The language model as it comes, behind the cache of its answers."""
    options = run.config.llm
    # The batch plan and the devices can move the last bit of a logit.
    return Given(
        "llm",
        (options,),
        {},
        _load,
        identity=lambda: [
            _load(options).fingerprint,
            options.batch_size,
            options.tensor_parallel,
        ],
    )


def _load(options: Options) -> LLM:
    return pbr_jax.llm.load(options)


@once
def task(run: Run) -> Node:
    """What is asked."""
    return Given("task", (run.task,), {}, _same)


def _same(task: Task) -> Task:
    return task


@once
def writer(run: Run) -> Node:
    """In-prompt augmentation: the documents, then the input, within the config's budget of tokens."""
    needs = {"llm": frozen(run), "task": task(run)}
    check = partial(form_of, run.task.name, run.config.prompt.form)
    return Given("prompts", (run.config.prompt,), needs, _writer, check=check)


def _writer(options: Prompt, *, llm: LLM, task: Task) -> PromptWriter:
    def write(examples: Examples, rankings: Sequence[Ranking]) -> list[Written]:
        return [
            prompts.write(
                task,
                example,
                [candidate.document for candidate in ranking],
                count=llm.count,
                truncate=llm.truncate,
                max_tokens=options.max_tokens,
                gamma=options.gamma,
                form=options.form,
            )
            for example, ranking in zip(examples, rankings, strict=True)
        ]

    return write

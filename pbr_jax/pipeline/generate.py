"""Slots 5 and 6: the prompt within its token budget, and the answer of the language model."""

from collections.abc import Callable, Mapping, Sequence

from pbr_jax.config import Config
from pbr_jax.pipeline.pipeline import Examples, Generate, Messages, Prompt, Ranking, Resources
from pbr_jax.text import prompts


def prompt(config: Config, resources: Resources) -> Prompt:
    """In-prompt augmentation: the first `select.k` documents (default `retrieve.k`), then the input."""
    k = config.select.k or config.retrieve.k * config.neighbours.m

    def write(examples: Examples, rankings: Sequence[Ranking]) -> list[Messages]:
        llm = resources.llm
        if llm is None:
            raise ValueError("prompts are counted in the language model's tokens; none was given")
        return [
            prompts.write(
                resources.task,
                example,
                [candidate.document for candidate in ranking[:k]],
                count=llm.count,
                truncate=llm.truncate,
                max_tokens=config.prompt.max_tokens,
                gamma=config.prompt.gamma,
            )
            for example, ranking in zip(examples, rankings, strict=True)
        ]

    return write


def ipa(config: Config, resources: Resources) -> Generate:
    """The model's raw continuation of each prompt.

    `done` holds the texts of finished batches by position, `on_batch(positions, texts)` is told of each new
    one; together they let a killed run continue with the same batches.
    """
    llm, task = resources.llm, resources.task
    if llm is None:
        raise ValueError("generation needs a language model; none was given")

    def generate(
        messages: Sequence[Messages],
        *,
        done: Mapping[int, str] | None = None,
        on_batch: Callable[[Sequence[int], Sequence[str]], None] | None = None,
    ) -> list[str]:
        return llm.generate(
            messages,
            max_new_tokens=config.generate.max_new_tokens or task.max_new_tokens,
            temperature=config.generate.temperature,
            top_p=config.generate.top_p,
            seed=config.seed,
            done=done,
            on_batch=on_batch,
        )

    return generate

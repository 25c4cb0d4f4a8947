"""Slots 5 and 6: the prompt within its token budget, and the answer of the language model."""

from collections.abc import Sequence

from pbr_jax.config import Config
from pbr_jax.llm.protocol import OnBatch
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
    """The model's raw continuation of each prompt; `on_batch(positions, texts)` is told of finished ones."""
    llm, task, options = resources.llm, resources.task, config.generate
    if llm is None:
        raise ValueError("generation needs a language model; none was given")

    def generate(messages: Sequence[Messages], *, on_batch: OnBatch | None = None) -> list[str]:
        return llm.generate(
            messages,
            max_new_tokens=options.max_new_tokens or task.max_new_tokens,
            temperature=options.temperature,
            top_p=options.top_p,
            num_beams=options.num_beams,
            seed=config.seed,
            on_batch=on_batch,
        )

    return generate

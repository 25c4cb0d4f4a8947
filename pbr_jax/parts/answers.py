"""Answers: the last two slots over the evaluated questions, kept on disk."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pbr_jax import terminal
from pbr_jax.corpus.store import Store
from pbr_jax.files import write_text
from pbr_jax.graph import Slot, Stage
from pbr_jax.llm import naming
from pbr_jax.options import Generate
from pbr_jax.parts import language_model
from pbr_jax.parts.rankings import Rankings
from pbr_jax.parts.run import Run, chunks, line, metered, read_tally, write_tally
from pbr_jax.pipeline import Answer, GenerateSlot, PromptWriter, Ranking, Tally
from pbr_jax.types import Example


class Answers:
    """Raw answers on disk, in the order of the examples, with what the model was shown."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self) -> Iterator[dict[str, Any]]:
        """`text`, `prompt_tokens`, `documents` (how many stood in the prompt), `messages` and
        `probabilities` (of the labels, or None) of each."""
        with (self._folder / "generations.jsonl").open(encoding="utf-8") as file:
            yield from map(json.loads, file)

    @property
    def tally(self) -> Tally:
        """What was counted and timed when the answers were made."""
        return read_tally(self._folder)


def documents_in_prompt(run: Run) -> int:
    """How many documents of a ranking are offered to the prompt."""
    config = run.config
    return config.select.k or config.retrieve.k * config.neighbours.m


def answers(run: Run, method: Generate, ranked: Stage) -> Stage:
    """The raw answer to every evaluated question from the documents that were ranked for it."""
    needs = {
        "store": run.data,
        "ranked": ranked,
        "write": language_model.writer(run),
        "generate": Slot(method, run),
    }
    return Stage("generate", (documents_in_prompt(run),), needs, _generate, Answers)


def _generate(
    folder: Path, k: int, *, store: Store, ranked: Rankings, write: PromptWriter, generate: Any
) -> None:
    tally = Tally()
    answer: GenerateSlot = generate(tally)
    examples, rankings = list(store.examples()), []
    for chunk in chunks(ranked.read(store)):
        rankings += [ranking[:k] for ranking in chunk]
    with metered(folder):
        answered = _answered(answer, examples, rankings, write)
    lines = [
        line(
            {
                "text": found.text,
                "prompt_tokens": found.prompt_tokens,
                "documents": found.prompt.documents,
                "messages": found.prompt.messages,
                "probabilities": found.probabilities,
            }
        )
        for found in answered
    ]
    write_text(folder / "generations.jsonl", "".join(lines))
    write_tally(tally, folder)


def _answered(
    answer: GenerateSlot, examples: list[Example], rankings: list[Ranking], write: PromptWriter
) -> list[Answer]:
    """Each raw answer is in the cache once it is finished, where the next attempt finds it."""
    with terminal.bar(desc="answers", total=len(examples)) as bar:

        def on_batch(positions: Sequence[int], texts: Sequence[str]) -> None:
            bar.update(len(positions))

        with naming(example.id for example in examples):
            return answer(examples, rankings, write, on_batch=on_batch)

"""Answers: the last two slots over any range of a split's questions, kept on disk."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pbr_jax.base import terminal
from pbr_jax.base.types import Example
from pbr_jax.graph import Slot, Stage, builds_nodes
from pbr_jax.options import Generate
from pbr_jax.stages import language_model
from pbr_jax.stages.rankings import EVALUATED, Questions, Rankings
from pbr_jax.stages.records import Records
from pbr_jax.stages.run import Run, chunks, metered, write_tally
from pbr_jax.stages.together import by_questions
from pbr_jax.system import System


class Answers(Records):
    """Raw answers, with what the model was shown: `text`, `prompt_tokens`, `documents` (how many stood in the
    prompt), `messages` and `probabilities` (of the labels or options, or None) of each, and `places` where
    options were listed (`pipeline.Answer`)."""

    file = "generations.jsonl"


@builds_nodes
def documents_in_prompt(run: Run) -> int:
    """How many documents of a ranking are offered to the prompt."""
    config = run.config
    return config.select.k or config.retrieve.k * config.neighbours.m


@builds_nodes
def answers(
    run: Run, method: Generate, ranked: Stage, questions: Questions = EVALUATED, label: str = "generate"
) -> Stage:
    """The raw answer to every question from the documents that were ranked for it."""
    needs = {
        "store": run.data,
        "ranked": ranked,
        "write": language_model.writer(run),
        "generate": Slot(method, run),
    }
    return Stage(
        "generate",
        (questions, documents_in_prompt(run)),
        needs,
        _generate,
        Answers,
        label=label,
        together=by_questions(Answers, questions),
    )


def _generate(folder: Path, questions: Questions, k: int, *, ranked: Rankings, **parts: Any) -> None:
    system = System(parts, documents=k)
    keep_answers(folder, list(questions.read(system.store)), ranked, system)


def keep_answers(folder: Path, examples: list[Example], ranked: Rankings, system: System) -> None:
    """Answers some questions, and keeps that in a folder for `Answers`.

    Each raw answer is in the cache once it is finished, where the next attempt finds it.
    """
    rankings = ranked.read(system.store, examples)
    with terminal.bar(desc="answers", total=len(examples)) as bar:

        def on_batch(positions: Sequence[int], texts: Sequence[str]) -> None:
            bar.update(len(positions))

        def answered() -> Iterator[tuple[str, dict[str, Any]]]:
            for pairs in chunks(zip(examples, rankings, strict=True)):
                chunk, shown = zip(*pairs, strict=True)
                with metered(folder):
                    answers = system.answer(chunk, shown, on_batch=on_batch)
                for example, answer in zip(chunk, answers, strict=True):
                    yield (
                        example.id,
                        {
                            "text": answer.text,
                            "prompt_tokens": answer.prompt_tokens,
                            **answer.prompt.record,
                            "probabilities": answer.probabilities,
                            **({} if answer.places is None else {"places": answer.places}),
                        },
                    )

        Answers.keep(folder, answered())
    write_tally(system.tally, folder)

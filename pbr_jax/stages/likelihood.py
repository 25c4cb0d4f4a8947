"""How probable the language model finds what the user really wrote, given the prompt of the run.

No answer is decoded: the target is read once behind the prompt (PURPLE's reward, Du et al., 2026, Eq. 4). So
the measure is graded where answers of a small model are all alike, and it costs a fraction of theirs.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from pbr_jax.base import terminal
from pbr_jax.base.types import Example, UserError
from pbr_jax.graph import Slot, Stage, builds_nodes
from pbr_jax.options import Generate
from pbr_jax.stages import language_model
from pbr_jax.stages.answers import documents_in_prompt
from pbr_jax.stages.generator import generator
from pbr_jax.stages.rankings import EVALUATED, Questions, Rankings
from pbr_jax.stages.records import Records
from pbr_jax.stages.run import Run, chunks, metered, write_tally
from pbr_jax.stages.together import by_questions
from pbr_jax.system import System


class Likelihoods(Records):
    """log p(target | prompt) of each question, with what the model was shown: `total` (nats), `tokens` and
    `bytes` of the target (None where it is withheld); `prompt_tokens`, `documents` and `messages`
    as of an answer."""

    file = "likelihoods.jsonl"


@builds_nodes
def wanted(run: Run, method: Generate | None) -> bool:
    """Whether targets are scored: where answers are and the model can, or as eval.likelihood says."""
    asked = run.config.eval.likelihood
    if asked == "auto":
        return method is not None and run.config.llm.can_score
    return asked == "on"


@builds_nodes
def likelihoods(
    run: Run,
    ranked: Stage,
    method: Generate | None = None,
    questions: Questions = EVALUATED,
    label: str = "likelihood",
) -> Stage:
    """The likelihood of every question's target after the prompt with its documents, or as the method that
    answers has it."""
    needs = {
        "store": run.data,
        "ranked": ranked,
        "write": language_model.writer(run),
        "llm": generator(run),
        **({"generate": Slot(method, run)} if method is not None and method.own_likelihood else {}),
    }
    return Stage(
        "likelihood",
        (questions, documents_in_prompt(run)),
        needs,
        _score,
        Likelihoods,
        label=label,
        check=partial(run.config.llm.check_scoring, "eval.likelihood on"),
        together=by_questions(Likelihoods, questions),
    )


def _score(folder: Path, questions: Questions, k: int, *, ranked: Rankings, **parts: Any) -> None:
    system = System(parts, documents=k)
    keep_likelihoods(folder, list(questions.read(system.store)), ranked, system)


def keep_likelihoods(folder: Path, examples: list[Example], ranked: Rankings, system: System) -> None:
    """Scores the targets of some questions, and keeps that in a folder for `Likelihoods`.

    Each score is in the cache once it is there, where the next attempt finds it.
    """
    rankings = ranked.read(system.store, examples)
    with terminal.bar(desc="likelihoods", total=len(examples)) as bar:

        def scored() -> Iterator[tuple[str, dict[str, Any]]]:
            for pairs in chunks(zip(examples, rankings, strict=True)):
                chunk, shown = zip(*pairs, strict=True)
                try:
                    with metered(folder):
                        scores = system.score(chunk, shown, on_batch=bar.update)
                except UserError as error:
                    hint = "or set eval.likelihood off"
                    raise UserError(f"likelihood of the targets: {error}; {hint}") from error
                for example, (prompt, score) in zip(chunk, scores, strict=True):
                    yield (
                        example.id,
                        {
                            "total": score and score.total,
                            "tokens": score and score.tokens,
                            "bytes": None if example.target is None else len(example.target.encode()),
                            "prompt_tokens": system.llm.num_tokens(prompt.messages),
                            **prompt.record,
                        },
                    )

        Likelihoods.keep(folder, scored())
    write_tally(system.tally, folder)

"""Answers, and likelihoods of targets: the last two slots over any range of questions, kept on disk.

A likelihood says how probable the language model finds what the user really wrote, given the prompt of the
run. No answer is decoded: the target is read once behind the prompt (PURPLE's reward, Du et al., 2026, Eq.
4). So the measure is graded where answers of a small model are all alike, and it costs a fraction of theirs.

Each answer and each score is in the cache once it is finished, where the next attempt finds it.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pbr_jax.base.types import Example, UserError
from pbr_jax.graph import Node, Slot, Stage, builds_nodes
from pbr_jax.llm.protocol import Unanswered
from pbr_jax.options import Generate
from pbr_jax.pipeline import Ranking
from pbr_jax.stages import language_model
from pbr_jax.stages.generator import generator
from pbr_jax.stages.rankings import EVALUATED, Questions, Rankings
from pbr_jax.stages.records import Records
from pbr_jax.stages.run import Run
from pbr_jax.stages.together import by_questions
from pbr_jax.system import System


class Answers(Records):
    """Raw answers, with what the model was shown: `text`, `prompt_tokens`, `documents` (how many stood in the
    prompt), `messages` and `probabilities` (of the labels or options, or None) of each, and `places` where
    options were listed (`pipeline.Answer`). `unanswered`: why there is no answer."""

    file = "generations.jsonl"


class Likelihoods(Records):
    """log p(target | prompt) of each question, with what the model was shown: `total` (nats), `tokens` and
    `bytes` of the target (None where it is withheld); `prompt_tokens`, `documents` and `messages`
    as of an answer."""

    file = "likelihoods.jsonl"


@builds_nodes
def documents_in_prompt(run: Run) -> int:
    """How many documents of a ranking are offered to the prompt."""
    config = run.config
    return config.select.k or config.retrieve.k * config.neighbours.m


@builds_nodes
def answers(run: Run, method: Generate, ranked: Node) -> Stage:
    """The raw answer to every question from the documents that were ranked for it."""
    return _stage(run, "generate", keep_answers, Answers, ranked, {"generate": Slot(method, run)})


@builds_nodes
def wants_likelihoods(run: Run, method: Generate | None) -> bool:
    """Whether targets are scored: where answers are and the model can, or as eval.likelihood says."""
    wanted = run.config.eval.likelihood
    if wanted == "auto":
        return method is not None and run.config.llm.can_score
    return wanted == "on"


@builds_nodes
def likelihoods(run: Run, ranked: Node, method: Generate | None = None) -> Stage:
    """The likelihood of every question's target after the prompt with its documents, or as the method that
    answers has it."""
    needs: dict[str, Node] = {"llm": generator(run)}
    if method is not None and method.own_likelihood:
        needs["generate"] = Slot(method, run)
    check = partial(run.config.llm.check_scoring, "eval.likelihood on")
    return _stage(run, "likelihood", keep_likelihoods, Likelihoods, ranked, needs, check)


@builds_nodes
def _stage(
    run: Run,
    name: str,
    keep: Callable[..., None],
    kind: type[Records],
    ranked: Node,
    needs: dict[str, Node],
    check: Callable[[], None] | None = None,
) -> Stage:
    needs = {"store": run.data, "ranked": ranked, "write": language_model.writer(run), **needs}
    options = (EVALUATED, documents_in_prompt(run), run.config.collaboration)
    return Stage(
        name, options, needs, partial(_make, keep), kind, check=check, together=by_questions(kind, EVALUATED)
    )


def _make(
    keep: Callable[..., None],
    folder: Path,
    questions: Questions,
    k: int,
    collaboration: str,
    *,
    ranked: Rankings,
    **parts: Any,
) -> None:
    system = System(parts, collaboration=collaboration, documents=k)
    keep(folder, list(questions.read(system.store)), ranked, system)


def keep_answers(folder: Path, examples: list[Example], ranked: Rankings, system: System) -> None:
    """Answers some questions, and keeps that in a folder for `Answers`."""

    def work(advance: Callable[[int], Any], chunk: list[Example], shown: list[Ranking]) -> Any:
        for answer in system.answer(chunk, shown, on_batch=lambda positions, _: advance(len(positions))):
            yield {
                "text": answer.text,
                "prompt_tokens": answer.prompt_tokens,
                **answer.prompt.record,
                "probabilities": answer.probabilities,
                **({} if answer.places is None else {"places": answer.places}),
                **({"unanswered": answer.text.reason} if isinstance(answer.text, Unanswered) else {}),
            }

    rankings = ranked.read(system.store, examples)
    Answers.make(folder, work, system.tally, examples, rankings, label="answers", total=len(examples))


def keep_likelihoods(folder: Path, examples: list[Example], ranked: Rankings, system: System) -> None:
    """Scores the targets of some questions, and keeps that in a folder for `Likelihoods`."""

    def work(advance: Callable[[int], Any], chunk: list[Example], shown: list[Ranking]) -> Any:
        try:
            scores = system.score(chunk, shown, on_batch=advance)
        except UserError as error:
            raise UserError(f"likelihood of the targets: {error}; or set eval.likelihood off") from error
        for example, (prompt, score) in zip(chunk, scores, strict=True):
            yield {
                "total": score and score.total,
                "tokens": score and score.tokens,
                "bytes": None if example.target is None else len(example.target.encode()),
                "prompt_tokens": system.llm.num_tokens(prompt.messages),
                **prompt.record,
            }

    rankings = ranked.read(system.store, examples)
    Likelihoods.make(folder, work, system.tally, examples, rankings, label="likelihoods", total=len(examples))

"""Questions of finished runs in full: what was asked, shown and answered, and what the user wrote."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from pbr_jax.base import terminal
from pbr_jax.base.types import Candidate, Document, Example, UserError
from pbr_jax.eval.run_files import folders_of
from pbr_jax.experiment.opening import plan_of
from pbr_jax.experiment.plan import Plan
from pbr_jax.pipeline import Answer
from pbr_jax.stages.passages import around
from pbr_jax.text import prompts
from pbr_jax.text.answers import parse_answer


def examples(folders: Sequence[str | Path], count: int) -> str:
    """The first `count` questions of the first run, as Markdown, with what every run answers.

    `folders` are of finished runs or of sweeps. What a run scored only is decoded now, as `ask` does.
    Raises UserError for a count below 1, a folder without a run, and runs of other questions.
    """
    if count < 1:
        raise UserError(f"{count} examples were asked for, want at least 1")
    plans = [plan_of(folder) for folder in folders_of(folders)]
    asked = list(islice(plans[0].data.value.examples(), count))
    if decoded := [plan.config.system for plan in plans if plan.answered is None]:
        first = f"the first {len(asked)} questions" if len(asked) > 1 else "the first question"
        terminal.err(f"writing answers of {', '.join(decoded)} to {first}, for the examples alone …")
    answered = [(plan, _answered(plan, asked)) for plan in plans]
    parts = []
    if any(plan.answered is None for plan in plans):
        parts.append("Runs that only score answers decode these for the examples alone; no metric has them.")
    for place, example in enumerate(asked):
        title = f"## Example {place + 1} of {len(asked)}: question {example.id} of user {example.user_id}"
        parts.append(f"{title}\n\nQuestion: {example.input}")
        parts += [_told(plan, *own[place]) for plan, own in answered]
        parts.append(f"What the user wrote: {example.target or '(withheld)'}")
    return "\n\n".join(parts)


def _answered(plan: Plan, asked: list[Example]) -> list[tuple[Answer, list[Document]]]:
    """The answer to each question, and the documents in its prompt, as they stand there."""
    store = plan.store.value
    if [example.id for example in islice(store.examples(), len(asked))] != [one.id for one in asked]:
        raise UserError(
            f"{plan.config.system} was asked other questions; give runs of the same benchmark and limit"
        )
    rankings = list(islice(plan.ranked.value.read(store, store.examples()), len(asked)))
    answers = plan.system().answer(asked, rankings)
    pairs = zip(answers, rankings, strict=True)
    return [(answer, _shown(plan, ranking[: answer.prompt.documents])) for answer, ranking in pairs]


def _shown(plan: Plan, ranking: list[Candidate]) -> list[Document]:
    """Documents as `prompt.show` has them: passages, these between their neighbours, or whole documents."""
    store, show, rows = plan.store.value, plan.config.prompt.show, [candidate.row for candidate in ranking]
    if show == "document":
        return store.wholes(list(dict.fromkeys(store.firsts[rows].tolist())))
    documents = [candidate.document for candidate in ranking]
    return [around(store, *pair) for pair in zip(rows, documents)] if show == "around" else documents


def _told(plan: Plan, answer: Answer, shown: list[Document]) -> str:
    """What a run showed the model of a question, and what the model answered."""
    documents = "\n".join(f"{place}. {_text(plan, document)}" for place, document in enumerate(shown, 1))
    profile = answer.prompt.profile
    known = f"About the user, in {plan.config.system}: {profile}\n\n" if profile else ""
    told = f"{known}Answer of {plan.config.system}: {parse_answer(plan.task.answers, answer.text)}"
    return f"Shown by {plan.config.system}:\n\n{documents}\n\n{told}" if shown else told


def _text(plan: Plan, document: Document) -> str:
    """The document as it stands in a prompt, in one line."""
    told = prompts.record(plan.task.wording(plan.config.prompt.form), document) or document.text
    return " | ".join(told.split("\n"))

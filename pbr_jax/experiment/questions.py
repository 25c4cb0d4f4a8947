"""Questions of finished runs: in full, with what was shown and answered; and one on a plane.

The plane is Figure 5 of PBR (Zhang et al., "Personalize Before Retrieve", 2025), for any expansion and any
run: a user's documents, those that answer, the query, and what it was expanded to. What the run ranked is
marked and named."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from pbr_jax.base import terminal
from pbr_jax.base.terminal import visible
from pbr_jax.base.types import NO_ROW, Candidate, Document, Example, UserError
from pbr_jax.corpus.store import Store
from pbr_jax.corpus.vectors import Vectors
from pbr_jax.eval import plots
from pbr_jax.eval.cards import Card, cards
from pbr_jax.eval.run_files import folders_of
from pbr_jax.experiment.opening import plan_of
from pbr_jax.experiment.plan import Plan
from pbr_jax.graph.lists import unified
from pbr_jax.index.base import unit
from pbr_jax.pipeline import Answer, Ranking
from pbr_jax.stages import vectors
from pbr_jax.stages.labels import is_relevant
from pbr_jax.stages.passages import around
from pbr_jax.text import prompts
from pbr_jax.text.answers import parse_answer
from pbr_jax.text.encode import TextEncoder


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
    if show == "document" and NO_ROW not in rows:
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


_RANKED = 12  # documents that are marked
_MISSED = 6  # documents that answer, were not ranked, and are named


def picture(folder: str | Path, question: str) -> str:
    """An `<svg>` element; `question` is the id of an example of the finished run in `folder`.

    All vectors are the run's encoder's, made as long as 1. What is searched for is shown where the expansion
    combines vectors. The best documents that the run ranked have their rank, in a bold ring those that stood
    in the prompt. Raises UserError for a folder without a run, an unknown question, a user without documents,
    and where matplotlib is missing.
    """
    plan = plan_of(Path(folder))
    if not plots.available():
        raise UserError("a picture needs matplotlib: pip install 'pbr-jax[plots]'")
    (card,) = cards(folder, [question], check=False)
    example = next(one for one in plan.data.value.examples() if one.id == question)
    ranking = ranked(plan, example)
    if any(candidate.row == NO_ROW for candidate in ranking):
        raise UserError(
            f"{folder} ranked texts that are no documents, which have no vectors to draw; pbr-jax show lists "
            "them"
        )
    drawn = groups(plan, example, ranking)
    asked = f"{plan.config.system}: question {example.id} of user {example.user_id}"
    title = visible(f"{asked}\n{_begin(example.input, 70)}")
    figure = plots.plane(drawn, title, marks(plan, example, ranking, card))
    return plots.svg(figure, title=title)


def ranked(plan: Plan, example: Example) -> Ranking:
    """The documents that the run ranked for a question, best first."""
    store = plan.store.value
    rankings = plan.ranked.value.read(store, store.examples())
    return next(own for one, own in zip(store.examples(), rankings, strict=True) if one.id == example.id)


def groups(plan: Plan, example: Example, ranking: Sequence[Candidate] = ()) -> dict[str, np.ndarray]:
    """Unit vectors [_ d] by what they are, always in the same order; a group may be empty."""
    store: Store = plan.data.value
    rows = store.visible(example, example.user_id)
    if not len(rows):
        raise UserError(f"the user {example.user_id!r} has no documents to draw; choose another question")
    encoder, embedded = _vectors(plan)
    others = np.setdiff1d([candidate.row for candidate in ranking[:_RANKED]], rows).astype(np.int64)
    documents, foreign = np.asarray(embedded[rows]), np.asarray(embedded[others])
    answers, found = (
        np.array([is_relevant(example, document) for document in store.documents(own)], bool)
        for own in (rows, others)
    )
    (query,) = plan.system().pipeline.expand([example])
    added = [text for text in dict.fromkeys(query.texts) if text != example.query]
    drawn = {
        "documents": documents[~answers],
        "what is searched for": documents[:0] if query.vector is None else query.vector[None],
        "documents that answer": np.concatenate([documents[answers], foreign[found]]),
        "added texts": encoder.encode(added, role="query") if added else documents[:0],
        "query": encoder.encode([example.query], role="query"),
        "documents of others": foreign[~found],
    }
    return {name: unit(own) for name, own in drawn.items()}


def marks(plan: Plan, example: Example, ranking: Ranking, card: Card) -> list[plots.Mark]:
    """The best documents by their ranks, and by letters those that answer and were not ranked."""
    store: Store = plan.data.value
    best, ranked_rows = ranking[:_RANKED], {candidate.row for candidate in ranking}
    own = [int(row) for row in store.visible(example, example.user_id) if int(row) not in ranked_rows]
    pairs = zip(own, store.documents(own), strict=True)
    missed = [(row, document) for row, document in pairs if is_relevant(example, document)][:_MISSED]
    shown = [one.in_prompt for one in card.documents[: len(best)]]
    rows = [candidate.row for candidate in best] + [row for row, _ in missed]
    embedded = unit(np.asarray(_vectors(plan)[1][np.array(rows, np.int64)])) if rows else ()
    labels = [*map(str, range(1, len(best) + 1)), *"abcdef"[: len(missed)]]
    documents = [candidate.document for candidate in best] + [document for _, document in missed]
    bold = [*shown, *[False] * len(missed)]
    return [
        plots.Mark(label, _name(document, example), vector, shown)
        for label, document, vector, shown in zip(labels, documents, embedded, bold, strict=True)
    ]


def _vectors(plan: Plan) -> tuple[TextEncoder, Vectors]:
    """The encoder, and the vectors of all rows of the store."""
    needs = vectors.searched(plan.run)
    return unified(needs["encoder"]).value, unified(needs["embeddings"]).value


def _name(document: Document, example: Example) -> str:
    """A document's id with its title or first words, whose it is, and whether it answers."""
    title = document.fields.get("title") or document.text
    owner = "" if document.user_id in ("", example.user_id) else f" (user {document.user_id})"
    return visible(
        _begin(f"{document.whole}: {title}", 44) + owner + " (answers)" * is_relevant(example, document)
    )


def _begin(text: str, most: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else line[: most - 1] + "…"

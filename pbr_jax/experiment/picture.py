"""One question on a plane: a user's documents, those that answer it, the query, and what it was expanded to.

Figure 5 of PBR (Zhang et al., "Personalize Before Retrieve", 2025), for any expansion and any run. What the
run ranked for the question is marked and named.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pbr_jax.base.terminal import visible
from pbr_jax.base.types import Candidate, Document, Example, UserError
from pbr_jax.corpus.store import Store
from pbr_jax.corpus.vectors import Vectors
from pbr_jax.eval import plots
from pbr_jax.eval.cards import Card, cards
from pbr_jax.experiment.opening import plan_of
from pbr_jax.experiment.plan import Plan
from pbr_jax.graph.lists import unified
from pbr_jax.index.base import unit
from pbr_jax.pipeline import Ranking
from pbr_jax.stages import vectors
from pbr_jax.stages.labels import is_relevant
from pbr_jax.text.encode import TextEncoder

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

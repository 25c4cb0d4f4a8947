"""One question on a plane: a user's documents, those that answer it, the query, and what it was expanded to.

Figure 5 of PBR (Zhang et al., "Personalize Before Retrieve", 2025), for any expansion and any run.
"""

from pathlib import Path

import numpy as np

from pbr_jax.corpus.store import Store
from pbr_jax.eval import plots
from pbr_jax.graph_lists import unified
from pbr_jax.index.base import unit
from pbr_jax.opening import plan_of
from pbr_jax.parts import vectors
from pbr_jax.parts.labels import is_relevant
from pbr_jax.plan import Plan
from pbr_jax.types import Example, UserError


def picture(folder: str | Path, question: str) -> str:
    """An `<svg>` element; `question` is the id of an example of the finished run in `folder`.

    All vectors are the run's encoder's, made as long as 1. What is searched for is shown where the expansion
    combines vectors. Raises UserError for a folder without a run, an unknown question, a user without
    documents, and where matplotlib is missing.
    """
    plan = plan_of(Path(folder))
    if not plots.available():
        raise UserError("a picture needs matplotlib: pip install 'pbr-jax[plots]'")
    return plots.svg(plots.plane(groups(plan, _example(plan.data.value, question))))


def groups(plan: Plan, example: Example) -> dict[str, np.ndarray]:
    """Unit vectors [_ d] by what they are; groups without a member are left out."""
    store: Store = plan.data.value
    rows = store.visible(example, example.user_id)
    if not len(rows):
        raise UserError(f"the user {example.user_id!r} has no documents to draw; choose another question")
    needs = vectors.searched(plan.run)
    encoder = unified(needs["encoder"]).value
    documents = np.asarray(unified(needs["embeddings"]).value[rows])
    answers = np.array([is_relevant(example, document) for document in store.documents(rows)])
    (query,) = plan.system().pipeline.expand([example])
    added = [text for text in dict.fromkeys(query.texts) if text != example.query]
    found = {
        "documents": documents[~answers],
        "documents that answer": documents[answers],
        "added texts": encoder.encode(added, role="query") if added else documents[:0],
        "query": encoder.encode([example.query], role="query"),
        "what is searched for": documents[:0] if query.vector is None else query.vector[None],
    }
    return {name: unit(own) for name, own in found.items() if len(own)}


def _example(store: Store, question: str) -> Example:
    found = next((example for example in store.examples() if example.id == question), None)
    if found is None:
        some = [example.id for _, example in zip(range(3), store.examples())]
        raise UserError(f"the run has no question {question!r}; its first ones are {', '.join(some)}")
    return found

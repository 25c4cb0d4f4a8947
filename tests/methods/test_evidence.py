"""The ceiling of retrieval: all relevant documents that a question may see, and no others."""

from pathlib import Path

import numpy as np
import pytest

from pbr_jax.base.types import Candidate, Document, Example
from pbr_jax.corpus.store import Store, build
from pbr_jax.methods.retrieve import Recency
from pbr_jax.methods.select import Evidence
from pbr_jax.pipeline import Query, Tally


def document(user: str, id: str) -> Document:
    return Document(id, user, f"{user} {id}", shared=not user)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    own = tuple(document("ann", id) for id in "abcde")
    asked = [
        Example("1", "ann", "q", "q", None, own, relevant=(("d", "x"), ("b",), ("s",))),
        Example("2", "bob", "q", "q", None, (document("bob", "b"),), relevant=()),
    ]
    path = tmp_path / "store.sqlite"
    build(path, asked, shared={"file": [document("", "s"), document("", "t")]})
    return Store(path)


def chosen(store: Store, k: int | None, *ids: str) -> list[list[str]]:
    """What is selected where the retriever gave these documents of ann's."""
    examples = list(store.examples())
    rows = {d.id: r for r, d in enumerate(store.documents(range(store.rows))) if d.user_id == "ann"}
    given = [Candidate(store.documents([rows[id]])[0], 1.0 / (i + 1), rows[id]) for i, id in enumerate(ids)]
    select = Evidence(k=k).slot(Tally(), store=store)
    found = select(examples, [Query(("q",))] * 2, [given, []])
    for ranking in found:
        scores = [candidate.score for candidate in ranking]
        assert np.isfinite(scores).all()
        assert scores == sorted(scores, reverse=True)
        assert [c.document for c in ranking] == store.documents([c.row for c in ranking])
    return [[candidate.document.id for candidate in ranking] for ranking in found]


def test_candidates_come_first_and_the_rest_in_the_order_of_the_history(store: Store) -> None:
    assert chosen(store, None) == [["b", "d", "s"], []]
    assert chosen(store, None, "e", "d", "a") == [["d", "b", "s"], []]
    assert chosen(store, 1, "e", "d", "a") == [["d"], []]


def test_it_is_a_ceiling() -> None:
    assert Evidence().ceiling
    assert not Recency().ceiling

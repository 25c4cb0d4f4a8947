"""Retrievers that score one user's visible documents at a time."""

from pathlib import Path

import numpy as np
import pytest

from pbr_jax.base.types import Document, Example
from pbr_jax.corpus.store import Store, build
from pbr_jax.methods.retrieve.scored import scored
from pbr_jax.pipeline import Neighbour, Query


def ask(user: str, count: int, time: float = 1000.0) -> Example:
    profile = tuple(Document(f"{user}{i}", user, f"{user} {i}", time=10.0 * i) for i in range(count))
    return Example(f"q-{user}", user, f"{user} asks", "in", "t", profile, time)


EXAMPLES = [ask("a", 4), ask("b", 2), ask("none", 0)]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    build(tmp_path / "store.sqlite", EXAMPLES)
    return Store(tmp_path / "store.sqlite")


def noting(store: Store, calls: list):
    def score(example: Example, query: Query, rows: np.ndarray) -> np.ndarray:
        calls.append((example.id, query.texts, [document.id for document in store.documents(rows)]))
        return np.zeros(len(rows))

    return score


def test_a_score_sees_one_users_visible_documents_and_its_own_query(store: Store):
    calls: list = []
    early = ask("b", 2, time=15.0)  # of a it sees what is dated before
    queries = [Query(("one", "two")), Query(("three",))]
    users = [[Neighbour("a"), Neighbour("b")], [Neighbour("b"), Neighbour("a")]]
    scored(store, 9, noting(store, calls))([EXAMPLES[0], early], queries, users)
    assert calls == [
        ("q-a", ("one", "two"), ["a0", "a1", "a2", "a3"]),
        ("q-a", ("one", "two"), ["b0", "b1"]),
        ("q-b", ("three",), ["b0", "b1"]),
        ("q-b", ("three",), ["a0", "a1"]),
    ]


def test_a_user_without_documents_is_not_scored(store: Store):
    calls: list = []
    found = scored(store, 9, noting(store, calls))(EXAMPLES[2:], [Query(("x",))], [[Neighbour("none")]])
    assert (found, calls) == ([[]], [])

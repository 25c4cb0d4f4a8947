"""Retrievers that score one user's visible documents at a time."""

from pathlib import Path

import numpy as np
import pytest

from pbr_jax.base.types import Document, Example
from pbr_jax.corpus.store import Store, build
from pbr_jax.methods.retrieve.scored import scored
from pbr_jax.pipeline import Neighbour, Query, Ranking

SCORES = {"a0": 1.0, "a1": 3.0, "a2": 1.0, "a3": 2.0, "b0": 5.0, "b1": 4.0}


def ask(user: str, count: int, time: float = 1000.0) -> Example:
    profile = tuple(Document(f"{user}{i}", user, f"{user} {i}", time=10.0 * i) for i in range(count))
    return Example(f"q-{user}", user, f"{user} asks", "in", "t", profile, time)


EXAMPLES = [ask("a", 4), ask("b", 2), ask("none", 0)]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    build(tmp_path / "store.sqlite", EXAMPLES)
    return Store(tmp_path / "store.sqlite")


def by_table(store: Store, calls: list | None = None):
    def score(example: Example, query: Query, rows: np.ndarray) -> np.ndarray:
        found = [document.id for document in store.documents(rows)]
        if calls is not None:
            calls.append((example.id, query.texts, found))
        return np.array([SCORES[id] for id in found])

    return score


def pairs(ranking: Ranking) -> list[tuple[str, float]]:
    return [(candidate.document.id, candidate.score) for candidate in ranking]


def test_the_best_k_of_equal_scores_the_first_in_the_profile(store: Store):
    found = scored(store, 3, by_table(store))(EXAMPLES[:1], [Query(("x",))], [[Neighbour("a")]])
    assert [pairs(ranking) for ranking in found] == [[("a1", 3.0), ("a3", 2.0), ("a0", 1.0)]]
    deep = scored(store, 99, by_table(store))(EXAMPLES[:1], [Query(("x",))], [[Neighbour("a")]])
    assert [id for id, _ in pairs(deep[0])] == ["a1", "a3", "a0", "a2"]
    assert all(store.documents([c.row]) == [c.document] for c in deep[0])


def test_each_user_gives_k_and_the_weight_multiplies_the_scores(store: Store):
    users = [[Neighbour("a"), Neighbour("b", 0.5)]]
    (found,) = scored(store, 1, by_table(store))(EXAMPLES[:1], [Query(("x",))], users)
    assert pairs(found) == [("a1", 3.0), ("b0", 2.5)]


def test_a_score_sees_one_users_visible_documents_and_its_own_query(store: Store):
    calls: list = []
    early = ask("b", 2, time=15.0)  # of a it sees what is dated before
    queries = [Query(("one", "two")), Query(("three",))]
    users = [[Neighbour("a"), Neighbour("b")], [Neighbour("b"), Neighbour("a")]]
    scored(store, 9, by_table(store, calls))([EXAMPLES[0], early], queries, users)
    assert calls == [
        ("q-a", ("one", "two"), ["a0", "a1", "a2", "a3"]),
        ("q-a", ("one", "two"), ["b0", "b1"]),
        ("q-b", ("three",), ["b0", "b1"]),
        ("q-b", ("three",), ["a0", "a1"]),
    ]


def test_a_user_without_documents_is_not_scored(store: Store):
    calls: list = []
    found = scored(store, 9, by_table(store, calls))(EXAMPLES[2:], [Query(("x",))], [[Neighbour("none")]])
    assert (found, calls) == ([[]], [])

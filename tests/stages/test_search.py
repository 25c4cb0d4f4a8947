"""Dense search inside histories: whose, how deep, and from which vector."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hashed_texts import Hashed, vector

from pbr_jax.base.types import Document, Example, UserError
from pbr_jax.corpus.store import Store, build
from pbr_jax.pipeline import Neighbour, Query
from pbr_jax.stages.search import candidates, search


def history(user: str, count: int) -> tuple[Document, ...]:
    return tuple(Document(f"{user}{i}", user, f"{user} {i}", time=10.0 * i) for i in range(count))


def ask(user: str, count: int, time: float = 1000.0) -> Example:
    return Example(f"q-{user}", user, f"{user} asks", "in", "t", history(user, count), time)


EXAMPLES = [ask("a", 7), ask("b", 4), ask("none", 0)]
QUERIES = [Query((example.query,)) for example in EXAMPLES]
OWN = [[Neighbour(example.user_id)] for example in EXAMPLES]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    build(tmp_path / "store.sqlite", EXAMPLES)
    return Store(tmp_path / "store.sqlite")


@pytest.fixture
def embeddings(store: Store) -> np.ndarray:
    return np.stack([vector(text) for _, text in store.texts()])


def ids(ranking) -> list[str]:
    return [candidate.document.id for candidate in ranking]


def best(user: str, count: int, query: np.ndarray, k: int) -> list[str]:
    return [d.id for d in sorted(history(user, count), key=lambda d: -float(vector(d.text) @ query))][:k]


@pytest.mark.parametrize("k", [1, 3, 99])
def test_the_k_nearest_of_each_history_by_brute_force(store: Store, embeddings: np.ndarray, k: int):
    found = search(store, Hashed(), embeddings, k)(EXAMPLES, QUERIES, OWN)
    for example, ranking, count in zip(EXAMPLES, found, (7, 4, 0), strict=True):
        assert ids(ranking) == best(example.user_id, count, vector(example.query), k)
        for candidate in ranking:
            assert store.documents([candidate.row]) == [candidate.document]
            wanted = float(vector(candidate.document.text) @ vector(example.query))
            assert candidate.score == pytest.approx(wanted, rel=1e-5)


def test_users_documents_need_a_least_score_and_shared_ones_none(tmp_path: Path):
    shared = [Document(f"s{i}", "", f"s {i}", shared=True) for i in range(5)]
    build(tmp_path / "both.sqlite", EXAMPLES, shared={"passages": shared})
    store = Store(tmp_path / "both.sqlite")
    vectors = np.stack([vector(text) for _, text in store.texts()])
    both = [[Neighbour("a"), Neighbour("")]]
    (whole,) = search(store, Hashed(), vectors, 9)(EXAMPLES[:1], QUERIES[:1], both)
    least = float(np.median([c.score for c in whole if not c.document.shared]))
    (found,) = search(store, Hashed(), vectors, 9, least_own=least)(EXAMPLES[:1], QUERIES[:1], both)
    assert found == [c for c in whole if c.document.shared or c.score >= least]
    assert len([c for c in found if not c.document.shared]) == 4
    assert min(c.score for c in found) < least


def test_each_user_gives_k_documents_in_the_order_of_the_users(store: Store, embeddings: np.ndarray):
    users = [[Neighbour("a"), Neighbour("b", 0.5)]]
    (found,) = search(store, Hashed(), embeddings, 2)(EXAMPLES[:1], QUERIES[:1], users)
    query = vector(EXAMPLES[0].query)
    assert ids(found) == best("a", 7, query, 2) + best("b", 4, query, 2)
    wanted = [float(vector(c.document.text) @ query) for c in found]
    np.testing.assert_allclose([c.score for c in found], np.multiply(wanted, [1, 1, 0.5, 0.5]), rtol=1e-5)


def test_others_are_searched_as_they_were_before_the_question(store: Store, embeddings: np.ndarray):
    early = ask("b", 4, time=15.0)
    (found,) = search(store, Hashed(), embeddings, 9)([early], QUERIES[1:2], [[Neighbour("a")]])
    assert sorted(ids(found)) == ["a0", "a1"]


def test_an_unknown_user_is_an_error_and_never_everybody(store: Store, embeddings: np.ndarray):
    with pytest.raises(UserError, match="user 'nobody' is not among the 3 users"):
        search(store, Hashed(), embeddings, 1)(EXAMPLES[:1], QUERIES[:1], [[Neighbour("nobody")]])


def test_only_queries_without_a_vector_are_encoded_their_texts_as_one(store: Store, embeddings: np.ndarray):
    encoder, own = Hashed(), vector("a 5") * 3
    queries = [Query(("two", "texts")), Query(("not read",), own), Query(("third",))]
    users = [[Neighbour("a")]] * 3
    found = search(store, encoder, embeddings, 7)([EXAMPLES[0]] * 3, queries, users)
    assert encoder.asked == [("query", "two texts", "third")]
    for ranking, asked in zip(found, (vector("two texts"), own, vector("third")), strict=True):
        assert ids(ranking) == best("a", 7, asked, 7)


def test_what_a_user_prefers_moves_every_query_and_no_document(store: Store, embeddings: np.ndarray):
    seen = []

    def personalize(examples: Sequence[Example], queries: np.ndarray) -> np.ndarray:
        seen.append([example.id for example in examples])
        np.testing.assert_array_equal(queries, [vector(e.query) for e in examples])
        return -queries

    plain = search(store, Hashed(), embeddings, 9)(EXAMPLES, QUERIES, OWN)
    turned = search(store, Hashed(), embeddings, 9, personalize)(EXAMPLES, QUERIES, OWN)
    assert seen == [[example.id for example in EXAMPLES]]
    assert [ids(ranking) for ranking in turned] == [ids(ranking)[::-1] for ranking in plain]


def test_candidates_are_rows_with_their_documents_and_scores(store: Store):
    found = candidates(store, np.array([3, 0]), np.array([0.5, 2.0], np.float32))
    assert [(c.document.id, c.score, c.row) for c in found] == [("a3", 0.5, 3), ("a0", 2.0, 0)]
    assert all(type(c.score) is float and type(c.row) is int for c in found)
    assert candidates(store, np.zeros(0, np.int64), np.zeros(0)) == []

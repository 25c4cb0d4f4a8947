"""Anchors: PageRank against a dense eigen-solution and networkx, odd histories, and what is computed anew."""

from functools import partial

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest

from pbr_jax.index import page_rank
from pbr_jax.index.clusters import k_means
from pbr_jax.index.page_rank import Anchors, Groups, Walk, anchors

WIDTH = 12
EXACT = {"iterations": 2000, "tolerance": 1e-9}


def documents(n: int, seed: int = 0, spread: float = 0.8) -> np.ndarray:
    """Vectors of any length around three centres, so that some pairs are near and some are not."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(3, WIDTH))
    vectors = centres[rng.integers(0, 3, n)] + spread * rng.normal(size=(n, WIDTH))
    return (vectors * rng.uniform(0.5, 2, (n, 1))).astype(np.float32)


def edges(vectors: np.ndarray, theta: float, k: int) -> np.ndarray:
    """The weighted adjacency [n n] of Eq. 8, row by row, in float64."""
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True).astype(float)
    similarity = units @ units.T
    adjacency = np.zeros_like(similarity)
    for i, row in enumerate(similarity):
        for j in sorted(range(len(row)), key=lambda j: -row[j])[:k]:
            if row[j] >= theta:
                adjacency[i, j] = row[j]
    return adjacency


def ranks(vectors: np.ndarray, walk: Walk, restart: np.ndarray | None = None) -> np.ndarray:
    """PageRank of one user's documents; `restart` gives the restarts. Traced anew at every call."""
    if restart is None:
        restart = np.full(len(vectors), 1 / len(vectors), np.float32)
    options = {"damping": walk.damping, "iterations": walk.iterations, "tolerance": walk.tolerance}

    def of_user(documents: jax.Array, where: jax.Array, restart: jax.Array) -> jax.Array:
        graph = page_rank.neighbour_graph(documents, where, theta=walk.theta, k=walk.k)
        return page_rank.page_rank(graph, restart, **options)

    return np.asarray(jax.jit(of_user)(vectors, np.ones(len(vectors), bool), restart))


def walked(vectors: np.ndarray, walk: Walk, restart: np.ndarray | None = None) -> np.ndarray:
    """The released loop, in float64; `walk.damping` 1 is the released walk itself."""
    if restart is None:
        restart = np.full(len(vectors), 1 / len(vectors))
    adjacency = edges(vectors, walk.theta, walk.k)
    transitions = adjacency / adjacency.sum(1, keepdims=True)
    ranks = restart
    for _ in range(walk.iterations):
        moved = walk.damping * transitions.T @ ranks + (1 - walk.damping) * restart
        if np.linalg.norm(moved - ranks) < walk.tolerance:
            break
        ranks = moved
    return ranks


@pytest.mark.parametrize(("n", "theta", "k"), [(2, 0.0, 2), (20, 0.5, 3), (20, 0.3, 20), (30, 0.75, 5)])
def test_the_graph_is_the_brute_force_one(n: int, theta: float, k: int):
    vectors = documents(n, seed=n)
    graph = jax.jit(partial(page_rank.neighbour_graph, theta=theta, k=k))(vectors, np.ones(n, bool))
    matrix = np.zeros((n, n))
    np.add.at(matrix, (np.arange(n)[:, None], np.asarray(graph.columns)), np.asarray(graph.weights))
    expected = edges(vectors, theta, k)
    np.testing.assert_allclose(matrix, expected / expected.sum(1, keepdims=True), atol=1e-6)
    assert ((matrix > 0).sum(1) <= k).all()


@pytest.mark.parametrize("damping", [0.5, 0.85, 0.99])
@pytest.mark.parametrize(("n", "theta", "k"), [(20, 0.2, 3), (30, 0.6, 5), (30, 0.75, 5)])
def test_damped_ranks_are_those_of_networkx(n: int, theta: float, k: int, damping: float):
    vectors = documents(n, seed=n + 1)
    graph = nx.from_numpy_array(edges(vectors, theta, k), create_using=nx.DiGraph)
    expected = nx.pagerank(graph, alpha=damping, tol=1e-12, max_iter=5000)
    found = ranks(vectors, Walk(theta, k, damping, **EXACT))
    np.testing.assert_allclose(found, [expected[i] for i in range(n)], atol=2e-6)


def test_the_undamped_walk_is_the_released_loop():
    """Uniform start, at most 50 steps, and of the last step that moves too little the vector before it."""
    vectors = documents(30, seed=8)
    for tolerance, limit in ((1e-6, 50), (1e-2, 50), (1e-6, 3)):
        walk = Walk(0.5, 5, 1.0, limit, tolerance)
        np.testing.assert_allclose(ranks(vectors, walk), walked(vectors, walk), atol=1e-6)


def test_isolated_documents_keep_their_share_and_the_anchor_is_then_the_mean():
    vectors = np.eye(7, WIDTH, dtype=np.float32)  # nothing is near anything else
    for damping in (0.85, 1.0):
        np.testing.assert_allclose(ranks(vectors, Walk(damping=damping)), 1 / 7, atol=1e-6)
    found = anchors(vectors, [np.arange(7)], Walk())
    np.testing.assert_allclose(found[0], vectors.mean(0), atol=1e-6)


def test_documents_without_edges_pass_the_walk_on_to_the_restarts():
    vectors = documents(6, seed=1)
    vectors[[1, 4]] = 0  # no direction, so no cosine
    transitions = np.zeros((6, 6))
    real = [0, 2, 3, 5]
    adjacency = edges(vectors[real], 0.5, 3)
    transitions[np.ix_(real, real)] = adjacency
    graph = nx.from_numpy_array(transitions, create_using=nx.DiGraph)
    expected = nx.pagerank(graph, alpha=0.85, tol=1e-12, max_iter=5000)
    found = ranks(vectors, Walk(0.5, 3, 0.85, **EXACT))
    np.testing.assert_allclose(found, [expected[i] for i in range(6)], atol=2e-6)


def test_one_document_is_its_own_anchor_and_none_is_zero():
    vectors = documents(3)
    found = anchors(vectors, [np.array([2]), np.array([], int)], Walk())
    np.testing.assert_allclose(found[0], vectors[2], rtol=1e-6)
    np.testing.assert_array_equal(found[1], np.zeros(WIDTH))
    assert anchors(vectors, [], Walk()).shape == (0, WIDTH)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


SIZES = (1, 2, 8, 9, 12, 13, 0, 5, 12, 8)


def users(vectors: np.ndarray) -> list[np.ndarray]:
    """Histories of odd sizes, their rows scattered over the matrix."""
    rows = np.random.default_rng(4).permutation(len(vectors))
    return np.split(rows[: sum(SIZES)], np.cumsum(SIZES)[:-1])


@pytest.mark.parametrize(("damping", "together"), [(0.85, 1024), (0.85, 24), (1.0, 24)])
def test_many_users_at_once_are_each_user_alone(
    damping: float, together: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(page_rank._DOCUMENTS, "cpu", together)
    vectors = documents(90)
    walk = Walk(0.6, 6, damping, 100)
    found = anchors(vectors, users(vectors), walk)
    for rows, of_user in zip(users(vectors), found, strict=True):
        expected = walked(vectors[rows], walk) @ vectors[rows] if len(rows) else np.zeros(WIDTH)
        np.testing.assert_allclose(of_user, expected, atol=1e-5)


def test_a_width_is_compiled_once_however_many_users_have_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(page_rank._DOCUMENTS, "cpu", 24)
    vectors, walk = documents(90), Walk(0.61, 6)
    for count in (1, 2, 5):
        anchors(vectors, [np.arange(i, i + 8) for i in range(count)], walk)
    assert page_rank._many(walk)._cache_size() == 1


def test_a_query_draws_the_anchor_towards_itself_and_every_user_has_their_own():
    vectors, histories = documents(90), users(documents(90))
    queries = np.random.default_rng(6).normal(size=(len(SIZES), WIDTH)).astype(np.float32)
    walk = Walk(0.6, 6, 0.5, temperature=0.05)
    plain, biased = anchors(vectors, histories, walk), anchors(vectors, histories, walk, queries)
    for rows, query, before, after in zip(histories, queries, plain, biased, strict=True):
        if len(rows) > 1:
            assert cosine(after, query) > cosine(before, query)
        if len(rows):
            logits = (vectors[rows] @ query) / np.linalg.norm(vectors[rows], axis=1) / np.linalg.norm(query)
            restart = np.exp(logits / 0.05) / np.exp(logits / 0.05).sum()
            expected = walked(vectors[rows], walk, restart) @ vectors[rows]
            np.testing.assert_allclose(after, expected, atol=1e-5)


@pytest.mark.long
def test_the_centre_of_a_group_is_that_of_each_user_alone_and_near_the_query():
    vectors, histories = documents(90), users(documents(90))
    queries = np.random.default_rng(6).normal(size=(len(SIZES), WIDTH)).astype(np.float32)
    found = anchors(vectors, histories, Groups(3), queries)
    for rows, query, centre in zip(histories, queries, found, strict=True):
        if not len(rows):
            assert not centre.any()
            continue
        centres = np.asarray(k_means(jnp.asarray(vectors[rows]), jnp.ones(len(rows), bool), k=3))
        np.testing.assert_allclose(centre, centres[(centres @ query).argmax()], atol=1e-5)


def test_a_long_history_is_computed_in_blocks(monkeypatch: pytest.MonkeyPatch):
    vectors = documents(100, seed=7)
    whole = anchors(vectors, [np.arange(100)], Walk(0.6, 6))[0]
    monkeypatch.setattr(page_rank, "_BLOCK", 40)  # two whole blocks and a rest
    page_rank._many.cache_clear()
    np.testing.assert_allclose(anchors(vectors, [np.arange(100)], Walk(0.6, 6))[0], whole, atol=1e-6)
    page_rank._many.cache_clear()


@pytest.mark.parametrize("copies", [1, 6])
def test_of_documents_that_are_alike_those_of_the_lower_positions_count(copies: int):
    vectors = documents(20, seed=8)
    vectors = np.concatenate([vectors, np.repeat(vectors[:3], copies, axis=0)])
    graph = page_rank.neighbour_graph(jnp.asarray(vectors), jnp.ones(len(vectors), bool), theta=0.5, k=4)
    units = vectors.astype(float) / np.linalg.norm(vectors, axis=1, keepdims=True)
    for columns, row in zip(np.asarray(graph.columns), np.round(units @ units.T, 5), strict=True):
        best = sorted(range(len(row)), key=lambda place: (-row[place], place))[:4]
        assert [one for one in columns.tolist() if one >= 0] == [one for one in best if row[one] >= 0.5]


def test_a_new_document_recomputes_its_user_alone(monkeypatch: pytest.MonkeyPatch):
    vectors = documents(20)
    first, second = np.arange(0, 8), np.arange(8, 15)
    known = Anchors(Walk(0.5, 4))
    before = known(vectors, [first, second, first])
    np.testing.assert_array_equal(before[0], before[2])
    assert len(known) == 2
    asked: list[list[int]] = []
    plain = page_rank.anchors

    def watched(vectors, histories, walk):
        asked.append([len(history) for history in histories])
        return plain(vectors, histories, walk)

    monkeypatch.setattr(page_rank, "anchors", watched)
    grown = np.concatenate([vectors, documents(1, seed=50)])
    after = known(grown, [first, np.append(second, 20)])
    assert asked == [[8]]
    assert len(known) == 3
    np.testing.assert_array_equal(after[0], before[0])
    np.testing.assert_array_equal(after[1], plain(grown, [np.append(second, 20)], known.walk)[0])
    assert known(grown, []).shape == (0, WIDTH)

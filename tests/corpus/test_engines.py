"""Every registered engine, and one that is registered here, keeps to the same contract."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from engine_world import Numbers, check, files, made, profile
from hypothesis import given, settings
from hypothesis import strategies as st

from pbr_jax.base.types import UserError
from pbr_jax.corpus import vectors
from pbr_jax.corpus.search import EngineSearch, InScope, over, shared_search
from pbr_jax.corpus.store import Store
from pbr_jax.corpus.vectors import Vectors, VectorStore
from pbr_jax.index import engines
from pbr_jax.index.base import Engine, Rows
from pbr_jax.index.engines import exact


class Toy(Engine):
    """All vectors in a file, by row and place."""

    saves = everything = True

    def __init__(self, folder: Path | None, width: int) -> None:
        assert folder is not None
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / "all.npz"

    def follow(self, current: Rows, label: str = "") -> bool:
        held = current.vectors[current.rows]
        np.savez(self.file, rows=current.rows, vectors=held, places=current.places(current.rows))
        return True

    def nearest(self, queries, k, scopes):
        with np.load(self.file) as held:
            return [held["rows"][np.isin(held["rows"], rows)] for rows in scopes]

    def erase(self, gone):
        with np.load(self.file) as held:
            kept = ~gone[held["places"]]
            values = {name: held[name][kept] for name in held.files}
        np.savez(self.file, **values)


NAMES = [*engines.ENGINES, "toy"]


@pytest.fixture(params=NAMES)
def name(request, monkeypatch, tmp_path):
    """An engine's name; every search goes through it, in a cache of its own."""
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(engines.ENGINES, "toy", lambda: Toy)
    try:
        engines.load(request.param).check_installed()
    except UserError as error:
        pytest.skip(str(error))
    monkeypatch.setattr(engines.load(request.param), "direct", 0)
    return request.param


def opened(store: Store, name: str) -> tuple[EngineSearch, Vectors]:
    found = Vectors(store, VectorStore(Numbers()))
    search = shared_search(store, found, name)
    assert isinstance(search, EngineSearch)
    return search, found


@pytest.mark.parametrize("k", [1, 9, 80])
def test_equals_scoring_all_in_scope_through_any_change(tmp_path, name, k):
    store = made(tmp_path)
    search, found = opened(store, name)
    check(search, found, store, k)
    store.append([*profile("u1", range(400, 430)), *profile("new", [7]), *profile("", range(500, 504))])
    check(search, found, store, k, seed=1)
    store.delete("u1", ["u1400"])
    store.delete("", ["300", "501"])
    store.forget("u2")
    check(search, found, store, k, seed=2)
    store.append(profile("", range(600, 700)))
    check(search, found, store, k, seed=3)
    check(*opened(Store(tmp_path / "living"), name), store, k, seed=4)


def test_forgetting_reaches_the_files_of_every_engine(tmp_path, name):
    store = made(tmp_path)
    for user in ("", "canary"):
        store.append(profile(user, [77_777 + len(user)]))
    search, found = opened(store, name)
    search.follow("")
    row = store.history("canary" if search.engine.everything else "")[-1:]
    (document,), canary = store.documents(row), found[row].tobytes()
    assert canary in files(tmp_path / "cache")
    copies = sorted((tmp_path / "cache").rglob(f"{name}-*"))
    assert len(copies) == search.engine.saves
    vectors.erase([document.text])
    store.delete(document.user_id, [document.id])
    assert canary not in files(tmp_path / "cache")
    assert [copy for copy in copies if copy.exists()] == (copies if search.engine.everything else [])
    check(*opened(store, name), store)


@pytest.mark.parametrize("content", [b"", b"damaged"])
def test_files_that_no_engine_can_erase_from_go_as_a_whole(tmp_path, monkeypatch, content):
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "cache"))
    store = made(tmp_path)
    found = Vectors(store, VectorStore(Numbers()))
    row = store.history("u0")[:1]
    assert found[row].any()
    for name in ("removed-0123", "scann-0123", "lancedb-0123"):
        (found.folder / name).mkdir()
        (found.folder / name / "places.npy").write_bytes(content)
    vectors.erase([document.text for document in store.documents(row)])
    assert not list(found.folder.glob("[rs]*-0123"))


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.sampled_from(["exact", "per_user", "scann"]), st.integers(1, 61), st.integers(1, 9), st.randoms())
def test_any_matrix_against_brute_force(name, n, k, random):
    rng = np.random.default_rng(random.getrandbits(32))
    if name == "scann":
        pytest.importorskip("scann")
    matrix = rng.integers(-3, 4, (n, 5)).astype(np.float32)  # exact scores, many ties
    queries, rows = rng.integers(-3, 4, (4, 5)).astype(np.float32), rng.permutation(n)
    scopes = [rows, rows[rng.random(n) < 0.3], rows[:0], rows]
    search = InScope(matrix) if name == "per_user" else over(matrix, name)
    found = search.search(queries, k, scopes)
    for q, scope in enumerate(scopes):
        best = sorted((-float(matrix[row] @ queries[q]), row) for row in scope.tolist())[:k]
        padding = k - len(best)
        assert found.rows[q].tolist() == [row for _, row in best] + [-1] * padding
        assert found.scores[q].tolist() == [-score for score, _ in best] + [-np.inf] * padding


def test_scores_are_those_of_a_history():
    rng = np.random.default_rng(3)
    matrix, queries = rng.normal(size=(301, 24)).astype(np.float32), rng.normal(size=(5, 24))
    ours = over(matrix, "auto").search(queries.astype(np.float32), 7)
    plain = InScope(matrix).search(queries.astype(np.float32), 7, [np.arange(301)] * 5)
    np.testing.assert_array_equal(ours.rows, plain.rows)
    np.testing.assert_array_equal(ours.scores, plain.scores)
    nothing = over(matrix[:0], "exact").search(matrix[:2], 2)
    assert nothing.rows.tolist() == [[-1, -1]] * 2


def test_an_index_is_built_again_when_a_tenth_was_added_and_a_restored_row_is_found():
    rng = np.random.default_rng(4)
    matrix, queries = rng.normal(size=(200, 6)).astype(np.float32), np.eye(6, dtype=np.float32)
    built, states = [], [np.arange(1, 150), np.arange(160), np.delete(np.arange(160), 10), np.arange(200)]

    class Counting(exact.Engine):
        def build(self, vectors):
            built.append(len(vectors))
            return super().build(vectors)

    search = EngineSearch(Counting(None, 6), matrix, lambda: Rows(rows, matrix))
    for rows in states:
        ours, plain = (one.search(queries, 4, [rows] * 6) for one in (search, InScope(matrix)))
        np.testing.assert_array_equal(ours.rows, plain.rows)
    assert built == [149, 200]


def test_auto_takes_an_engine_by_size_where_it_is_installed(monkeypatch):
    class Large(Toy):
        auto_from = 50_000
        missing = False

        @staticmethod
        def check_installed():
            if Large.missing:
                raise UserError("install it")

    monkeypatch.setattr(engines, "ENGINES", {"exact": engines.ENGINES["exact"], "large": lambda: Large})
    assert [engines.for_size(count) for count in (49_999, 50_000)] == ["exact", "large"]
    Large.missing = True
    assert engines.for_size(10**6) == "exact"


@pytest.mark.parametrize("name", NAMES[:-1])
def test_bad_input_is_one_line(name, tmp_path, monkeypatch):
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(engines.load(name), "__init__", lambda *_: None)
    search, found = opened(made(tmp_path), name)
    for k, queries, message in (
        (0, np.zeros((1, found.shape[1])), "k is 0"),
        (1, np.zeros((1, 3)), "queries have width 3"),
        (1, np.full((1, found.shape[1]), np.nan), "row 0 of queries holds NaN"),
    ):
        with pytest.raises(UserError, match=message):
            search.search(queries.astype(np.float32), k, [np.arange(1)])
    with pytest.raises(UserError, match="there is no engine 'nothing'; there are approx, exact"):
        engines.load("nothing")
    everything: type[Engine] = SimpleNamespace(everything=True)  # type: ignore[assignment]
    monkeypatch.setitem(engines.ENGINES, name, lambda: everything)
    with pytest.raises(UserError, match="searches a store's documents, and nothing else"):
        over(np.zeros((1, 3), np.float32), name)

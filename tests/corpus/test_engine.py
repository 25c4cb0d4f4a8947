"""LanceDB's table of a store's vectors against brute force; what is deleted is in no file."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbr_jax.base.types import Document, Example, UserError
from pbr_jax.corpus import engine, vectors
from pbr_jax.corpus.engine import EngineSearch, condition, shared_search
from pbr_jax.corpus.search import InScope
from pbr_jax.corpus.store import Store, build
from pbr_jax.corpus.vectors import Vectors, VectorStore
from pbr_jax.index import lance

pytest.importorskip("lancedb")
WIDTH = 16


class Numbers:
    """A text's vector is drawn with the number that it ends with as the seed: whole numbers, with ties."""

    dim = WIDTH

    def vectors_key(self, role):
        return "n" * 64

    def encode(self, texts, *, role="document"):
        drawn = [np.random.default_rng(int(text.split()[-1])).integers(-3, 4, WIDTH) for text in texts]
        return np.array(drawn, np.float32).reshape(-1, WIDTH)


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    """Everything goes through the engine, in a cache of its own."""
    monkeypatch.setattr(engine, "DIRECT", 0)
    monkeypatch.setattr(engine, "SLACK", 1)
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "cache"))


def profile(user, numbers, date=None):
    return tuple(
        Document(f"{user}{n}", user, f"text {n}", time=None if date is None else date + 2e7 * (n % 7))
        for n in numbers
    )


def made(folder: Path, living: bool = True) -> Store:
    """Users u0 to u3, dated and undated documents, with duplicates, and shared ones."""
    users = {f"u{i}": [*range(20 * i, 20 * i + 20 + i), 5, 5 + i] for i in range(4)}
    examples = [
        Example(f"q{u}", u, "query 1", "in", "t", profile(u, dict.fromkeys(n), 9.5e8 if u > "u1" else None))
        for u, n in users.items()
    ]
    shared = [Document(f"s{n}", "", f"text {n}", shared=True) for n in range(300, 350)]
    build(folder / "frozen", examples, shared={"shared": shared})
    frozen = Store(folder / "frozen")
    return frozen.copy_to(folder / "living") if living else frozen


def opened(store: Store) -> tuple[EngineSearch, Vectors]:
    found = Vectors(store, VectorStore(Numbers()))
    search = shared_search(store, found, "lancedb")
    assert isinstance(search, EngineSearch)
    return search, found


def check(search: EngineSearch, found: Vectors, store: Store, k: int = 4, seed: int = 0) -> None:
    """Rows and scores equal those of scoring everything in scope."""
    rng = np.random.default_rng(seed)
    users = [u for u in store.users if not u.startswith("\0")]
    scopes = [store.history(u) for u in [*users, *([""] if store.has_shared else [])]]
    scopes += [rows[rng.random(len(rows)) < share] for rows in scopes for share in (0.1, 0.6, 0.95)]
    scopes += [store.before(u, time) for u in users for time in (0.0, 1.0e9, 1.1e9)]
    scopes += [scopes[0][:0], np.concatenate([scopes[0], scopes[1][::-1]]), np.repeat(scopes[2], 2)]
    queries = rng.integers(-3, 4, (len(scopes), WIDTH)).astype(np.float32)
    ours, plain = search.search(queries, k, scopes), InScope(found).search(queries, k, scopes)
    np.testing.assert_array_equal(ours.rows, plain.rows)
    np.testing.assert_array_equal(ours.scores, plain.scores)


def files(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def tables(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache").rglob("lancedb-*"))


@pytest.mark.parametrize("k", [1, 3, 9, 80])
def test_equals_scoring_all_in_scope(tmp_path, k):
    store = made(tmp_path, living=False)
    check(*opened(store), store, k)


def test_the_engine_itself_keeps_to_the_condition(tmp_path):
    store = made(tmp_path)
    search, _ = opened(store)
    search.follow(store.columns)
    rng = np.random.default_rng(1)
    every = np.arange(store.rows)
    for _ in range(60):
        user = ["", "u0", "u2", "u3"][rng.integers(4)]
        rows = store.before(user, [None, 9.8e8, 1.05e9, np.inf][rng.integers(4)])
        rows = rows[rng.random(len(rows)) < rng.choice([0.2, 0.9, 1.0])]
        if not len(rows):
            continue
        where = condition(store.columns, rows)
        query = rng.normal(size=(1, WIDTH)).astype(np.float32)
        for probes in (0, None):
            hits = search._table.nearest(query, len(every), where, len(rows), probes=probes).rows[0]
            assert sorted(hits[hits >= 0]) == rows.tolist()


def test_a_scope_of_one_owner_before_a_date_lists_no_rows(tmp_path):
    store = made(tmp_path)
    assert condition(store.columns, store.history("u3")) == f"user IN ({store.code('u3')})"
    rows = store.before("u3", 1.0e9)
    assert 0 < len(rows) < len(store.history("u3"))
    assert "row" not in condition(store.columns, rows)
    assert condition(store.columns, store.history("u2")[1:]).endswith(" AND row NOT IN (43)")


def test_what_is_added_is_found_and_what_is_deleted_is_not(tmp_path):
    store = made(tmp_path)
    search, found = opened(store)
    check(search, found, store)
    store.append(profile("u1", range(400, 430)) + profile("new", [7]))
    check(search, found, store, seed=1)
    store.append([Document("u0" + "3", "u0", "text 999")])  # a new version
    check(search, found, store, seed=2)
    store.delete("u1", ["u1400", "u121"])
    store.forget("u2")
    check(search, found, store, seed=3)
    again, _ = opened(Store(tmp_path / "living"))
    check(again, found, store, seed=4)
    assert search._table.column("row").tolist() == np.flatnonzero(store.owners != -2).tolist()
    assert len(tables(tmp_path)) == 1


@pytest.mark.parametrize("approximate", [False, True])
def test_no_byte_of_a_deleted_vector_is_left(tmp_path, monkeypatch, approximate):
    if approximate:
        monkeypatch.setattr(lance, "APPROXIMATE_FROM", 300)
    store = made(tmp_path)
    store.append(profile("canary", [77_777]) + profile("many", range(1000, 1300)))
    search, found = opened(store)
    search.follow(store.columns)
    (row,), (table,) = store.history("canary"), tables(tmp_path)
    canary = found[np.array([row])].tobytes()
    assert canary in files(table)
    assert bool(list(table.rglob("*.idx"))) == approximate
    store.forget("canary")
    search.follow(store.columns)
    assert canary not in files(table)
    assert found[store.history("u1")[:1]].tobytes() in files(table)
    if not approximate:
        check(search, found, store)


def test_erasing_texts_reaches_the_tables_of_all_stores(tmp_path):
    frozen = made(tmp_path, living=False)
    store = frozen.copy_to(tmp_path / "living")
    for one in (frozen, store):
        check(*opened(one), one)
    found = Vectors(store, VectorStore(Numbers()))
    row = store.history("u3")[3:4]
    (document,), vector = store.documents(row), found[row].tobytes()
    assert len(tables(tmp_path)) == 2
    assert vector in files(tmp_path / "cache")
    assert vectors.erase([document.text]) == 1
    assert vector not in files(tmp_path / "cache")
    check(*opened(frozen), frozen)  # whose documents stay: encoded again


def test_without_lancedb_an_erasure_takes_the_whole_table(tmp_path, monkeypatch):
    store = made(tmp_path)
    check(*opened(store), store)
    monkeypatch.setattr(lance, "is_installed", lambda: False)
    vectors.erase(store.texts_of("u0")[:1])
    assert not tables(tmp_path)


def test_a_damaged_table_is_one_line_and_an_erasure_takes_it(tmp_path):
    store = made(tmp_path)
    search, found = opened(store)
    check(search, found, store)
    (table,) = tables(tmp_path)
    for manifest in table.rglob("*.manifest"):
        manifest.write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"cannot be read .*; delete it"):
        opened(store)
    vectors.erase(store.texts_of("u0")[:1])
    assert not tables(tmp_path)
    check(*opened(store), store)


@pytest.mark.parametrize("step", ["add", "delete", "optimize"])
def test_a_deletion_that_did_not_end_is_made_good(tmp_path, monkeypatch, step):
    store = made(tmp_path)
    store.append(profile("canary", [77_777]))
    search, found = opened(store)
    check(search, found, store)
    canary = found[store.history("canary")].tobytes()
    (table,) = tables(tmp_path)
    store.forget("canary")

    class Killed(BaseException):
        pass

    def killed(*_, **__):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(type(search._table._table), step, killed)
        with pytest.raises(Killed):
            search.follow(store.columns)
    assert canary in files(table)
    search.follow(store.columns)
    assert canary not in files(table)
    check(search, found, store)


def test_an_erasure_takes_what_was_written_and_not_added(tmp_path):
    store = made(tmp_path)
    search, found = opened(store)
    check(search, found, store)
    (table,) = tables(tmp_path)
    (some,) = list(table.rglob("data/*.lance"))[:1]
    (some.parent / f"{'1' * 24}.lance").write_bytes(some.read_bytes() + b"left by a killed process")
    vectors.erase(["a text that was not added"])
    assert b"left by a killed process" not in files(table)
    check(search, found, store)


def test_a_reader_of_an_older_state_gets_that_state(tmp_path):
    store = made(tmp_path)
    search, found = opened(store)
    other = Store(tmp_path / "living")
    with store.reading():
        check(search, found, store)
        other.append(profile("u1", range(500, 520)))
        check(*opened(other), other)
        check(search, found, store, seed=5)
    check(search, found, store, seed=6)


def test_a_damaged_header_and_rows_that_stand_twice_are_mended(tmp_path):
    store = made(tmp_path)
    search, found = opened(store)
    check(search, found, store)
    table = search._table
    some = store.history("u1")[:9]
    of = store.columns.table[some]
    table.add(some, of["user"], of["until"], found.places(some), found[some])
    (table.folder / "state.json").write_text("{")
    check(search, found, store)
    assert len(table) == len(np.unique(table.column("row")))


def test_approximate_search_has_the_recall_that_it_is_tuned_for(tmp_path, monkeypatch):
    monkeypatch.setattr(lance, "APPROXIMATE_FROM", 1_000)
    store = made(tmp_path)
    store.append(profile("big", range(1000, 4000)))
    search, found = opened(store)
    rows = store.history("big")
    queries = found[rows[::100]] + np.random.default_rng(2).normal(size=(30, WIDTH)).astype(np.float32) / 4
    ours = search.search(queries, 10, [rows] * 30).rows
    best = InScope(found).search(queries, 10, [rows] * 30).rows
    assert search._table.header.probes > 0
    assert np.mean([len(set(a) & set(b)) / 10 for a, b in zip(best, ours)]) >= 0.8


def test_bad_input_is_one_line(tmp_path):
    store = made(tmp_path)
    search, _ = opened(store)
    scope = [store.history("u0")]
    with pytest.raises(UserError, match="k is 0"):
        search.search(np.zeros((1, WIDTH), np.float32), 0, scope)
    with pytest.raises(UserError, match="queries have width 3"):
        search.search(np.zeros((1, 3), np.float32), 1, scope)
    with pytest.raises(UserError, match="row 0 of queries holds NaN"):
        search.search(np.full((1, WIDTH), np.nan, np.float32), 1, scope)
    one, nan = np.zeros(1, np.int64), np.full((1, WIDTH), np.nan, np.float32)
    with pytest.raises(UserError, match="vectors hold NaN"):
        search._table.add(one, one.astype(np.int32), np.zeros(1), one, nan)
    assert len(search._table) == 0


@settings(max_examples=8, deadline=None, derandomize=True)
@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_any_size(tmp_path_factory, n, k, seed):
    folder = tmp_path_factory.mktemp("any")
    build(folder / "s", [Example("q", "u", "query 1", "in", "t", profile("u", range(n)))])
    store = Store(folder / "s")
    found = Vectors(store, VectorStore(Numbers(), folder=folder / "vectors"))
    check(EngineSearch(store, found), found, store, k, seed)


WRITER = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import test_engine
from pbr_jax.corpus import engine
from pbr_jax.corpus.store import Store
engine._ADDED, engine.DIRECT, engine.SLACK = 8, 0, 1
store = Store(Path({store!r}))
for number in range(1000):
    store.append(test_engine.profile("w", range(2000 + 10 * number, 2010 + 10 * number)))
    if number % 3 == 2:
        store.delete("w", [f"w{{2000 + 10 * number}}"])
    search, found = test_engine.opened(store)
    search.follow(store.columns)
    print(number, flush=True)
"""


@pytest.mark.long
@pytest.mark.parametrize("wait", [0.0, 0.23, 0.61])
def test_a_killed_writer_leaves_a_table_that_is_mended(tmp_path, wait):
    store = made(tmp_path)
    code = WRITER.format(tests=str(Path(__file__).parent), store=str(tmp_path / "living"))
    search, found = opened(store)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=os.environ) as writer:
        assert writer.stdout is not None
        for _ in range(4):
            assert writer.stdout.readline()
        check(search, found, store)  # two processes at once
        time.sleep(wait)
        writer.send_signal(signal.SIGKILL)
    check(search, found, store)
    assert len(search._table) == len(np.unique(search._table.column("row")))

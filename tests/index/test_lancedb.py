"""LanceDB's table beyond the contract of engines: conditions, deletions that were killed, damage, recall."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from engine_world import WIDTH, Numbers, check, files, made, profile

from pbr_jax.base.types import UserError
from pbr_jax.corpus import vectors
from pbr_jax.corpus.search import EngineSearch, InScope, shared_search
from pbr_jax.corpus.store import Store
from pbr_jax.corpus.vectors import Vectors, VectorStore
from pbr_jax.index.engines import lancedb
from pbr_jax.index.engines.lancedb import Engine, condition

pytest.importorskip("lancedb")


@pytest.fixture(autouse=True)
def small(monkeypatch, tmp_path):
    """Everything goes through the engine, in a cache of its own."""
    monkeypatch.setattr(Engine, "direct", 0)
    monkeypatch.setattr(lancedb, "SLACK", 1)
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "cache"))


def opened(store: Store) -> tuple[EngineSearch, Vectors]:
    found = Vectors(store, VectorStore(Numbers()))
    search = shared_search(store, found, "lancedb")
    assert isinstance(search, EngineSearch)
    return search, found


def engine_of(search: EngineSearch) -> Engine:
    assert isinstance(search.engine, Engine)
    return search.engine


def tables(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache").rglob("lancedb-*"))


def test_the_engine_itself_keeps_to_the_condition(tmp_path):
    store = made(tmp_path)
    search, _ = opened(store)
    search.follow("")
    rng = np.random.default_rng(1)
    every = np.arange(store.rows)
    for _ in range(60):
        user = ["", "u0", "u2", "u3"][rng.integers(4)]
        rows = store.before(user, [None, 9.8e8, 1.05e9, np.inf][rng.integers(4)])
        rows = rows[rng.random(len(rows)) < rng.choice([0.2, 0.9, 1.0])]
        if not len(rows):
            continue
        where = condition(search._current(), rows)
        query = rng.normal(size=(1, WIDTH)).astype(np.float32)
        for probes in (0, None):
            hits = engine_of(search).search(query, len(every), where, len(rows), probes=probes).rows[0]
            assert sorted(hits[hits >= 0]) == rows.tolist()


def test_a_scope_of_one_owner_before_a_date_lists_no_rows(tmp_path):
    store = made(tmp_path)
    search, _ = opened(store)
    assert condition(search._current(), store.history("u3")) == f"user IN ({store.code('u3')})"
    rows = store.before("u3", 1.0e9)
    assert 0 < len(rows) < len(store.history("u3"))
    assert "row" not in condition(search._current(), rows)
    assert condition(search._current(), store.history("u2")[1:]).endswith(" AND row NOT IN (43)")


@pytest.mark.parametrize("approximate", [False, True])
def test_no_byte_of_a_deleted_vector_is_left(tmp_path, monkeypatch, approximate):
    if approximate:
        monkeypatch.setattr(lancedb, "APPROXIMATE_FROM", 300)
    store = made(tmp_path)
    store.append(profile("canary", [77_777]) + profile("many", range(1000, 1300)))
    search, found = opened(store)
    search.follow("")
    (row,), (table,) = store.history("canary"), tables(tmp_path)
    canary = found[np.array([row])].tobytes()
    assert canary in files(table)
    assert bool(list(table.rglob("*.idx"))) == approximate
    store.forget("canary")
    search.follow("")
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
    monkeypatch.setitem(sys.modules, "lancedb", None)
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
        patch.setattr(type(engine_of(search)._table), step, killed)
        with pytest.raises(Killed):
            search.follow("")
    assert canary in files(table)
    search.follow("")
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
    table = engine_of(search)
    some = store.history("u1")[:9]
    of = store.columns.table[some]
    table.add(some, of["user"], of["until"], found.places(some), found[some])
    (table.folder / "state.json").write_text("{")
    check(search, found, store)
    assert len(table) == len(np.unique(table.column("row")))


def test_approximate_search_has_the_recall_that_it_is_tuned_for(tmp_path, monkeypatch):
    monkeypatch.setattr(lancedb, "APPROXIMATE_FROM", 1_000)
    store = made(tmp_path)
    store.append(profile("big", range(1000, 4000)))
    search, found = opened(store)
    rows = store.history("big")
    queries = found[rows[::100]] + np.random.default_rng(2).normal(size=(30, WIDTH)).astype(np.float32) / 4
    ours = search.search(queries, 10, [rows] * 30).rows
    best = InScope(found).search(queries, 10, [rows] * 30).rows
    assert engine_of(search).header.probes > 0
    assert np.mean([len(set(a) & set(b)) / 10 for a, b in zip(best, ours)]) >= 0.8


WRITER = """
import sys
from pathlib import Path
sys.path[:0] = {tests!r}
import engine_world, test_lancedb
from pbr_jax.corpus.store import Store
from pbr_jax.index.engines import lancedb
lancedb.ADDED, lancedb.Engine.direct, lancedb.SLACK = 8, 0, 1
store = Store(Path({store!r}))
for number in range(1000):
    store.append(engine_world.profile("w", range(2000 + 10 * number, 2010 + 10 * number)))
    if number % 3 == 2:
        store.delete("w", [f"w{{2000 + 10 * number}}"])
    search, found = test_lancedb.opened(store)
    search.follow("")
    print(number, flush=True)
"""


@pytest.mark.long
@pytest.mark.parametrize("wait", [0.0, 0.23, 0.61])
def test_a_killed_writer_leaves_a_table_that_is_mended(tmp_path, wait):
    store = made(tmp_path)
    code = WRITER.format(
        tests=[str(folder) for folder in Path(__file__).parents[:2]], store=str(tmp_path / "living")
    )
    search, found = opened(store)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=os.environ) as writer:
        assert writer.stdout is not None
        for _ in range(4):
            assert writer.stdout.readline()
        check(search, found, store)  # two processes at once
        time.sleep(wait)
        writer.send_signal(signal.SIGKILL)
    check(search, found, store)
    assert len(engine_of(search)) == len(np.unique(engine_of(search).column("row")))

"""A store that is appended to and deleted from: against a dictionary, beside readers, and after kills."""

import dataclasses
import math
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbr_jax.base.types import Document, Example, UserError
from pbr_jax.corpus.store import GONE, SHARED, Store, build
from pbr_jax.corpus.writer import Writer

USERS = ("", "ann", "bob", "eve")


def document(user: str, id: str, version: int = 0, **fields: object) -> Document:
    text = f"CANARY-{user}-{id}-{version}"
    values = {"text": text, "fields": {"title": f"title {text}"}, "shared": not user, **fields}
    return Document(id, user, **values)  # type: ignore[arg-type]


def example(id: str, user: str, *profile: Document, **fields: object) -> Example:
    values = {"query": f"CANARY-{user}-query", "input": "in", "target": f"CANARY-{user}-target", **fields}
    return Example(id, user, profile=profile, **values)  # type: ignore[arg-type]


def living(folder: Path, *examples: Example, shared: tuple[Document, ...] = (), name: str = "s") -> Store:
    build(folder / "built.sqlite", examples, "title", shared={"passages": shared})
    return Store(folder / "built.sqlite").copy_to(folder / name / "store.sqlite")


def recounted(store: Store) -> str:
    """The hash of the content from all rows that there are."""
    with store.reading() as connection:
        writer = Writer(connection)
        writer._content = 0
        tables = {
            "documents": "SELECT * FROM documents WHERE gone IS NULL",
            "texts": "SELECT * FROM texts WHERE id IS NOT NULL",
            "examples": "SELECT * FROM examples WHERE training IS NOT NULL",
            "profiles": "SELECT * FROM profiles WHERE rows IS NOT NULL",
            "users": "SELECT * FROM users WHERE gone IS NULL",
        }
        for table, query in tables.items():
            for row in connection.execute(query).fetchall():
                writer._count(table, row, 1)
        return f"{writer._content:064x}"


def agrees(store: Store, model: dict[tuple[str, str], Document]) -> None:
    """A store holds the documents of a model, whatever it is asked."""
    texts = dict(store.texts())
    assert len(texts) == store.summary.documents == len(model)
    assert len(store.owners) == len(store.times) == store.rows
    assert set(np.flatnonzero(store.owners != GONE)) == set(texts)
    assert store.has_shared == any(not user for user, _ in model)
    for user in USERS:
        own = [there for (name, _), there in model.items() if name == user]
        if user in store.users or (not user and own):
            rows = store.history(user)
            assert (np.diff(rows) > 0).all()
            found = store.documents(rows)
            assert {d.id: d for d in found} == {d.id: d for d in own}
            assert len(found) == len(own)
            assert [texts[row] for row in rows] == [d.text for d in found]
            assert (store.owners[rows] == store.code(user)).all()
            assert [None if np.isnan(t) else t for t in store.times[rows]] == [d.time for d in found]
    assert store.content == recounted(store)


ACTS = st.lists(
    st.one_of(
        st.tuples(
            st.just("append"),
            st.lists(st.tuples(st.sampled_from(USERS), st.integers(0, 5), st.integers(0, 3)), max_size=9),
        ),
        st.tuples(st.just("delete"), st.tuples(st.sampled_from(USERS), st.sets(st.integers(0, 5)))),
        st.tuples(st.just("clear"), st.sampled_from(USERS)),
        st.tuples(st.just("forget"), st.sampled_from(USERS[1:])),
    ),
    max_size=12,
)


@settings(max_examples=15, deadline=None)
@given(ACTS)
def test_any_appends_and_deletions_are_those_of_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory, acts: list
) -> None:
    folder = tmp_path_factory.mktemp("store")
    first = document("ann", "0", time=3.0)
    store = living(folder, example("1", "ann", first), example("2", "bob"))
    model, dead = {("ann", "0"): first}, set[str]()
    other = Store(folder / "s" / "store.sqlite")  # has seen every state, or only the last one
    for act, what in acts:
        before = set(model)
        if act == "append":
            added = [
                document(user, str(id), version, time=float(version) or None) for user, id, version in what
            ]
            rows = store.append(added)
            dead |= {d.text for d in model.values()}
            model |= {(d.user_id, d.id): d for d in added}
            assert store.documents(rows) == [model[d.user_id, d.id] for d in added]
        elif act == "delete":
            user, numbers = what
            ids = [str(n) for n in sorted(numbers) if (user, str(n)) in model]
            if ids:
                dead |= {model.pop((user, id)).text for id in ids}
                assert len(store.delete(user, ids)) == len(ids)
        elif what in store.users or (not what and store.has_shared):
            dead |= {model.pop(key).text for key in before if key[0] == what}
            (store.delete if act == "clear" else store.forget)(what)
            assert act == "clear" or what not in store.users
        agrees(store, model)
    agrees(other, model)
    there = {d.text for d in model.values()}
    for text in dead - there:
        assert not holds(folder / "s", text)
    assert all(holds(folder / "s", text) for text in there)


def holds(folder: Path, *words: str) -> list[str]:
    """Which of these words stand in the files of a folder."""
    data = b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())
    return [word for word in words if word.encode() in data]


def test_a_new_version_replaces_the_old_one_where_that_was_seen(tmp_path: Path) -> None:
    a, b = document("ann", "a"), document("ann", "b")
    asked = example("1", "ann", a, b)
    store = living(tmp_path, asked, example("2", "ann", b))
    assert store.append([a]).tolist() == [0]  # is there already
    content = store.content
    changed = document("ann", "a", 1)
    assert store.append([changed]).tolist() == [2]
    assert store.content != content
    assert store.documents(store.visible(asked, "ann")) == [changed, b]
    assert store.history("ann").tolist() == [1, 2]
    with pytest.raises(UserError, match="row 0 holds no document"):
        store.documents([0])
    assert not holds(tmp_path / "s", a.text)
    last = document("ann", "a", 3)
    assert store.append([document("ann", "a", 2), last]).tolist() == [4, 4]
    assert store.documents(store.visible(asked, "ann")) == [last, b]
    # The same id of another owner is another document.
    assert store.append([document("bob", "a"), document("", "a")]).tolist() == [5, 6]
    assert len(store.history("ann")) == 2


def test_what_a_user_leaves_behind(tmp_path: Path) -> None:
    own, other = document("ann", "secretid", time=1.0), document("bob", "1")
    asked = example("q", "ann", own, category="CANARY-ann-category", alternatives=("CANARY-ann-alternative",),
                    unit="CANARY-ann-unit", options=("CANARY-ann-option",))  # fmt: skip
    store = living(tmp_path, asked, example("2", "bob", other), example("3", "bob", other))
    words = ("secretid", own.text, "CANARY-ann", "ann")
    assert holds(tmp_path / "s", *words) == list(words)
    store.forget("ann")
    assert holds(tmp_path / "s", *words) == []
    assert [e.id for e in store.examples()] == ["2", "3"]
    assert store.summary[:4] == (2, 0, 1, 1)
    with pytest.raises(UserError, match=r"user 'ann' is not among the 1 users of this data.*bob"):
        store.history("ann")
    assert len(store.near_targets) == 2
    assert store.append([document("ann", "new")]).tolist() == [2]  # no row, and no code, of the past
    assert (store.code("ann"), store.owners.tolist()) == (2, [GONE, 1, 2])
    fresh = Store(tmp_path / "s" / "store.sqlite")
    assert (fresh.owners.tolist(), fresh.users) == (store.owners.tolist(), store.users)


def test_space_is_given_back(tmp_path: Path) -> None:
    store = living(tmp_path, example("1", "ann"))
    store.append([document("ann", str(i), fields={"f": "z" * 1000}) for i in range(1500)])
    path = tmp_path / "s" / "store.sqlite"
    store.content  # noqa: B018
    full = sum(file.stat().st_size for file in path.parent.iterdir())
    store.delete("ann")
    assert sum(file.stat().st_size for file in path.parent.iterdir()) < full / 5
    assert store.append([document("ann", "next")]).tolist() == [1500]


def test_wrong_calls_change_nothing(tmp_path: Path) -> None:
    store = living(tmp_path, example("1", "ann", document("ann", "a")))
    content = store.content
    with pytest.raises(UserError, match="document 'b' is not in the store; nothing was deleted"):
        store.delete("ann", ["a", "b"])
    with pytest.raises(UserError, match="is not among"):
        store.delete("carl")
    with pytest.raises(UserError, match="is not among"):
        store.delete("", ["a"])
    with pytest.raises(UserError, match="want user_id"):
        store.append([document("bob", "c"), dataclasses.replace(document("bob", "d"), shared=True)])
    assert (store.content, store.users) == (content, ["ann"])
    built = Store(tmp_path / "built.sqlite")
    with pytest.raises(UserError, match="stays as it is; write to a copy"):
        built.append([document("ann", "b")])
    with pytest.raises(UserError, match="is there already"):
        built.copy_to(tmp_path / "s" / "store.sqlite")
    with store.reading(), pytest.raises(RuntimeError, match="inside `reading`"):
        store.delete("ann")
    assert oct((tmp_path / "s" / "store.sqlite").stat().st_mode)[-3:] == "600"


def test_shared_documents_come_and_go(tmp_path: Path) -> None:
    store = living(tmp_path, example("1", "ann"), shared=(document("", "p"),))
    asked = next(store.examples())
    store.append([document("", "q")])
    assert store.owners.tolist() == [SHARED, SHARED]
    assert [d.id for d in store.documents(store.visible(asked, ""))] == ["p", "q"]
    store.delete("")
    assert not store.has_shared
    with pytest.raises(UserError, match="is not among"):
        store.visible(asked, "")


def test_the_content_is_what_is_held_whatever_the_way_there(tmp_path: Path) -> None:
    a, b, c = (document("ann", id) for id in "abc")
    first = living(tmp_path, example("1", "ann", a, b), name="x")
    second = living(tmp_path, example("1", "ann", a, b), name="y")
    assert first.content == second.content == Store(tmp_path / "built.sqlite").content
    first.append([c])
    assert first.content != second.content
    first.delete("ann", ["c"])
    assert first.content == second.content
    second.delete("ann", ["b"])
    assert first.content != second.content


def test_many_read_while_one_writes(tmp_path: Path) -> None:
    """Every document of a state is of the same round, and no reader sees half of a round."""
    store = living(tmp_path, example("1", "ann", *(document("ann", str(i)) for i in range(20))))
    asked, done, faults, seen = next(store.examples()), threading.Event(), [], set()

    def read() -> None:
        try:
            while not done.is_set():
                with store.reading():
                    rows = store.visible(asked, "ann")
                    found = store.documents(rows)
                    assert len(found) == len(store.history("bob")) + 10 == 20
                    (version,) = {d.text.rsplit("-", 1)[1] for d in found}
                    assert (store.owners[rows] == 0).all()
                    assert {d.text.rsplit("-", 1)[1] for d in store.documents(store.history("bob"))} == {
                        version
                    }
                seen.add(version)
        except BaseException as error:
            faults.append(error)

    store.append([document("bob", str(i)) for i in range(10)])
    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for version in range(1, 12):
        mine = [document("ann", str(i), version) for i in range(20)]
        store.append([*mine, *(document("bob", str(i), version) for i in range(10))])
    done.set()
    for thread in threads:
        thread.join()
    assert not faults
    assert len(seen) > 1
    assert not holds(tmp_path / "s", *(f"CANARY-ann-0-{version}" for version in range(2, 11)))


def test_a_reader_of_an_old_state_keeps_a_deletion_waiting(tmp_path: Path) -> None:
    store = living(tmp_path, example("1", "ann", document("ann", "a")))
    started, order = threading.Event(), []

    def read() -> None:
        with store.reading():
            rows = store.history("ann")
            started.set()
            time.sleep(0.3)
            order.append([d.id for d in store.documents(rows)])

    thread = threading.Thread(target=read)
    thread.start()
    started.wait()
    store.delete("ann", ["a"])
    order.append("deleted")
    thread.join()
    assert order == [["a"], "deleted"]
    assert not holds(tmp_path / "s", "CANARY-ann-a-0")


KILLED = """
import sys
from pathlib import Path
from pbr_jax.corpus.store import Store
from pbr_jax.base.types import Document
store = Store(Path(sys.argv[1]))
print("ready", flush=True)
for version in range(1, 10000):
    store.append([Document(f"{i}", "ann", f"KILLED-ann-{i}-{version}-end", {}) for i in range(30)])
    store.delete("ann", [f"{i}" for i in range(30)])
"""


def test_a_kill_leaves_the_old_or_the_new_state(tmp_path: Path) -> None:
    other = document("bob", "b")
    living(tmp_path, example("1", "bob", other), example("2", "ann")).close()
    path = tmp_path / "s" / "store.sqlite"
    delay = random.Random(0)
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(delay.uniform(0.0, 0.15))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        store = Store(path)
        found = store.documents(store.history("ann"))
        assert len(found) in (0, 30)
        assert len({d.text.split("-")[3] for d in found}) <= 1
        assert store.documents(store.history("bob")) == [other]
        assert store.content == recounted(store)
        there = path.parent.rglob("*")
        old = [b for p in there if p.is_file() for b in p.read_bytes().split(b"KILLED-ann-")[1:]]
        assert {b.split(b"-end")[0] for b in old} <= {d.text[11:-4].encode() for d in found}
        store.append([document("ann", "0", 99)])  # the lock is free
        store.delete("ann")
        store.close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def in_another_process(code: str, *arguments: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=True
    )
    return done.stdout


LOOK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
print(connection.execute("SELECT COUNT(*) FROM texts WHERE text IS NOT NULL").fetchone()[0])
connection.close()
"""


def test_a_store_that_is_opened_twice_keeps_its_locks(tmp_path: Path) -> None:
    """Without them the other process, which is the last one as far as it sees, removes the log."""
    store = living(tmp_path, example("1", "ann"))
    store.append([document("ann", "a")])
    path = tmp_path / "s" / "store.sqlite"
    again = Store(path)
    assert in_another_process(LOOK, path) == "1\n"
    assert (tmp_path / "s" / "store.sqlite-wal").exists()
    store.append([document("ann", "b")])
    assert len(again.history("ann")) == 2
    assert in_another_process(LOOK, path) == "2\n"


def test_a_deletion_waits_for_others_who_clear_the_log(tmp_path: Path) -> None:
    store, path, done = living(tmp_path, example("1", "ann")), tmp_path / "s" / "store.sqlite", []

    def open_and_close() -> None:
        while not done:
            Store(path).close()

    threads = [threading.Thread(target=open_and_close) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for number in range(10):
            store.append([document("bob", str(number))])
            store.forget("bob")
            assert not holds(tmp_path / "s", "CANARY-bob")
    finally:
        done.append(True)
        for thread in threads:
            thread.join()


def again(store: Store, path: Path) -> None:
    with pytest.raises(UserError, match="user 'ann' is not among"):
        store.forget("ann")


@pytest.mark.parametrize(
    "finish",
    [
        again,
        lambda store, path: Store(path),
        lambda store, path: store.close(),
        lambda store, path: store.append([document("bob", "b")]),
        lambda store, path: store.content,
    ],
    ids=["forget", "open", "close", "append", "read"],
)
def test_bytes_that_a_reader_has_kept_go_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finish: Callable[[Store, Path], object]
) -> None:
    store, path = living(tmp_path, example("1", "ann", document("ann", "a"))), tmp_path / "s" / "store.sqlite"
    monkeypatch.setattr("pbr_jax.corpus.store.PATIENCE", 0)
    with closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM users").fetchone()
        with pytest.raises(UserError, match=r"are deleted, but someone.*; they go when.*do not repeat"):
            store.forget("ann")
        assert holds(tmp_path / "s", "CANARY-ann-a-0")
    finish(store, path)
    assert not holds(tmp_path / "s", "CANARY-ann-a-0")
    assert store.users != ["ann"]


def test_dates_that_are_no_dates(tmp_path: Path) -> None:
    store = living(tmp_path, example("1", "ann", time=5.0))
    store.append([document("", "late", time=9.0), document("", "never", time=math.inf), document("", "none")])
    asked = next(store.examples())
    for one in (store, Store(tmp_path / "s" / "store.sqlite")):
        assert [d.id for d in one.documents(one.visible(asked, ""))] == ["none"]
        assert one.times.tolist()[:2] == [9.0, math.inf]
    for time_ in (math.nan, -math.inf):
        for wrong in (document("ann", "n", time=time_), document("ann", "n", time=1.0, until=time_)):
            with pytest.raises(UserError, match=r"a time is .*, want seconds since 1970, or None"):
                store.append([wrong])


def test_names_and_texts_that_cannot_be_stored(tmp_path: Path) -> None:
    store = living(tmp_path, example("1", "ann"))
    with pytest.raises(UserError, match="begins with a NUL"):
        store.append([document("\0000", "a")])
    for wrong in (
        document("ann", "a", text="half \ud83d"),
        document("ann", "\ud83d"),
        document("x\ud83d", "a"),
        document("ann", "a", fields={"title": "\ud83d"}),
    ):
        with pytest.raises(UserError, match=r"holds '\\ud83d', which is half of a character"):
            store.append([document("ann", "whole"), wrong])
    assert store.summary.documents == 0


READ_ONLY = """
import os, sys
from pathlib import Path
from pbr_jax.corpus.store import Store
from pbr_jax.base.types import Document, UserError
if os.getuid() == 0:
    os.setresuid(65534, 65534, 65534)
def tell(act):
    try:
        print(act())
    except UserError as error:
        print(error)
tell(lambda: [text for _, text in Store(Path(sys.argv[1])).texts()])
tell(lambda: Store(Path(sys.argv[1])).append([Document("b", "ann", "")]))
"""


def test_a_folder_that_may_only_be_read() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        living(folder, example("1", "ann", document("ann", "a"))).close()
        path = folder / "s" / "store.sqlite"
        for place, mode in ((path, 0o444), (path.parent, 0o555), (folder, 0o755)):
            place.chmod(mode)
        told = in_another_process(READ_ONLY, path).splitlines()
        path.parent.chmod(0o755)
    assert told[0] == "['CANARY-ann-a-0']"
    assert told[1] == f"{path} may only be read here; copy its folder, and write to the copy"


@pytest.mark.parametrize("table", ["units", "choices"])
def test_a_store_of_an_older_version_is_refused_in_one_line(tmp_path: Path, table: str) -> None:
    store = living(tmp_path, example("q", "ann", document("ann", "a"), unit="a 1"))
    store.close()
    path = tmp_path / "s" / "store.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"DROP TABLE {table}")
    with pytest.raises(UserError, match=rf"store\.sqlite was written by an older version, without {table}"):
        Store(path)

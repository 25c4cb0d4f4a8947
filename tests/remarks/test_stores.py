"""Remarks change the stores as the judge and the quorum say, and what they changed is erased."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from worlds import World

from pbr_jax.base.types import Document, UserError
from pbr_jax.corpus.vectors import VectorStore, digest
from pbr_jax.options import Remarks
from pbr_jax.remarks.judge import Script

LAKE = "the lake is closed"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "cache"))
    return World(tmp_path)


def test_a_shared_claim_waits_for_its_quorum_and_a_request_counts_once(world: World):
    first = world.stores.observe("ann", LAKE, "r1")
    assert (first.state, first.votes, first.quorum, first.claim) == ("judged", 1, 2, 1)
    assert world.stores.observe("ann", LAKE, "r1") == first
    assert world.stores.observe("ann", f"{LAKE}", "r2").votes == 1  # the same user
    assert world.stores.observe("bob", "ferries: the lake is far", "r3").claim == 3  # another claim
    assert "the lake is open" in world.seen("cyd")
    second = world.stores.observe("bob", LAKE, "r4")
    assert (second.state, second.document, second.version) == ("applied", "remark:1", 1)
    assert world.stores.observe("ann", LAKE, "r1").state == "applied"
    assert world.stores.observe("cyd", LAKE, "r5").version == 1  # it stands already
    for user in ("ann", "bob", "cyd"):
        assert LAKE in world.seen(user)
        assert "the lake is open" not in world.seen(user)
    with pytest.raises(UserError, match="request 'r1' was made before with another user or text"):
        world.stores.observe("bob", LAKE, "r1")


def test_what_is_unknown_is_personal_what_is_wrong_is_refused_and_nobody_changes_anothers_store(world: World):
    other = Script(
        [{"remark": "", "verdict": "unknown", "route": "shared", "operation": "hide", "document": "p1"}]
    )
    assert world.stores.observe("new", "i like oolong", judge=other).document == "remark:1"
    assert "i like oolong" in world.seen("new")
    assert "ferries go at noon" in world.seen("new")
    assert not any("i like oolong" in world.seen(user) for user in ("ann", "bob", "cyd"))
    assert world.stores.observe("ann", "false").state == "refused"
    assert world.stores.observe("ann", "thanks").verdict is None
    assert world.stores.observe("ann", "ann takes no tea").state == "applied"
    assert "ann takes tea" not in world.seen("ann")
    assert (
        world.stores.observe("bob", "bob takes no tea").operation == "add"
    )  # ann0 is not among his documents
    (example,) = [example for example in world.store.examples() if example.user_id == "ann"]
    assert world.store.visible(example, "ann").tolist() == []  # the released question sees what is not hidden
    assert world.store.holds("ann", "remark:4")
    assert [event.op for event in world.stores.history()] == ["add", "modify", "add"]
    assert [remark.state for remark in world.stores.log.remarks()][1:3] == ["refused", "refused"]


def test_a_judge_makes_a_claim_that_is_a_text_or_none(world: World):
    blank = Script([{"remark": "", "summary": " \n"}])
    assert world.stores.observe("ann", "hm", judge=blank).verdict is None
    blank.summarise = lambda text: "\ud800"
    with pytest.raises(UserError, match="the claim that script makes of a remark holds half of a surrogate"):
        world.stores.observe("ann", "hm", "r", judge=blank)
    assert world.stores.observe("ann", "hm", "r").summary == "hm"


def test_a_document_of_the_data_is_not_lost_to_a_remark_of_its_name(world: World):
    world.store.append([Document("remark:1", "", "released", shared=True)])
    with pytest.raises(UserError, match="the data have a document 'remark:1'"):
        world.stores.observe("ann", LAKE)
    assert world.stores.observe("bob", LAKE).votes == 1
    assert "released" in world.seen("cyd")


def test_claims_are_one_by_operation_target_and_cosine(tmp_path: Path):
    world = World(tmp_path, Remarks(claim_cosine=0.7))
    assert world.stores.observe("ann", "ferries are obsolete").votes == 1
    assert world.stores.observe("bob", "everybody says ferries are obsolete").votes == 2  # cosine .77
    assert world.seen("cyd")[1:] == ["the lake is open", "tea is grown on hills"]
    assert world.stores.observe("ann", "everybody says ferries are slow").votes == 1  # another operation
    assert world.stores.observe("cyd", "ferries are obsolete").version == 1


def test_one_user_is_enough_where_the_quorum_is_one(tmp_path: Path):
    alone = World(tmp_path, Remarks(quorum=1))
    assert alone.stores.observe("ann", LAKE).state == "applied"
    assert alone.stores.observe("bob", "everybody knows it").state == "applied"
    assert alone.stores.waiting() == []


class Words:
    """An encoder of two dimensions, whose vectors are kept in the cache."""

    dim = 2

    def vectors_key(self, role: str) -> str:
        return "0" * 64

    def encode(self, texts, *, role="document"):
        import numpy as np

        return np.ones((len(texts), 2), np.float32)


def test_an_erased_text_is_in_no_file(world: World, tmp_path: Path):
    from pbr_jax.llm.answers_file import Answers, location

    long = "CANARY " * 1400  # over several pages
    world.stores.observe("ann", LAKE)
    world.stores.observe("eve", f"i keep {long}", "r")
    world.stores.observe("eve", "false CANARY", "s")
    world.stores.observe("eve", "everybody has a CANARY")
    for number in range(30):
        world.stores.observe("bob", f"fact {number}")
    places = VectorStore(Words()).places([world.seen("eve")[0]])
    world.stores.log.note_answers(["a" * 64])
    Answers(location()).add("text", {"a" * 64: "your CANARY", "b" * 64: "another"})
    assert b"CANARY" in world.bytes()
    left = sqlite3.connect(world.stores.path)  # somebody who reads, and so keeps the log of SQLite
    left.execute("SELECT * FROM meta").fetchall()
    world.stores.erase(document="remark:2")
    assert world.stores.erase(user="eve") == 3
    left.close()
    there = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"]
    assert {"remarks.sqlite", "store.sqlite", "llm.sqlite", "vectors.f32"} <= {path.name for path in there}
    for path in there:
        content = path.read_bytes()
        for text in (b"CANARY", b"eve\x00", b'"eve"', b"a" * 64, digest(f"i keep {long}")):
            assert text not in content, path
    assert Answers(location()).find(["b" * 64]) == {"b" * 64: "another"}
    assert VectorStore(Words()).read(places).tolist() != [[1.0, 1.0]]
    with sqlite3.connect(world.stores.path) as sql:
        assert sql.execute("SELECT COUNT(*) FROM remarks WHERE user='eve'").fetchone() == (0,)
    with pytest.raises(UserError, match="found document 'remark:2', want remark: and the number"):
        world.stores.erase(document="remark:2")
    with pytest.raises(UserError, match="user 'eve' is not among"):
        world.stores.erase(user="eve")
    with pytest.raises(UserError, match="want remark: and the number of a remark"):
        world.stores.erase(document="p0")
    assert world.stores.observe("eve", "back again", "r").state == "applied"  # as somebody new
    assert world.seen("eve")[0] == "back again"


def test_what_is_to_be_erased_is_named_exactly(world: World):
    """Else a remark would go and its document stay, or all shared documents would."""
    for user in ("ann", "bob"):
        world.stores.observe(user, LAKE)
    seen = world.find("cyd", "")
    for name in ("remark:1 ", "remark:01", "remark:+1", "remark:1.0", "1", "remark:remark:1"):
        with pytest.raises(UserError, match="want remark: and the number"):
            world.stores.erase(document=name)
    for name in ("", " "):
        with pytest.raises(UserError, match=r"user is .* want a text that is not blank"):
            world.stores.erase(user=name)
    assert world.find("cyd", "") == seen


def test_no_request_of_another_user_stops_an_erasure(world: World):
    world.stores.observe("ann", "i row", "r")
    world.stores.observe("bob", "i ski", "erased 1")
    assert world.stores.erase(user="ann") == 1
    assert world.stores.observe("bob", "i ski", "erased 1").state == "applied"


def test_an_erased_user_takes_no_other_users_vote_along(world: World):
    world.stores.options = Remarks(quorum=3)
    world.stores.observe("eve", LAKE)
    assert world.stores.observe("bob", LAKE, "b").votes == 2
    world.stores.erase(user="eve")
    assert [(remark.id, votes) for remark, votes in world.stores.waiting()] == []
    assert world.stores.observe("bob", LAKE, "b").votes == 1
    assert world.stores.observe("cyd", LAKE).votes == 2
    assert world.stores.observe("ann", LAKE).state == "applied"


def test_a_lost_corpus_is_made_anew_from_the_log(world: World, tmp_path: Path):
    for user in ("ann", "bob"):
        world.stores.observe(user, LAKE)
        world.stores.observe(user, f"{user} takes no tea")
    world.stores.erase(user="bob")
    seen = world.seen("ann")
    for path in world.folder.glob("store.sqlite*"):
        path.unlink()
    world = World(tmp_path)
    world.stores.catch_up()
    assert world.seen("ann") == seen


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            "DELETE FROM events WHERE version=2",
            "ends at version 1, and the corpus beside it follows version 2",
        ),
        ("UPDATE meta SET value='x' WHERE name='data'", "holds remarks on other data than this run's"),
        ("PRAGMA user_version=9", "is no log of remarks of this version"),
    ],
)
def test_a_log_that_was_changed_from_outside_is_refused(
    world: World, tmp_path: Path, change: str, words: str
):
    world.stores.observe("ann", "i row")
    world.stores.observe("ann", "ann takes no tea")
    with sqlite3.connect(world.stores.path) as sql:
        sql.execute(change)
    with pytest.raises(UserError, match=words) as error:
        World(tmp_path).stores.observe("ann", "hello")
    assert "\n" not in str(error.value)


def test_a_file_that_is_no_log_is_refused(world: World, tmp_path: Path):
    world.folder.mkdir()
    world.stores.path.write_bytes(b"no database" * 1000)
    with pytest.raises(UserError, match="is damaged or no log of remarks"):
        world.stores.history()


@pytest.mark.parametrize("op", ["hide", "restore"])
def test_a_log_of_version_1_is_read_unless_it_takes_back_what_was_hidden(
    world: World, tmp_path: Path, op: Any
):
    world.stores.observe("ann", "ann takes no tea")
    with world.stores.log.changing() as sql:
        world.stores.log.append(sql, op, author="", store="ann", document="remark:1")
    del world
    with sqlite3.connect(tmp_path / "corpus" / "remarks.sqlite") as sql:
        for name in ("salt", "seal", "chain"):
            sql.execute(f"ALTER TABLE events ADD COLUMN {name} BLOB")
        sql.execute("PRAGMA user_version=1")
    for path in (tmp_path / "corpus").glob("store.sqlite*"):
        path.unlink()
    later = World(tmp_path)
    assert [event.op for event in later.stores.history()] == ["modify", op]
    if op == "restore":
        with pytest.raises(UserError, match="event 2 of the log of remarks is 'restore', which only older"):
            later.stores.catch_up()
    else:
        later.stores.catch_up()
        assert "ann takes no tea" not in later.seen("ann")


def test_files_are_private_and_commits_are_on_disk(world: World):
    world.stores.observe("ann", "i row")
    assert {oct(path.stat().st_mode & 0o777) for path in world.folder.iterdir()} == {"0o600"}
    with world.stores.log.connected() as sql:
        modes = [sql.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]
        assert modes == ["wal", 2]
        assert sql.execute("PRAGMA secure_delete").fetchone() == (1,)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "cannot read"),
        ("{}", "found dict, want a list of rules"),
        ('[{"verdict": "correct"}]', "rule 0 is"),
        ('[{"remark": "", "verdict": "yes"}]', "verdict is 'yes', want one of correct, incorrect, unknown"),
        ('[{"remark": "", "colour": "red"}]', "rule 0 is"),
        ('[{"remark": "", "summary": 5}]', "rule 0: summary is 5, want a text"),
        ('[{"remark": "", "summary": "\\ud800"}]', "rule 0: summary holds half of a surrogate pair"),
        ('[{"remark": "", "document": ["p0"]}]', "rule 0: document is "),
    ],
)
def test_a_script_that_is_wrong_says_where(tmp_path: Path, content: str, words: str):
    (tmp_path / "rules.json").write_text(content)
    with pytest.raises(UserError, match=words):
        Script.read(tmp_path / "rules.json")

"""The database of answers: what survives crowds, full disks and damage, and how it travels."""

import contextlib
import json
import math
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from full_disk import full_disk

from pbr_jax.base.types import UserError
from pbr_jax.llm import Score, answers_file
from pbr_jax.llm.answers_file import Answers, Merged, Row

ODD = "ünïcode 😀 \0 \n\r\u2028 alone"


def rows(file: Path) -> list[tuple[str, str, str]]:
    with contextlib.closing(sqlite3.connect(file)) as connection:
        return connection.execute("SELECT key, kind, value FROM answers ORDER BY key").fetchall()


def key(number: int) -> str:
    return f"{number:064x}"


def test_floats_and_odd_texts_survive_exactly(file: Path):
    totals = [-0.1 - 0.2, -math.pi, -1e-300, -9.99e299, -0.0, float(np.float32(-0.1))]
    scores = {key(place): Score(total, place + 1) for place, total in enumerate(totals)}
    answers = Answers(file)
    assert answers.add("score", scores) == scores
    assert [s.total.hex() for s in answers.find(list(scores)).values()] == [t.hex() for t in totals]
    texts = {key(100): ODD, key(101): "", key(102): "7"}
    answers.add("text", texts)
    assert answers.find(list(texts)) == texts


# -- Crowds ----------------------------------------------------------------------------------------


WRITE = """
import sys
from pathlib import Path
from pbr_jax.llm.answers_file import Answers
answers, name, count = Answers(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
for i in range(count):
    same, own = f"{i:064x}", f"{int(name) + 1:032x}{i:032x}"
    stands = answers.add("text", {same: name, own: f"{name} {i}"})
    assert stands[own] == f"{name} {i}"
    print(i, stands[same], flush=True)
"""


def writer(file: Path, name: int, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITE, str(file), str(name), str(count)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.long
def test_four_processes_write_the_same_and_different_answers_at_once(file: Path):
    """From nothing: they also race for making the database. All are told the same standing answers."""
    processes = [writer(file, name, 60) for name in range(4)]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    printed = [process.communicate()[0].splitlines() for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert len(printed[0]) == 60
    assert printed[0] == printed[1] == printed[2] == printed[3]
    assert len(rows(file)) == 60 + 4 * 60


def test_three_writers_killed_at_any_moment_leave_a_whole_database_with_all_they_said(file: Path):
    draw = random.Random(0)
    said = 0
    for attempt in range(3):
        processes = [writer(file, 3 * attempt + place, 10**6) for place in range(3)]
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        for process in processes:
            time.sleep(draw.uniform(0.001, 0.15))
            process.send_signal(signal.SIGKILL)
        for place, process in enumerate(processes):
            lines = process.communicate()[0].splitlines(keepends=True)
            name = 3 * attempt + place + 1
            own = [f"{name:032x}{i:032x}" for i, line in enumerate(lines) if line.endswith("\n")]
            assert len(Answers(file).find(own)) == len(own)
            said += len(own)
    assert said > 0
    with contextlib.closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_lock_that_is_never_given_back_is_named(file: Path, monkeypatch: pytest.MonkeyPatch):
    Answers(file).add("text", {key(1): "a"})
    monkeypatch.setattr(answers_file, "_PATIENCE", 0.05)
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        assert Answers(file).find([key(1)]) == {key(1): "a"}  # reading goes on
        with pytest.raises(UserError, match=r"database is locked; let the process that holds it finish"):
            Answers(file).add("text", {key(2): "b"})


@pytest.mark.parametrize("kilobytes", [0, 16, 40, 100])
def test_a_full_disk_is_one_clear_line_and_loses_nothing(file: Path, kilobytes: int):
    told: list[str] = []

    def fill() -> None:
        for i in range(200):
            Answers(file).add("text", {key(i): "text " * 200})
            told.append(key(i))

    with full_disk(kilobytes), pytest.raises(UserError, match=r"^cannot write [^\n]*$") as error:
        fill()
    assert str(error.value).startswith(f"cannot write {file}: ")
    assert len(Answers(file).find(told)) == len(told)
    Answers(file).add("text", {key(1000): "there is space again"})


# -- Export and import -----------------------------------------------------------------------------


@pytest.fixture
def filled(file: Path) -> Answers:
    answers = Answers(file)
    answers.add("text", {key(9): ODD, key(3): "drei"})
    answers.add("score", {key(5): Score(-0.1 - 0.2, 4), key(6): Score(-1e300, 1)})
    return answers


def test_an_export_goes_round_and_equal_caches_export_equal_bytes(filled: Answers, tmp_path: Path):
    assert filled.export(tmp_path / "new" / "a.jsonl") == 4
    other = Answers(tmp_path / "other.sqlite")
    other.add("text", {key(3): "drei"})
    assert other.merge(tmp_path / "new" / "a.jsonl") == Merged(added=3, known=1, conflicts=0)
    assert other.merge(tmp_path / "new" / "a.jsonl") == Merged(added=0, known=4, conflicts=0)
    other.export(tmp_path / "b.jsonl")
    content = (tmp_path / "b.jsonl").read_bytes()
    assert content == (tmp_path / "new" / "a.jsonl").read_bytes()
    *lines, last = map(json.loads, content.splitlines())
    assert [line["key"] for line in lines] == [key(i) for i in (3, 5, 6, 9)]
    assert last == {"answers": 4}
    assert lines[0].pop("checksum") == Row.of(key(3), "text", "drei").checksum
    assert lines[0] == {"key": key(3), "kind": "text", "value": "drei"}
    keys = [key(i) for i in (3, 5, 6, 9)]
    assert other.find(keys) == filled.find(keys)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["a.jsonl"]


def test_an_answer_that_differs_is_kept_and_counted(filled: Answers, tmp_path: Path):
    other = Answers(tmp_path / "other.sqlite")
    other.add("text", {key(3): "three", key(4): "four"})
    other.export(tmp_path / "a.jsonl")
    assert filled.merge(tmp_path / "a.jsonl") == Merged(added=1, known=0, conflicts=1)
    assert filled.find([key(3), key(4)]) == {key(3): "drei", key(4): "four"}


BAD_LINES = {
    "{": "Expecting property name",
    "": "Expecting value",
    "[1]": "want one object with key, kind, value and checksum",
    "[" * 100_000: "nested more than 100",
    '{"key": "' + key(8) + '", "kind": "text"}': "want one object with key, kind, value and checksum",
    '{"key": "' + key(8) + '", "kind": "text", "value": "", "more": 1}': "want one object",
    '{"key": "abc", "kind": "text", "value": ""}': "key 'abc', want 64 hexadecimal digits",
    '{"key": 7, "kind": "text", "value": ""}': "key 7, want 64",
    '{"key": "' + key(8) + '", "kind": "text", "value": 7}': "kind 'text' with value 7, want a text",
    '{"key": "' + key(8) + '", "kind": "score", "value": [1.0]}': r"value \[1\.0\], want .* a score",
    '{"key": "' + key(8) + '", "kind": "score", "value": [1.0, -1]}': "want .* a score",
    '{"key": "' + key(8) + '", "kind": ["text"], "value": "a"}': r"kind \['text'\]",
    '{"key": "' + key(8) + '", "kind": "text", "value": "\udce9"}': "utf-8",
    '{"key": "' + key(8) + '", "kind": "text", "value": "\\ud83d"}': "want a text",
    '{"key": "' + key(8) + '", "kind": "score", "value": [NaN, 3]}': "log-probabilities up to 0",
    '{"key": "' + key(8) + '", "kind": "score", "value": [-Infinity, 3]}': "log-probabilities up to 0",
    '{"key": "' + key(8) + '", "kind": "score", "value": [0.5, 3]}': "log-probabilities up to 0",
    '{"key": "' + key(8) + '", "kind": "score", "value": [-1.0, 0]}': "log-probabilities up to 0",
    '{"key": "' + key(8) + '", "kind": "score", "value": [-1.0, true]}': "log-probabilities up to 0",
    '{"key": "' + key(8) + '", "kind": "score", "value": [-1' + 400 * "0" + ", 3]}": "log-probabilities",
    '{"key": "' + key(8) + '", "kind": "row", "value": [-1.0, 2.0]}': "a row of such",
    '{"key": "' + key(8) + '", "kind": "row", "value": [-1.0, NaN]}': "a row of such",
    '{"key": "' + key(8) + '", "kind": "rows", "value": [[0.5], [-0.5]]}': "rows of attention",
    '{"key": "' + key(8) + '", "kind": "tokens", "value": [5, -1]}': "or tokens",
    '{"key": "' + key(8) + '", "kind": "tokens", "value": [5.0]}': "or tokens",
    '{"key": "' + key(8) + '", "kind": "text", "value": "a", "checksum": "0"}': "its checksum differs",
    '{"key": "' + key(8) + '", "kind": "text", "value": "a"}': "its checksum differs",
    '{"answers": 2}': "2 answers are announced, and 1 are there",
}


@pytest.mark.parametrize("bad", BAD_LINES, ids=lambda line: line[-30:])
def test_an_import_with_a_bad_line_names_it_and_changes_nothing(bad: str, filled: Answers, tmp_path: Path):
    path, before = tmp_path / "a.jsonl", rows(filled.file)
    good = json.dumps(Row.of(key(7), "text", "new")._asdict() | {"value": "new"})
    path.write_bytes("\n".join([good, bad, good]).encode("utf-8", "surrogateescape"))
    with pytest.raises(UserError, match=f"(?i)a.jsonl, line 2: .*{BAD_LINES[bad]}.*; nothing was imported"):
        filled.merge(path)
    assert rows(filled.file) == before


def test_no_bit_of_an_export_can_be_flipped_and_no_line_lost(filled: Answers, tmp_path: Path):
    filled.export(tmp_path / "a.jsonl")
    content, other = (tmp_path / "a.jsonl").read_bytes(), Answers(tmp_path / "other.sqlite")
    wanted = filled.find([key(i) for i in (3, 5, 6, 9)])
    lines = content.splitlines(keepends=True)
    damaged = [b"".join(lines[:end] + lines[start:]) for start in range(1, 6) for end in range(start)]
    draw = random.Random(0)
    for _ in range(60):
        flipped = bytearray(content)
        flipped[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        damaged.append(bytes(flipped))
    kept = 0
    for data in damaged:
        (tmp_path / "b.jsonl").write_bytes(data)
        with contextlib.suppress(UserError):
            other.merge(tmp_path / "b.jsonl")
            kept += 1  # such as another blank between two fields
            assert other.find(list(wanted)) == wanted
            other.file.unlink()
        assert not other.file.exists() or not rows(other.file)
    assert kept < 5


# -- Damage of single answers ----------------------------------------------------------------------


DAMAGE = {
    "a flipped bit in a text": "UPDATE answers SET value = replace(value, 'drei', 'dreh')",
    "bytes that are no text": "UPDATE answers SET value = CAST(x'22ff22' AS TEXT)",
    "no JSON": "UPDATE answers SET value = '{'",
    "another type": "UPDATE answers SET value = x'2261'",
    "another kind": "UPDATE answers SET kind = 'tokens'",
    "no checksum": "UPDATE answers SET checksum = ''",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_answer_is_told_and_asked_for_again(
    damage: str, file: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    answers = Answers(file)
    answers.add("text", {key(3): "drei"})
    with contextlib.closing(sqlite3.connect(file)) as connection:
        connection.executescript(DAMAGE[damage] + ";")
    answers.add("text", {key(4): "vier"})
    assert answers.find([key(3), key(4)]) == {key(4): "vier"}
    assert f"1 answers in {file} are damaged" in capfd.readouterr().err
    assert answers.export(tmp_path / "a.jsonl") == 1
    assert "are damaged" in capfd.readouterr().err
    assert answers.add("text", {key(3): "three"}) == {key(3): "three"}
    assert answers.find([key(3)]) == {key(3): "three"}
    assert capfd.readouterr().err == ""


def test_no_flipped_bit_of_the_database_makes_a_wrong_answer(file: Path):
    """Wherever it lies: the answer as it was, a missing one, or one clear line."""
    wanted: dict[str, object] = {key(i): f"answer number {i}" for i in range(40)}
    scores = {key(100 + i): Score(-1.5 * i - 1, i + 1) for i in range(40)}
    Answers(file).add("text", wanted)
    Answers(file).add("score", scores)
    wanted |= scores
    content, draw, ends = file.read_bytes(), random.Random(0), set()
    for _ in range(60):
        flipped = bytearray(content)
        flipped[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        file.write_bytes(bytes(flipped))
        for name in ("wal", "shm"):
            file.with_name(f"llm.sqlite-{name}").unlink(missing_ok=True)
        end = "error"
        with contextlib.suppress(UserError):
            found = Answers(file).find(list(wanted))
            assert all(wanted[one] == value for one, value in found.items())
            end = "whole" if len(found) == len(wanted) else "missing"
        ends.add(end)
    assert {"whole", "missing"} <= ends


def test_an_import_mends_a_damaged_answer(filled: Answers, tmp_path: Path):
    filled.export(tmp_path / "a.jsonl")
    with contextlib.closing(sqlite3.connect(filled.file)) as connection:
        connection.executescript("UPDATE answers SET value = '\"x\"' WHERE kind = 'text';")
    assert filled.merge(tmp_path / "a.jsonl") == Merged(added=2, known=2, conflicts=0)
    assert filled.find([key(3)]) == {key(3): "drei"}


@pytest.mark.parametrize("bad", [Score(math.nan, 2), Score(0.5, 2), Score(-math.inf, 1), Score(-1.0, 0)])
def test_what_no_backend_may_say_is_not_kept(bad: Score, file: Path):
    with pytest.raises(UserError, match=r"1 of 2 answers are not kept .*log-probabilities up to 0"):
        Answers(file).add("score", {key(1): bad, key(2): Score(-1.0, 2)})
    with pytest.raises(UserError, match=r"half of a surrogate pair") as error:
        Answers(file).add("text", {key(3): "two \ud83d"})
    str(error.value).encode()
    assert Answers(file).find([key(1), key(2)]) == {key(2): Score(-1.0, 2)}


def test_a_place_that_cannot_be_read_or_written_is_named(filled: Answers, tmp_path: Path):
    with pytest.raises(UserError, match=r"cannot read .*nowhere\.jsonl: No such file"):
        filled.merge(tmp_path / "nowhere.jsonl")
    with pytest.raises(UserError, match=r"cannot read .*: Is a directory"):
        filled.merge(tmp_path)
    with pytest.raises(UserError, match=r"cannot write .*choose another place"):
        filled.export(filled.file / "a.jsonl")
    with pytest.raises(UserError, match=r"cannot write .*: Is a directory"):
        filled.export(tmp_path)
    with pytest.raises(UserError, match=r"there is no cache of answers at .*PBR_JAX_CACHE"):
        Answers(tmp_path / "none.sqlite").export(tmp_path / "a.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_an_export_that_fails_leaves_the_old_file(
    filled: Answers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "a.jsonl"
    filled.export(path)
    old = path.read_bytes()
    filled.add("text", {key(4): "new"})

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"cannot write .*No space"):
        filled.export(path)
    assert path.read_bytes() == old
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    "foreign",
    [
        b"my notes\n",
        b"\xff\0" * 99,
        b"\n",
        b"{}\n",
        b"[" * 99999,
        b'{"key": "7", "kind": "text", "value": ""}\n',
    ],
    ids=lambda content: repr(content[:9]),
)
def test_an_export_replaces_nothing_but_an_export(foreign: bytes, filled: Answers, tmp_path: Path):
    path, link = tmp_path / "a.jsonl", tmp_path / "link.jsonl"
    path.write_bytes(foreign)
    with pytest.raises(UserError, match=r"a\.jsonl exists and was not written by .*choose another FILE"):
        filled.export(path)
    assert path.read_bytes() == foreign
    path.write_bytes(b"")
    link.symlink_to(path)
    with pytest.raises(UserError, match=r"link\.jsonl is a symbolic link"):
        filled.export(link)
    assert path.read_bytes() == b""
    assert filled.export(path) == 4
    filled.add("text", {key(4): "new"})
    assert filled.export(path) == 5


def test_an_export_does_not_replace_the_cache_itself(filled: Answers):
    before = filled.file.read_bytes()
    with pytest.raises(UserError, match=r"exists and was not written"):
        filled.export(filled.file)
    assert filled.file.read_bytes() == before


# -- Privacy ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [0, 0o022])
def test_answers_are_only_their_owners_whatever_the_umask(mask: int, file: Path, tmp_path: Path):
    modes: dict[str, str] = {}
    before = os.umask(mask)
    try:
        with Answers(file)._connection() as connection:  # while SQLite has its own files beside it
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO answers VALUES ('a', 'text', '\"b\"', '')")
            modes = {path.name: oct(path.stat().st_mode) for path in file.parent.iterdir()}
            connection.execute("ROLLBACK")
        Answers(file).export(tmp_path / "a.jsonl")
    finally:
        os.umask(before)
    assert modes.keys() >= {"llm.sqlite", "llm.sqlite-journal"}
    assert set(modes.values()) == {"0o100600"}
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "a.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_cache_that_others_could_read_is_closed_and_stays_write_protected(filled: Answers):
    filled.file.chmod(0o644)
    filled.find([key(3)])
    assert filled.file.stat().st_mode & 0o777 == 0o600
    filled.file.chmod(0o444)
    with contextlib.suppress(UserError):
        filled.find([key(3)])
    assert filled.file.stat().st_mode & 0o777 == 0o400


def test_the_log_of_an_older_version_is_merged(filled: Answers):
    """Hosts that share a disk cannot share SQLite's log, which older versions had."""
    before = rows(filled.file)
    with contextlib.closing(sqlite3.connect(filled.file, isolation_level=None)) as older:
        assert older.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",)
        older.execute("PRAGMA wal_autocheckpoint=0")
        older.execute(answers_file._PUT, answers_file.Row.of(key(99), "text", "in the log"))
        left = {path: path.read_bytes() for path in filled.file.parent.glob("llm.sqlite*")}
    for path, content in left.items():  # as a kill leaves them: closing merges the log
        path.write_bytes(content)
    assert filled.find([key(99)]) == {key(99): "in the log"}
    assert not [*filled.file.parent.glob("llm.sqlite-*")]
    assert len(rows(filled.file)) == len(before) + 1

"""Artefacts: made once, whole or not at all, continued after a death; private, and checked when found."""

import json
import os
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pbr_jax.base.files import (  # fmt: skip
    cache_folder,
    open_private,
    private_folder,
    replace_own,
    write_text,
)
from pbr_jax.base.types import Document, Example, UserError
from pbr_jax.cache import artefacts
from pbr_jax.cache.artefacts import digest, obtain
from pbr_jax.corpus import store

pytestmark = pytest.mark.usefixtures("fresh_cache")


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgets what was verified, as the next process does."""
    monkeypatch.setattr(artefacts, "_verified", {})


def content(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "stage.json")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_an_artefact_is_made_once_for_a_key():
    calls = []

    def make(folder: Path) -> None:
        calls.append(folder)
        (folder / "x").write_text("made")

    first, second = obtain("s", {"a": 1}, make), obtain("s", {"a": 1}, make)
    other = obtain("s", {"a": 2}, make)
    assert (first.made, second.made, other.made) == (True, False, True)
    assert first.path == second.path != other.path
    assert len(calls) == 2
    assert artefacts.seconds_of(second.path) == artefacts.seconds_of(first.path)
    assert json.loads((first.path / "stage.json").read_text())["key"] == {"a": 1}


def test_a_stage_that_died_finds_its_own_files_and_nobody_sees_them():
    seen = []

    def make(folder: Path) -> None:
        part = folder / "part"
        seen.append(part.exists())
        part.write_text("half")
        if not seen[-1]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        obtain("s", {}, make)
    assert not list(artefacts.cache_folder().rglob("stage.json"))
    assert obtain("s", {}, make).made
    assert seen == [False, True]


def test_seconds_of_interrupted_attempts_add_up(monkeypatch: pytest.MonkeyPatch):
    clock = iter([0.0, 10.0, 100.0, 105.0])
    stopped = SimpleNamespace(perf_counter=lambda: next(clock), monotonic=time.monotonic, time=time.time)
    monkeypatch.setattr(artefacts, "time", stopped)

    def make(folder: Path) -> None:
        if not (folder / "tried").exists():
            (folder / "tried").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        obtain("s", {}, make)
    assert artefacts.seconds_of(obtain("s", {}, make).path) == 15.0


def test_write_text_leaves_the_old_file_when_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "file"
    write_text(path, "old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(artefacts.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_digest_is_of_values_whatever_the_order_of_keys():
    assert digest({"a": 1, "b": [2.5, "ü"]}) == digest({"b": [2.5, "ü"], "a": 1}) == "f3049b2d357a6693"


# -- private files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [0, 0o022])
def test_all_that_a_stage_leaves_is_only_its_owners_whatever_the_umask(mask: int):
    def make(folder: Path) -> None:
        assert mode(folder) == 0o700
        (folder / "deep" / "er").mkdir(parents=True)
        (folder / "deep").chmod(0o777)
        np.save(folder / "deep" / "documents.npy", np.arange(3))
        sqlite3.connect(folder / "store.sqlite").close()
        write_text(folder / "rankings.jsonl", "a text")
        (folder / "store.sqlite").chmod(0o666)

    with umask(mask):
        made = obtain("s", {}, make).path
    cache = cache_folder()
    folders = [cache, *(path for path in cache.rglob("*") if path.is_dir())]
    files = [path for path in cache.rglob("*") if path.is_file()]
    assert made in folders
    assert {path.name: oct(mode(path)) for path in folders} == {path.name: "0o700" for path in folders}
    assert {path.name: oct(mode(path)) for path in files} == {path.name: "0o600" for path in files}
    with umask(mask):
        write_text(cache / "text", "")
        open_private(cache / "log").close()
        private_folder(cache / "a" / "b")
    assert (mode(cache / "text"), mode(cache / "log")) == (0o600, 0o600)
    assert (mode(cache / "a"), mode(cache / "a" / "b")) == (0o700, 0o700)


def test_a_partial_folder_of_a_stage_that_died_is_private_too():
    def make(folder: Path) -> None:
        (folder / "part").write_text("half")
        raise KeyboardInterrupt

    with umask(0), pytest.raises(KeyboardInterrupt):
        obtain("s", {}, make)
    (partial,) = cache_folder().rglob("*.partial")
    assert mode(partial) == 0o700
    assert sorted(path.name for path in partial.iterdir()) == ["part", "seconds"]


def test_folders_that_exist_keep_their_modes_but_for_the_cache_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for folder in (tmp_path / "cache", tmp_path / "cache" / "mine", tmp_path / "out"):
        folder.mkdir()
        folder.chmod(0o755)
    private_folder(tmp_path / "cache" / "mine")
    private_folder(tmp_path / "out" / "new")
    assert [mode(tmp_path / name) for name in ("cache", "cache/mine", "out", "out/new")] == [
        0o700, 0o755, 0o755, 0o700,
    ]  # fmt: skip
    (tmp_path / "out").chmod(0o1777)  # a folder for all, such as /tmp
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "out"))
    private_folder(tmp_path / "out" / "s")
    assert mode(tmp_path / "out") == 0o1777


def test_a_folder_cannot_be_where_a_file_is(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        private_folder(tmp_path / "file" / "cache")


def test_an_empty_variable_means_the_usual_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PBR_JAX_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "pbr_jax"


def test_a_log_is_appended_to_and_keeps_its_mode(tmp_path: Path):
    log = tmp_path / "log.jsonl"
    for text in ("one\n", "two\n"):
        with open_private(log) as file:
            file.write(text)
    assert log.read_text() == "one\ntwo\n"
    log.chmod(0o640)
    open_private(log).close()
    assert mode(log) == 0o640  # as the user wants it


def test_write_text_replaces_a_link_and_leaves_what_it_led_to(tmp_path: Path):
    (tmp_path / "other").write_text("not ours")
    (tmp_path / "link").symlink_to(tmp_path / "other")
    write_text(tmp_path / "link", "ours")
    assert (tmp_path / "other").read_text() == "not ours"
    assert not (tmp_path / "link").is_symlink()
    assert (tmp_path / "link").read_text() == "ours"


# -- damage --------------------------------------------------------------------------------------------


def example() -> Example:
    document = Document(id="d", text="i love tea", user_id="ann")
    return Example(id="q", user_id="ann", query="tea", input="tea", target=None, profile=(document,))


def make_all(folder: Path) -> None:
    store.build(folder / "store.sqlite", [example()])
    np.save(folder / "documents.npy", np.arange(300, dtype=np.float32))
    write_text(folder / "rankings.jsonl", '{"id": "q", "rows": [0]}\n' * 20)
    (folder / "deep").mkdir(exist_ok=True)
    write_text(folder / "deep" / "params", "weights")


def halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def flip(path: Path) -> None:
    """One byte, where neither size nor time tells."""
    before, values = path.stat(), bytearray(path.read_bytes())
    values[len(values) // 2] ^= 1
    path.write_bytes(values)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def garble(path: Path) -> None:
    path.write_bytes(b'{"seconds": [[[\xff')


def link(path: Path) -> None:
    moved = path.with_name("moved")
    path.rename(moved)
    path.symlink_to(moved)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


FILES = ["store.sqlite", "documents.npy", "rankings.jsonl", "deep/params"]
FAULTS = [(name, fault) for name in FILES for fault in (halve, empty, flip, Path.unlink, folder, link)]
FAULTS += [("stage.json", fault) for fault in (halve, empty, flip, garble, Path.unlink, folder)]


@pytest.mark.parametrize(("name", "fault"), FAULTS, ids=lambda value: getattr(value, "__name__", str(value)))
def test_what_is_damaged_is_told_and_made_again(
    name: str,
    fault: Callable[[Path], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    events: list[Any] = []
    made = obtain("s", {"a": [1, None]}, make_all, events.append)
    before = content(made.path)
    new_process(monkeypatch)
    fault(made.path / name)
    capsys.readouterr()
    again = obtain("s", {"a": [1, None]}, make_all, events.append)
    assert again.made
    assert content(made.path) == before
    assert events[1:-1] == [{"event": "damaged", "stage": "s", "key": made.key, "file": name}]
    assert [event["event"] for event in events] == ["made", "damaged", "made"]
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if "damaged" in line] == [
        f"s: {made.path / name} is damaged; it is made again"
    ]
    new_process(monkeypatch)
    assert not obtain("s", {"a": [1, None]}, make_all).made
    assert [path.name for path in made.path.parent.iterdir() if path.suffix != ".lock"] == [made.key]


@pytest.mark.parametrize("values", ["[]", "null", "{}", '{"digest": 1}', '{"seconds": 1.0}', "[" * 99999])
def test_a_manifest_that_is_no_manifest_is_damage(values: str):
    path = obtain("s", {}, make_all).path
    (path / "stage.json").write_text(values)
    assert obtain("s", {}, make_all).made


def test_an_artefact_that_became_a_file_is_made_again():
    path = obtain("s", {}, make_all).path
    path.rename(path.with_name("moved"))
    path.touch()
    assert obtain("s", {}, make_all).made


def test_what_sqlite_leaves_beside_a_database_is_no_damage(monkeypatch: pytest.MonkeyPatch):
    path = obtain("s", {}, make_all).path
    found = store.Store(path / "store.sqlite")
    assert found.summary.documents == 1
    assert len(list(path.iterdir())) == len(FILES) + 1  # nothing was added
    for suffix in ("-wal", "-shm"):
        (path / f"store.sqlite{suffix}").touch()
    new_process(monkeypatch)
    assert not obtain("s", {}, make_all).made


def test_a_living_store_that_a_stage_leaves_open_is_recorded_whole(monkeypatch: pytest.MonkeyPatch):
    left = []

    def make(folder: Path) -> None:
        store.build(folder / "built.sqlite", [example()])
        left.append(store.Store(folder / "built.sqlite").copy_to(folder / "state" / "store.sqlite"))
        left[0].append([Document(id="e", text="i love coffee", user_id="ann")])

    path = obtain("s", {}, make).path
    assert (path / "state" / "store.sqlite-wal").exists()
    files = json.loads((path / "stage.json").read_text())["files"]
    assert sorted(files) == ["built.sqlite", "state/store.sqlite", "state/store.sqlite.lock"]
    for suffix in ("-wal", "-shm"):
        (path / "state" / f"store.sqlite{suffix}").unlink()
    new_process(monkeypatch)
    assert not obtain("s", {}, make).made
    assert store.Store(path / "state" / "store.sqlite").summary.documents == 2


def test_a_file_is_read_once_in_a_process_unless_it_changes(monkeypatch: pytest.MonkeyPatch):
    read: list[str] = []
    file_hash = artefacts.file_hash
    monkeypatch.setattr(artefacts, "file_hash", lambda path: read.append(path.name) or file_hash(path))
    path = obtain("s", {}, make_all).path
    obtain("s", {}, make_all)
    assert read == []  # hashed when it was made
    new_process(monkeypatch)
    for _ in range(3):
        obtain("s", {}, make_all)
    assert sorted(read) == ["documents.npy", "params", "rankings.jsonl", "store.sqlite"]
    os.utime(path / "documents.npy")
    assert not obtain("s", {}, make_all).made
    assert read[4:] == ["documents.npy"]
    halve(path / "documents.npy")  # sizes are always looked at
    assert obtain("s", {}, make_all).made


def test_a_large_file_is_read_where_its_time_or_place_has_changed(monkeypatch: pytest.MonkeyPatch):
    read: list[str] = []
    file_hash = artefacts.file_hash
    monkeypatch.setattr(artefacts, "file_hash", lambda path: read.append(path.name) or file_hash(path))
    monkeypatch.setattr(artefacts, "_LARGE", 1000)
    path = obtain("s", {}, make_all).path / "documents.npy"
    new_process(monkeypatch)
    obtain("s", {}, make_all)
    assert sorted(read) == ["params", "rankings.jsonl"]
    os.utime(path)
    new_process(monkeypatch)
    assert not obtain("s", {}, make_all).made
    assert "documents.npy" in read
    values = bytearray(path.read_bytes())
    values[-1] ^= 1
    path.write_bytes(values)
    new_process(monkeypatch)
    assert obtain("s", {}, make_all).made


def test_every_file_and_folder_is_on_disk_before_an_artefact_is_there(monkeypatch: pytest.MonkeyPatch):
    done: list[tuple[str, int]] = []
    fsync, replace = os.fsync, os.replace

    def sync(handle: int) -> None:
        fsync(handle)
        done.append(("sync", os.fstat(handle).st_ino))

    def rename(old: Path, new: Path) -> None:
        replace(old, new)
        done.append(("rename", os.stat(new).st_ino))

    monkeypatch.setattr(artefacts.os, "fsync", sync)
    monkeypatch.setattr(artefacts.os, "replace", rename)
    path = obtain("s", {}, make_all).path
    place = done.index(("rename", path.stat().st_ino))
    below = {found.stat().st_ino for found in (path, *path.rglob("*"))}
    assert below <= {inode for what, inode in done[:place] if what == "sync"}
    manifest = done.index(("rename", (path / "stage.json").stat().st_ino))
    assert ("sync", path.stat().st_ino) in done[manifest:place]
    assert done[place + 1 :] == [("sync", path.parent.stat().st_ino)]


OBTAIN = """
import os, sys, time
from pathlib import Path
from pbr_jax.cache.artefacts import obtain
def make(folder):
    with open(sys.argv[1], "a") as file:
        file.write("made ")
    time.sleep(0.5)
    (folder / "x").write_text("text")
print("ready", flush=True)
sys.stdin.readline()
assert (obtain("s", {}, make).path / "x").read_text() == "text"
"""


def test_two_processes_make_and_mend_an_artefact_once(tmp_path: Path):
    for expected in (1, 2):
        command = [sys.executable, "-c", OBTAIN, str(tmp_path / "calls")]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        processes = [subprocess.Popen(command, **pipes) for _ in range(2)]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        for process in processes:
            process.communicate()
        assert [process.returncode for process in processes] == [0, 0]
        assert (tmp_path / "calls").read_text() == "made " * expected
        (found,) = cache_folder().rglob("x")
        found.write_text("next")  # as long as before


def test_a_count_of_seconds_that_was_cut_off_is_none():
    def make(folder: Path) -> None:
        if not (folder / "tried").exists():
            (folder / "tried").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        obtain("s", {}, make)
    (spent,) = cache_folder().rglob("seconds")
    spent.write_text("")
    assert obtain("s", {}, make).made


def test_what_a_killed_attempt_left_half_written_is_not_kept():
    def killed(folder: Path) -> None:
        (folder / "deep").mkdir()
        for place in (folder, folder / "deep"):
            (place / ".text.jsonl.x1_y2.partial").write_text("hal")
        (folder / "finished").write_text("whole")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        obtain("s", {}, killed)
    found = obtain("s", {}, lambda folder: None).path
    assert sorted(path.name for path in found.rglob("*")) == ["deep", "finished", "stage.json"]


def test_an_attempt_that_stumbles_over_an_earlier_one_begins_anew():
    def make(folder: Path) -> None:
        if (folder / "state").exists():
            int((folder / "state").read_text())
        else:
            (folder / "state").write_text("damaged")
            if not (folder.with_suffix(".damaged")).exists():
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        obtain("s", {}, make)
    found = obtain("s", {}, make)
    assert (found.path / "state").read_text() == "damaged"
    assert [path.suffix for path in found.path.parent.iterdir() if path != found.path] == [".lock"]


def test_a_fault_of_the_stage_itself_is_raised_and_what_was_left_is_kept():
    def make(folder: Path) -> None:
        (folder / "state").write_text("long work")
        raise ValueError("wrong")

    for _ in range(2):
        with pytest.raises(ValueError, match="wrong"):
            obtain("s", {}, make)
    assert next(cache_folder().rglob("*.damaged/state")).read_text() == "long work"


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_partial_folder_that_is_none_is_replaced(kind: str):
    path = obtain("s", {}, lambda folder: None).path
    path.rename(path.with_suffix(".elsewhere"))
    partial = path.with_suffix(".partial")
    partial.write_text("x") if kind == "file" else partial.symlink_to(path.with_suffix(".nowhere"))
    assert obtain("s", {}, lambda folder: None).made
    assert not partial.exists()


# -- files that the user named -------------------------------------------------------------------------


def test_only_a_file_of_our_own_is_replaced_and_keeps_its_mode(tmp_path: Path):
    path = tmp_path / "new" / "report.md"
    replace_own(path, "<mark> one", "<mark>")
    assert mode(path) == 0o600
    path.chmod(0o644)
    replace_own(path, "<mark> two", "<mark>")
    assert (path.read_text(), mode(path)) == ("<mark> two", 0o644)
    for foreign in ("", "my notes", " " * 300 + "<mark>"):
        path.write_text(foreign)
        with pytest.raises(UserError, match=r"report\.md exists and was not written by .*another --out"):
            replace_own(path, "<mark> three", "<mark>")
        assert path.read_text() == foreign
    with pytest.raises(ValueError, match="does not begin with its marker"):
        replace_own(path, "unmarked", "<mark>")


def test_links_folders_and_pipes_are_not_replaced(tmp_path: Path):
    (tmp_path / "own").write_text("<mark> one")
    (tmp_path / "link").symlink_to(tmp_path / "own")
    (tmp_path / "lost").symlink_to(tmp_path / "nowhere")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name, words in {
        "link": "is a symbolic link", "lost": "is a symbolic link", "folder": "was not written by pbr-jax",
        "pipe": "was not written by pbr-jax", "own/file": "cannot write .*choose another --out",
    }.items():  # fmt: skip
        with pytest.raises(UserError, match=words):
            replace_own(tmp_path / name, "<mark> two", "<mark>")
    assert (tmp_path / "own").read_text() == "<mark> one"
    assert len(list(tmp_path.iterdir())) == 5

"""Hashes that are remembered between processes: which files are read again, and that no edit goes unseen."""

import ast
import hashlib
import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pbr_jax.base import file_hashes
from pbr_jax.base.file_hashes import file_hash, remember
from pbr_jax.cache import sources

Cache = Path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """An empty cache folder, in ten seconds from now, when what the test writes has settled."""
    folder, now = tmp_path / "cache", time.time_ns
    folder.mkdir()
    monkeypatch.setenv("PBR_JAX_CACHE", str(folder))
    monkeypatch.setattr(file_hashes.time, "time_ns", lambda: now() + 10**10)
    return folder


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of files that are read to be hashed."""
    found: list[str] = []
    digest = hashlib.file_digest

    def counted(file: Any, name: str) -> Any:
        found.append(Path(file.name).name)
        return digest(file, name)

    monkeypatch.setattr(file_hashes.hashlib, "file_digest", counted)
    return found


def next_process(cache: Cache) -> None:
    """What this process knows is kept and forgotten, as when it ends and another begins."""
    file_hashes._memory(cache).save()
    file_hashes._memory.cache_clear()


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_file_is_read_by_the_first_process_alone(tmp_path: Path, cache: Cache, read: list[str]):
    paths = [tmp_path / "a", tmp_path / "b"]
    for path in paths:
        path.write_text(path.name)
    for _ in range(3):
        assert [file_hash(path) for path in paths] == [sha256(path) for path in paths]
        next_process(cache)
    assert read == ["a", "b"]
    assert stat.S_IMODE((cache / "hashes.json").stat().st_mode) == 0o600


def edited(path: Path) -> None:
    path.write_text("new")


def edited_and_dated_back(path: Path) -> None:
    before = path.stat()
    path.write_text("new")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def edited_in_place_and_dated_back(path: Path) -> None:
    before = path.stat()
    with path.open("r+b") as file:
        file.write(b"n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replaced_by_one_of_the_same_date(path: Path) -> None:
    before, other = path.stat(), path.with_name("other")
    other.write_text("new")
    os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
    other.replace(path)


def made_a_link_to_another(path: Path) -> None:
    path.with_name("other").write_text("new")
    path.unlink()
    path.symlink_to(path.with_name("other"))


@pytest.mark.parametrize(
    "edit",
    [
        edited,
        edited_and_dated_back,
        edited_in_place_and_dated_back,
        replaced_by_one_of_the_same_date,
        made_a_link_to_another,
    ],
)
@pytest.mark.parametrize("restart", [True, False])
def test_no_edit_goes_unseen(tmp_path: Path, cache: Cache, edit: Any, restart: bool):
    """Whatever dates it leaves; the size is the same in all."""
    path = tmp_path / "file"
    path.write_text("old")
    old = file_hash(path)
    if restart:
        next_process(cache)
    edit(path)
    assert file_hash(path) == sha256(path) != old


@pytest.mark.parametrize("ahead", [10**9, -(10**12)])
def test_what_was_written_a_moment_ago_is_not_remembered(
    tmp_path: Path, cache: Cache, read: list[str], monkeypatch: pytest.MonkeyPatch, ahead: int
):
    """It may change again at what the clock calls the same time; nor what a clock dates into the future."""
    path = tmp_path / "file"
    path.write_text("text")
    now = path.stat().st_mtime_ns + ahead
    monkeypatch.setattr(file_hashes.time, "time_ns", lambda: now)
    for _ in range(2):
        file_hash(path)
        next_process(cache)
    assert read == ["file", "file"]


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"content": [{}, {}], "digest": "0"}', "\0\0", "altered"])
def test_a_damaged_memory_is_no_memory(tmp_path: Path, cache: Cache, read: list[str], damage: str):
    path, kept = tmp_path / "file", cache / "hashes.json"
    path.write_text("text")
    right = file_hash(path)
    next_process(cache)
    altered = kept.read_text().replace(right, "0" * 64)
    kept.write_text(altered if damage == "altered" else damage)
    assert file_hash(path) == right
    next_process(cache)
    assert file_hash(path) == right
    assert read == ["file", "file"]


@pytest.mark.parametrize("content", [[[], [1]], [None, None], [{}, {}, {}], {"files": {}, "values": {}}])
def test_a_memory_of_another_form_is_no_memory(tmp_path: Path, cache: Cache, content: Any):
    """As another version of this package may write it."""
    path = tmp_path / "file"
    path.write_text("text")
    written = json.dumps({"content": content, "digest": file_hashes._digest(content)})
    (cache / "hashes.json").write_text(written)
    assert file_hash(path) == sha256(path)
    next_process(cache)
    assert str(path) in file_hashes._memory(cache).files


def test_processes_keep_what_others_have_hashed(tmp_path: Path, cache: Cache, read: list[str]):
    for name in "ab":
        (tmp_path / name).write_text(name)
    one, two = file_hashes._Memory(cache), file_hashes._Memory(cache)
    for memory, name in ((one, "a"), (two, "b")):
        file_hashes._memory.cache_clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(file_hashes, "_memory", lambda _, memory=memory: memory)
            file_hash(tmp_path / name)
    one.save()
    two.save()
    file_hashes._memory.cache_clear()
    for name in "ab":
        file_hash(tmp_path / name)
    assert read == ["a", "b"]


def test_no_folder_is_made_for_the_memory_and_one_that_cannot_be_written_is_no_error(
    tmp_path: Path, cache: Cache
):
    (tmp_path / "file").write_text("text")
    file_hash(tmp_path / "file")
    (cache / "hashes.json").mkdir()
    file_hashes._memory(cache).save()
    (cache / "hashes.json").rmdir()
    cache.rmdir()
    file_hashes._memory(cache).save()
    assert not cache.exists()


def test_the_memory_is_bounded(tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(file_hashes, "_MOST", 3)
    for i in range(9):
        remember(f"{i}", i)
        next_process(cache)
    assert json.loads((cache / "hashes.json").read_text())["content"] == [{}, {"6": 6, "7": 7, "8": 8}]


def test_sources_are_parsed_once_for_all_processes(
    tmp_path: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
):
    source = b"from os import path\nimport json.decoder\ndef f(): return 1\n"
    first = sources._parsed.__wrapped__("mine", False, source)
    next_process(cache)
    parsed, parse = [], ast.parse
    monkeypatch.setattr(sources.ast, "parse", lambda text, *more: parsed.append(text) or parse(text, *more))
    assert sources._parsed.__wrapped__("mine", False, source) == first
    assert not parsed
    other = sources._parsed.__wrapped__("mine", False, source.replace(b"1", b"2"))
    assert other["hash"] != first["hash"]
    assert len(parsed) == 1


def test_to_hash_what_a_module_imports_imports_no_installed_package(tmp_path: Path):
    """nltk takes seconds, and orbax with it: both are imported by modules of ours when they are needed."""
    (tmp_path / "mine.py").write_text(
        "from nltk.stem import porter\nimport orbax.checkpoint.args\nfrom sklearn.cluster import HDBSCAN\n"
    )
    script = (
        "import sys; from pbr_jax.cache.sources import closure; print(closure('mine').lines); "
        "print({'nltk', 'orbax.checkpoint', 'sklearn'} & {*sys.modules})"
    )
    command = [sys.executable, "-c", script]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert told.splitlines()[0].startswith("frozenset({'mine ")
    assert told.splitlines()[1] == "set()"

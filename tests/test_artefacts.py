"""Artefacts: made once, whole or not at all, continued after a death."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from pbr_jax import artefacts
from pbr_jax.artefacts import obtain, write_text


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "cache"))


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
    assert second.seconds == first.seconds
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
    monkeypatch.setattr(artefacts, "time", SimpleNamespace(perf_counter=lambda: next(clock)))

    def make(folder: Path) -> None:
        if not (folder / "tried").exists():
            (folder / "tried").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        obtain("s", {}, make)
    assert obtain("s", {}, make).seconds == 15.0


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

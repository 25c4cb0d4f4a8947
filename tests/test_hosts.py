"""Several processes that make one run: equal to one process, and all end where one does."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pbr_jax import hosts

Start = Callable[..., list["subprocess.Popen[str]"]]


@pytest.fixture
def words(tiny_models: dict[str, str], write_tweets: Callable[..., Path]) -> list[str]:
    """A run of a dense retriever and tiny random models on five users."""
    subjects = ("tea", "cats", "football", "violins", "tea and cats")
    root = write_tweets(
        {f"u{i}": [f"i love {one} day {j}" for j in range(4)] for i, one in enumerate(subjects)}
    )
    fields = {"benchmark.name": "lamp_7", "benchmark.root": root, "generate.max_new_tokens": 4, **tiny_models}
    return ["dense", *(f"--{name}={value}" for name, value in fields.items())]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts processes that make one run into `tmp_path / out`, each with a cache."""
    begun: list[subprocess.Popen[str]] = []

    def start(words: Sequence[str], caches: Sequence[Path], out: str = "together") -> list[Any]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            place = f"127.0.0.1:{free.getsockname()[1]}"
        for number, cache in enumerate(caches):
            joined = [f"--coordinator={place}", f"--processes={len(caches)}", f"--process={number}"]
            begun.append(_run([*words, *joined, "--out", str(tmp_path / out)], cache))
        return begun[-len(caches) :]

    yield start
    for process in begun:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.communicate()


def _run(words: Sequence[str], cache: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "pbr_jax", "run", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PBR_JAX_CACHE": str(cache)},
    )  # fmt: skip


def _ended(processes: Sequence["subprocess.Popen[str]"], code: int = 0) -> list[tuple[str, str]]:
    """What the processes wrote, which end with a code within a minute."""
    told = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [code] * len(processes), told
    return told


def _until(process: "subprocess.Popen[str]", line: str) -> None:
    assert process.stderr is not None
    assert any(found.startswith(line) for found in process.stderr), f"no line {line!r}"


def _errors(told: str) -> list[str]:
    return [line for line in told.splitlines() if line.startswith("pbr-jax: error: ")]


@pytest.mark.long
def test_two_processes_make_what_one_makes(words: list[str], start: Start, tmp_path: Path):
    alone, cache = tmp_path / "alone", tmp_path / "cache"
    _ended([_run([*words, "--out", str(alone)], tmp_path / "own")])
    leader, follower = _ended(start(words, [cache, cache]))
    assert "dense" in leader[0]
    assert follower[0] == ""  # one process reports
    for name in ("predictions.jsonl", "texts.jsonl"):
        assert (tmp_path / "together" / name).read_bytes() == (alone / name).read_bytes()
    shutil.rmtree(tmp_path / "together")
    again, _ = _ended(start(words, [cache, cache]))
    assert "embed ..." not in again[1]  # from the shared cache
    assert (tmp_path / "together/predictions.jsonl").read_bytes() == (
        alone / "predictions.jsonl"
    ).read_bytes()


@pytest.mark.long
@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_that_dies_ends_all_and_the_run_goes_on(
    words: list[str], start: Start, tmp_path: Path, victim: int
):
    cache = tmp_path / "cache"
    both = start(words, [cache, cache])
    _until(both[0], "embed ...")
    both[victim].send_signal(signal.SIGKILL)
    ((_, told),) = _ended([both[1 - victim]], 2)
    assert len(_errors(told)) == 1
    assert f"process {victim} has died" in told
    _ended(start(words, [cache, cache]))
    _ended([_run([*words, "--out", str(tmp_path / "alone")], tmp_path / "own")])
    made, expected = (tmp_path / name / "predictions.jsonl" for name in ("together", "alone"))
    assert made.read_bytes() == expected.read_bytes()


@pytest.mark.long
def test_a_cache_that_is_not_shared_is_found_out(
    words: list[str], start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for told in _ended(start(words, [tmp_path / "one", tmp_path / "other"]), 2):
        assert len(_errors(told[1])) == 1
        assert "does not see" in told[1]
    assert not (tmp_path / "together").exists()


@pytest.mark.long
def test_processes_with_different_configs_end(words: list[str], start: Start, tmp_path: Path):
    cache = tmp_path / "cache"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        joined = [f"--coordinator=127.0.0.1:{free.getsockname()[1]}", "--processes=2"]
    out = ["--out", str(tmp_path / "out")]
    both = [_run([*words, *joined, f"--process={n}", f"--retrieve.k={n + 1}", *out], cache) for n in range(2)]
    for _, told in _ended(both, 2):
        assert len(_errors(told)) == 1
        assert "another run than process 0" in told


def test_outside_of_a_cluster_the_processes_must_be_named():
    ((_, told),) = _ended([_run(["dense", "--distributed", "--out", "x"], Path("/nowhere"))], 2)
    assert "give each --coordinator HOST:PORT" in _errors(told)[0]


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 100])
@pytest.mark.parametrize("processes", [1, 2, 3, 8])
def test_shares_are_all_things_once_and_in_order(size: int, processes: int, monkeypatch: pytest.MonkeyPatch):
    found = []
    for number in range(processes):
        monkeypatch.setattr(hosts._State, "count", processes)
        monkeypatch.setattr(hosts._State, "index", number)
        monkeypatch.setattr(hosts._State, "together", True)
        found += list(range(size))[hosts.share(size)]
    assert found == list(range(size))


def test_a_stranger_is_not_connected():
    for said, number in ((b"guess 1\n", None), (b"password 3\n", 3)):
        with socket.create_server(("127.0.0.1", 0)) as server:
            theirs = socket.create_connection(server.getsockname())
            ours, _ = server.accept()
        with theirs, ours:
            theirs.sendall(said)
            peer = hosts._accepted(ours, "password")
            assert (peer and peer.number) == number
            for file in (peer.heard, peer.told) if peer else ():
                file.close()

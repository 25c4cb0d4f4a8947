"""Several processes that make one run: equal to one process, and all end where one does."""

import contextlib
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_trained_runs import TRAINING, histories

from pbr_jax.base import processes as hosts

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
    """What the processes wrote, which end with a code."""
    told = [process.communicate(timeout=600) for process in processes]
    assert [process.returncode for process in processes] == [code] * len(processes), told
    return told


def _until(process: "subprocess.Popen[str]", line: str) -> None:
    assert process.stderr is not None
    assert any(found.startswith(line) for found in process.stderr), f"no line {line!r}"


def _errors(told: str) -> list[str]:
    return [line for line in told.splitlines() if line.startswith("pbr-jax: error: ")]


def _kill(words: Sequence[str], start: Start, cache: Path, victim: int, line: str) -> None:
    """Starts two processes and kills one when the line is there: the other ends too and says why."""
    both = start(words, [cache, cache])
    _until(both[0], line)
    both[victim].send_signal(signal.SIGKILL)
    (_, told), code = both[1 - victim].communicate(timeout=300), both[1 - victim].returncode
    if code != -signal.SIGABRT:  # JAX aborts a process whose process 0 is gone, unless that ends before
        assert (code, len(_errors(told))) == (2, 1), told
        assert "another process of this run has ended" in told


def _answers(cache: Path) -> set[tuple[str, str]]:
    with contextlib.closing(sqlite3.connect(cache / "llm.sqlite")) as database:
        return {*database.execute("SELECT key, value FROM answers WHERE kind='text'")}


def _repeat(words: Sequence[str], start: Start, tmp_path: Path, stage: str) -> None:
    """Both make the run once more, and find the stage in the cache that they share."""
    shutil.rmtree(tmp_path / "together")
    again, _ = _ended(start(words, [tmp_path / "cache"] * 2))
    assert f"{stage} ..." not in again[1]
    _assert_equal(tmp_path / "together", tmp_path / "alone")


@pytest.mark.long
def test_two_processes_make_what_one_makes_also_after_each_was_killed(
    words: list[str], start: Start, tmp_path: Path
):
    alone, cache = tmp_path / "alone", tmp_path / "cache"
    _ended([_run([*words, "--out", str(alone)], tmp_path / "own")])
    for victim in (0, 1):
        _kill(words, start, cache, victim, "embed ...")
    leader, follower = _ended(start(words, [cache, cache]))
    assert "dense" in leader[0]
    told = [line for line in follower[0].splitlines() if not line.startswith("[Gloo]")]
    assert told == []  # one process reports
    _assert_equal(tmp_path / "together", alone)
    texts = [(folder / "texts.jsonl").read_bytes() for folder in (tmp_path / "together", alone)]
    assert texts[0] == texts[1]
    assert _answers(cache) == _answers(tmp_path / "own") != set()
    _repeat(words, start, tmp_path, "embed")


TRAINED: dict[str, tuple[Sequence[str], dict[str, Any]]] = {  # what trains, and sizes
    "cfrag_small": (
        ("user_encoder", "retrieve", "select"),
        {
            "prompt.max_tokens": 300, "neighbours.m": 3, "retrieve.k": 2, "select.k": 2,
            "select.max_length": 64,
        },
    ),
    "purple_small": (
        ("select",),
        {
            "prompt.max_tokens": 700, "retrieve.k": 4, "select.k": 2, "select.num_layers": 1,
            "select.num_heads": 2, "select.query_tokens": 16, "select.record_tokens": 12,
            "select.rollouts": 3,
        },
    ),
    "tuned": (
        ("generator",),
        {
            "prompt.max_tokens": 900, "retrieve.k": 2, "generator.k": 2, "generator.rank": 2,
            "generator.limit": 24,
        },
    ),
}  # fmt: skip

STAGES = {"cfrag_small": "user_encoder", "purple_small": "purple", "tuned": "generator"}  # that train


@pytest.fixture
def trained(tiny_models: dict[str, str], write_tweets: Callable[..., Path]) -> Callable[[str], list[str]]:
    """A run of a config that trains, at tiny sizes."""
    write_tweets(histories("a", 24), "train")
    place = {"benchmark.name": "lamp_7", "benchmark.root": write_tweets(histories("b", 8)), **tiny_models}
    place |= {"generate.method": "none", "eval.likelihood": "on", "eval.resamples": 20}
    place |= {"llm.batch_size": 8, "encoder.max_length": 16}

    def words(name: str) -> list[str]:
        parts, sizes = TRAINED[name]
        fields = {**place, **sizes}
        for part in parts:
            fields |= {f"{part}.training.{n}": v for n, v in TRAINING.items() if n != "devices"}
        if name == "cfrag_small":
            fields["select.model"] = tiny_models["encoder.model"]
        return [name, *(f"--{field}={value}" for field, value in fields.items())]

    return words


def _assert_equal(made: Path, expected: Path) -> None:
    """The same documents in the same order, and numbers within 1e-5, scores up to a constant: losses over a
    question's candidates do not feel one, so Adam moves a reranker's bias by the rounding of gradients."""
    both = [
        [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]
        for folder in (made, expected)
    ]
    for one, other in zip(*both, strict=True):
        assert [d["id"] for d in one["documents"]] == [d["id"] for d in other["documents"]]
        scores = [np.array([d["score"] for d in record["documents"]]) for record in (one, other)]
        centred = [own - own.mean() if len(own) else own for own in scores]
        np.testing.assert_allclose(*centred, rtol=1e-5, atol=1e-5)
    values = [json.loads((folder / "results.json").read_text())["metrics"] for folder in (made, expected)]
    assert values[0] == pytest.approx(values[1], rel=1e-5, abs=1e-5)
    assert values[0]


@pytest.mark.long
@pytest.mark.parametrize(("name", "victim"), [("cfrag_small", 0), ("purple_small", 0), ("tuned", 1)])
def test_two_processes_train_what_one_trains_also_after_one_was_killed(
    trained: Callable[[str], list[str]], start: Start, tmp_path: Path, name: str, victim: int
):
    words, cache = trained(name), tmp_path / "cache"
    _kill(words, start, cache, victim, f"{STAGES[name]} ...")
    _ended(start(words, [cache, cache]))
    _ended([_run([*words, "--out", str(tmp_path / "alone")], tmp_path / "own")])
    _assert_equal(tmp_path / "together", tmp_path / "alone")
    assert not [*cache.rglob("process-*"), *cache.rglob("part-*"), *cache.rglob("*.partial")]


@pytest.mark.long
def test_two_processes_of_four_devices_train_all_weights_in_shares(
    trained: Callable[[str], list[str]], start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Two devices share a model: as on one device of one process."""
    words = [
        *trained("tuned"),
        "--generator.method=full",
        "--generator.training.optimizer.learning_rate=1e-4",
    ]
    _ended([_run([*words, "--out", str(tmp_path / "alone")], tmp_path / "own")])
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "4")
    cache = tmp_path / "cache"
    told = _ended(start([*words, "--llm.tensor_parallel=3"], [cache, cache]), 2)
    assert any("set it to a number that divides them" in one[1] for one in told)
    _ended(start([*words, "--llm.tensor_parallel=2"], [cache, cache]))
    _assert_equal(tmp_path / "together", tmp_path / "alone")


HASTY = """
import sys
from pbr_jax.cli.main import main
from pbr_jax.base import processes
processes._START = 2
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.long
@pytest.mark.parametrize("number", [0, 1])
def test_a_process_that_never_starts_is_given_up(words: list[str], tmp_path: Path, number: int):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{free.getsockname()[1]}"
    joined = [
        f"--coordinator={place}",
        "--processes=2",
        f"--process={number}",
        "--out",
        str(tmp_path / "out"),
    ]
    ended = subprocess.run(
        [sys.executable, "-c", HASTY, "run", *words, *joined], stderr=subprocess.PIPE, text=True, timeout=300,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "PBR_JAX_CACHE": str(tmp_path / "cache")},
    )  # fmt: skip
    assert ended.returncode == 2
    [error] = _errors(ended.stderr)
    assert "after 2 s not all processes have started; start them all at once" in error
    assert hosts._START == 60
    assert not (tmp_path / "out").exists()


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

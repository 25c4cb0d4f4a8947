"""Sweeps that several processes make together: each run by one of them, then by one of those that wait."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pbr_jax import config as c
from pbr_jax.cli.main import main
from pbr_jax.eval.report import report
from pbr_jax.sweeps import grid
from pbr_jax.sweeps.launcher import LOCKS, sweep

HOLDER = """
import sys
from filelock import FileLock
with FileLock(sys.argv[1]):
    print(flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def words(write_tweets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A sweep of six runs, as words of a command line."""
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "cache"))
    root = write_tweets({f"u{i}": [f"tweet {i} {j}" for j in range(i)] for i in range(6)})
    config = tmp_path / "six.py"
    config.write_text(
        "from pbr_jax.config import Config, override\nfrom pbr_jax.sweeps import grid\n"
        "def get_config(): return override(Config(), {'retrieve.method': 'bm25'})\n"
        "def sweep(): return grid({'retrieve.k': [1, 2, 3], 'retrieve.b': [0.5, 0.7]})\n"
    )
    place = ["--benchmark.name", "lamp_7", "--benchmark.root", str(root), "--generate.method", "none"]
    return ["sweep", str(config), *place]


def made(out: Path) -> list[str]:
    """The folders of runs that were made, once for each time that one was."""
    logs = [(path.parent.name, path.read_text()) for path in sorted(out.glob("*/log.jsonl"))]
    events = [(name, json.loads(line)) for name, log in logs for line in log.splitlines()]
    return [name for name, event in events if event.get("stage") == "rank" and event["event"] == "made"]


def table(out: Path) -> str:
    return report([out]).replace(str(out), "")


def test_shards_make_every_run_once_and_their_report_is_that_of_one_process(
    words: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    out, whole = tmp_path / "out", tmp_path / "whole"
    counts = []
    for place in range(4):
        assert main([*words, "--out", str(out), "--shard", f"{place}/4"]) == 0
        counts.append(len(made(out)))
        assert ("not finished" in report([out])) == (place < 3)
    assert counts == [2, 4, 5, 6]
    assert len(set(made(out))) == 6
    assert main([*words, "--out", str(out), "--shard", "6/7"]) == 0
    assert "shard 6/7 has none of the sweep's 6 runs" in capfd.readouterr().out
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "another"))
    assert main([*words, "--out", str(whole)]) == 0
    assert table(out) == table(whole)
    assert (out / "sweep.jsonl").read_text() == (whole / "sweep.jsonl").read_text()


@pytest.mark.parametrize("shard", ["4/4", "-1/4", "1", "a/b", "1/0"])
def test_a_wrong_shard_is_one_clear_line(
    words: list[str], tmp_path: Path, shard: str, capfd: pytest.CaptureFixture[str]
):
    assert main([*words, "--out", str(tmp_path / "out"), f"--shard={shard}"]) == 2
    assert f"--shard is {shard}, want I/N" in capfd.readouterr().err
    assert main([*words, "--out", str(tmp_path / "out"), "--shard", "0/2", "--index", "0"]) == 2
    assert "exclude each other" in capfd.readouterr().err
    assert not (tmp_path / "out").exists()


def test_runs_of_another_process_are_waited_for_and_taken_over(
    words: list[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    """The operating system frees the lock of a process that was killed."""
    file = c.load(Path(words[1]))
    base = c.override(file.config, {n[2:]: v for n, v in zip(words[2::2], words[3::2])})
    two = file._replace(sweep=lambda: grid({"retrieve.k": [1, 2]}))
    first = sweep(two, tmp_path / "out", base, part=slice(1))[0]
    (first.path / "results.json").unlink()
    lock = tmp_path / "out" / LOCKS / f"{first.path.name}.lock"
    command = [sys.executable, "-c", HOLDER, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        threading.Timer(1, process.kill).start()
        results = sweep(two, tmp_path / "out", base)
    assert [result.path.is_dir() for result in results] == [True, True]
    told = capfd.readouterr().err
    assert "waiting for runs that other processes make: retrieve.k 1\n" in told
    assert told.index("run 2 of 2") < told.rindex("run 1 of 2")  # what is left is made first


@pytest.mark.slow
@pytest.mark.long
def test_two_launchers_on_one_folder_make_no_run_twice_and_one_may_be_killed(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out, whole = tmp_path / "out", tmp_path / "whole"
    command = [sys.executable, "-m", "pbr_jax", *words, "--out", str(out)]
    both = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait(300) for process in both] == [0, 0]
    assert sorted(made(out)) == sorted(path.parent.name for path in out.glob("*/results.json"))
    assert len(made(out)) == 6

    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "another"))
    command[-1] = str(whole)
    both = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(2)]
    while not list((whole / LOCKS).glob("*.lock")):
        assert both[0].poll() is both[1].poll() is None
        time.sleep(0.01)
    both[0].kill()
    assert [process.wait(300) for process in both] == [-9, 0]
    assert len(made(whole)) == len(set(made(whole))) == 6
    assert table(out) == table(whole)

"""Claims of a sweep's runs: by one process each, while it lives; then by one of those that wait."""

import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pbr_jax import config as c
from pbr_jax.base.types import UserError
from pbr_jax.cli.main import main
from pbr_jax.eval.report import report
from pbr_jax.experiment.run import Results
from pbr_jax.sweeps import grid
from pbr_jax.sweeps.claims import Claims
from pbr_jax.sweeps.launcher import sweep

TAKER = """
import os, sys, time
from pathlib import Path
from pbr_jax.sweeps.claims import Claims
with Claims(Path(sys.argv[1]), 300) as claims:
    print(claims.take("run"), flush=True)
    sys.stdin.read()
    os._exit(0)  # as if killed: nothing is released
"""


def taker(folder: Path) -> "subprocess.Popen[str]":
    """A process that claims "run" and lives until its stdin is closed."""
    process = subprocess.Popen(
        [sys.executable, "-c", TAKER, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    return process


def backdate(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def elsewhere(path: Path, age: float) -> None:
    """Makes a claim one of another host that was touched so many seconds ago."""
    path.write_text(json.dumps({**json.loads(path.read_text()), "host": "elsewhere"}))
    backdate(path, age)


def test_a_claim_is_held_until_it_ends(tmp_path: Path):
    with Claims(tmp_path, 300.0) as one, Claims(tmp_path, 300.0) as other:
        assert one.take("run")
        assert not other.take("run")
        assert other.take("another")
        one.release("run")
        assert other.take("run")
        assert str(os.getpid()) in one.holder("run")
    with Claims(tmp_path, 300.0) as later:
        assert later.take("run")
    assert {path.name for path in tmp_path.iterdir()} == {"run.0", "run.1", "run.2", "another.0"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())


def test_a_failure_is_known_to_those_that_were_there(tmp_path: Path):
    with Claims(tmp_path, 300.0) as one, Claims(tmp_path, 300.0) as other:
        assert one.take("run")
        assert other.failure("run") == ""
        one.release("run", "no such model")
        assert other.failure("run") == "no such model"
    backdate(tmp_path / "run.0", 1)
    with Claims(tmp_path, 300.0) as later:  # which is to try again
        assert later.failure("run") == ""
        assert later.take("run")


def test_a_process_that_died_loses_its_claim_at_once(tmp_path: Path):
    with taker(tmp_path) as process, Claims(tmp_path, 300.0) as claims:
        assert not claims.take("run")
        assert f"process {process.pid} on " in claims.holder("run")
        process.kill()
        process.wait(60)
        assert claims.take("run")


def test_a_claim_of_another_host_is_known_by_its_age(tmp_path: Path):
    """Its process has a number of that host's, which says nothing here."""
    with taker(tmp_path) as process:
        process.kill()
    with Claims(tmp_path, 300.0) as claims:
        elsewhere(tmp_path / "run.0", age=200)
        assert not claims.take("run")
        elsewhere(tmp_path / "run.0", age=400)
        assert claims.take("run")


def test_a_process_that_lives_touches_its_claims(tmp_path: Path):
    with Claims(tmp_path, 1.0) as one, Claims(tmp_path, 1.0) as other:
        assert one.take("run")
        elsewhere(tmp_path / "run.0", age=0)
        time.sleep(1.5)
        assert not other.take("run")


@pytest.mark.parametrize("dead", [False, True])
def test_of_many_that_claim_together_one_has_it(tmp_path: Path, dead: bool):
    if dead:
        with taker(tmp_path) as process:
            process.kill()
    ready = threading.Barrier(16)

    def take(claims: Claims) -> bool:
        ready.wait()
        return claims.take("run")

    for _ in range(5):
        with ThreadPoolExecutor(16) as pool:
            assert sum(pool.map(take, [Claims(tmp_path, 300.0) for _ in range(16)])) == 1
        for path in tmp_path.iterdir():  # ended, as by a process that is gone
            path.write_text(json.dumps({"ended": True}))


def test_a_claim_that_is_being_written_is_held(tmp_path: Path):
    (tmp_path / "run.0").touch()
    with Claims(tmp_path, 300.0) as claims:
        assert not claims.take("run")
        backdate(tmp_path / "run.0", 400)
        assert claims.take("run")


# -- sweeps in shards ----------------------------------------------------------------------------------


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
    file = c.load(Path(words[1]))
    base = c.override(file.config, {n[2:]: v for n, v in zip(words[2::2], words[3::2])})
    two = file._replace(sweep=lambda: grid({"retrieve.k": [1, 2]}))
    first = sweep(two, tmp_path / "out", base, part=slice(1))[0]
    (first.path / "results.json").unlink()
    claim = tmp_path / "out" / ".claims" / f"{first.path.name}.1"
    with taker(tmp_path / "elsewhere") as process:
        claim.write_text((tmp_path / "elsewhere" / "run.0").read_text())
        threading.Timer(1, process.kill).start()
        found: list[Results] = sweep(two, tmp_path / "out", base)
    assert [result.path.is_dir() for result in found] == [True, True]
    told = capfd.readouterr().err
    assert f"waiting for runs that other processes make: retrieve.k 1 (process {process.pid} on " in told
    assert told.index("run 2 of 2") < told.rindex("run 1 of 2")  # what is left is made first
    assert json.loads(claim.with_suffix(".2").read_text())["ended"]


def test_a_run_that_another_process_could_not_make_is_not_tried_again(words: list[str], tmp_path: Path):
    file = c.load(Path(words[1]))
    base = c.override(file.config, {n[2:]: v for n, v in zip(words[2::2], words[3::2])})
    one = file._replace(sweep=lambda: grid({"retrieve.k": [1]}))
    out = tmp_path / "out"
    made_before = sweep(one, out, base)[0]
    (made_before.path / "results.json").unlink()
    claim = out / ".claims" / f"{made_before.path.name}.1"

    def fail() -> None:
        claim.write_text(json.dumps({"ended": True, "failure": "the server was away"}))

    with taker(tmp_path / "elsewhere"):
        claim.write_text((tmp_path / "elsewhere" / "run.0").read_text())
        threading.Timer(1, fail).start()
        with pytest.raises(UserError, match=r"1 of 1 runs failed.*the server was away"):
            sweep(one, out, base)
    assert sweep(one, out, base)[0].metrics == made_before.metrics


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
    assert len(made(out)) == len(list((out / ".claims").iterdir())) == 6

    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "another"))
    command[-1] = str(whole)
    both = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(2)]
    while not list((whole / ".claims").glob("*.0")):
        assert both[0].poll() is both[1].poll() is None
        time.sleep(0.01)
    both[0].kill()
    assert [process.wait(300) for process in both] == [-9, 0]
    assert len(made(whole)) == len(set(made(whole))) == 6
    assert table(out) == table(whole)

"""Jobs: what Slurm is given, without Slurm, and a sweep through submitit's processes that is killed."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from pbr_jax.base.types import UserError
from pbr_jax.cli.main import main
from pbr_jax.eval.report import report
from pbr_jax.sweeps.slurm import parameters

needs_submitit = pytest.mark.skipif(find_spec("submitit") is None, reason="submitit is not installed")

# As sbatch does, keeps a copy of what it is given, and says a number.
SBATCH = '#!/bin/sh\ncp "$1" "$KEPT"\necho Submitted batch job 42\n'


@pytest.fixture
def words(write_tweets: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A sweep of twelve runs, as words of a command line."""
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "cache"))
    root = write_tweets({f"u{i}": [f"tweet {i} {j}" for j in range(i)] for i in range(6)})
    config = tmp_path / "twelve.py"
    config.write_text(
        "from pbr_jax.config import Config, override\nfrom pbr_jax.sweeps import grid\n"
        "def get_config(): return override(Config(), {'retrieve.method': 'bm25'})\n"
        "def sweep(): return grid({'retrieve.k': [1, 2, 3, 4], 'retrieve.b': [0.5, 0.7, 0.9]})\n"
    )
    place = ["--benchmark.name", "lamp_7", "--benchmark.root", str(root), "--generate.method", "none"]
    return ["sweep", str(config), *place, "--out", str(tmp_path / "out")]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs by the names of Slurm's; where what sbatch was given is kept."""
    programs, kept = tmp_path / "bin", tmp_path / "kept.sh"
    programs.mkdir()
    for name in ("sbatch", "srun"):
        (programs / name).write_text(SBATCH)
        (programs / name).chmod(0o700)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    monkeypatch.setenv("KEPT", str(kept))
    return kept


def test_parameters_are_taken_from_the_words():
    found, rest = parameters(
        ["sweep", "--slurm.partition", "gpu", "--limit", "3", "--slurm.gpus-per-node=2", "--slurm.exclusive",
         "true", "--slurm.requeue", "false"]
    )  # fmt: skip
    assert found == {"partition": "gpu", "gpus_per_node": 2, "exclusive": True, "requeue": None}
    assert rest == ["sweep", "--limit", "3"]
    for wrong in (["--slurm.partition"], ["--slurm.partition", "--limit", "3"]):
        with pytest.raises(UserError, match=r"--slurm\.partition has no value"):
            parameters(wrong)


@needs_submitit
def test_slurm_is_given_an_array_of_shards(
    words: list[str], cluster: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    more = ["--launcher", "submitit", "--jobs", "5", "--slurm.partition", "gpu", "--slurm.account", "mine",
            "--slurm.gpus_per_node", "2", "--slurm.time", "90", "--slurm.array_parallelism", "3",
            "--slurm.setup", "module load cuda", "--slurm.constraint", "a100"]  # fmt: skip
    assert main([*words, *more, "--dry"]) == 0
    shown = capfd.readouterr().out
    assert not (tmp_path / "out").exists()
    assert main([*words, *more]) == 0
    told = capfd.readouterr()
    assert "5 jobs are queued as 42" in told.err
    assert told.out == f"pbr-jax report {tmp_path / 'out'}\n"
    script = cluster.read_text()
    assert shown.strip() == script.strip()
    flags = dict(re.findall(r"^#SBATCH --([\w-]+)=?(.*)$", script, re.M))
    assert flags["array"] == "0-4%3"
    assert (flags["partition"], flags["account"], flags["constraint"]) == ("gpu", "mine", "a100")
    assert (flags["time"], flags["gpus-per-node"], flags["nodes"]) == ("90", "2", "1")
    assert (flags["requeue"], flags["job-name"], flags["open-mode"]) == ("", "pbr-jax", "append")
    assert flags["signal"].startswith("USR2@")
    assert "\nmodule load cuda\n" in script
    pickles = sorted((tmp_path / "out" / ".jobs").glob("42_*_submitted.pkl"))
    import pickle

    jobs = [pickle.loads(path.read_bytes()).function for path in pickles]
    assert [job.words[-2:] for job in jobs] == [["--shard", f"{i}/5"] for i in range(5)]
    assert all("gpu" not in job.words for job in jobs)
    assert isinstance(jobs[0].checkpoint().function, type(jobs[0]))


@needs_submitit
def test_a_job_over_three_nodes_makes_one_run_together(
    words: list[str], cluster: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    assert main([*words, "--launcher", "submitit", "--slurm.nodes", "3"]) == 0
    script = cluster.read_text()
    assert "#SBATCH --nodes=3\n" in script
    assert "#SBATCH --array=0-11%12\n" in script
    assert re.search(r"^srun .*submitit\.core\._submit ", script, re.M)  # one process on each node
    import pickle

    pickles = (tmp_path / "out" / ".jobs").glob("42_*_submitted.pkl")
    jobs = [pickle.loads(path.read_bytes()).function for path in pickles]
    listed = [json.loads(line)["run"] for line in (tmp_path / "out" / "sweep.jsonl").read_text().splitlines()]
    assert sorted(job.words[-2].rpartition("/")[2] for job in jobs) == sorted(listed)
    assert {job.words[0] for job in jobs} == {"run"}
    assert {job.words[-1] for job in jobs} == {"--distributed"}


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--jobs", "2"], "add --launcher"),
        (["--slurm.partition", "gpu"], "add --launcher"),
        (["--launcher", "submitit", "--index", "0"], "leave --index and --shard out"),
        (["--launcher", "pbs"], "invalid choice: 'pbs'"),
        (["--launcher", "submitit", "--jobs", "0"], "--jobs is 0, want at least 1"),
    ],
)
def test_a_wrong_launch_is_one_clear_line(
    words: list[str], more: list[str], told: str, capfd: pytest.CaptureFixture[str]
):
    assert main([*words, *more]) == 2
    error = capfd.readouterr().err
    assert error.count("\n") == 1
    assert told in error


@needs_submitit
@pytest.mark.parametrize(
    ("more", "told"),
    [
        ([], "no Slurm is here"),
        (["--dry", "--slurm.time", "2h"], "--slurm.time is '2h', want whole minutes"),
        (["--dry", "--slurm.time", "0"], "--slurm.time is 0, want whole minutes"),
    ],
)
def test_a_wrong_job_is_one_clear_line(
    words: list[str], more: list[str], told: str, capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):  # fmt: skip
    monkeypatch.setenv("PATH", "")
    assert main([*words, "--launcher", "submitit", *more]) == 2
    error = capfd.readouterr().err
    assert error.count("\n") == 1
    assert told in error


def test_without_submitit_it_is_named(
    words: list[str], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "submitit", None)
    assert main([*words, "--launcher", "local"]) == 2
    assert "pip install 'pbr-jax[slurm]'" in capfd.readouterr().err


@needs_submitit
@pytest.mark.slow
@pytest.mark.long
def test_a_sweep_that_is_killed_and_submitted_again_ends_with_the_same_report(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out, whole = tmp_path / "out", tmp_path / "whole"
    command = [sys.executable, "-m", "pbr_jax", *words, "--launcher", "local", "--jobs", "2"]
    launcher = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    while len(list(out.glob("*/results.json"))) < 3:
        assert launcher.poll() is None
        time.sleep(0.05)
    os.killpg(launcher.pid, signal.SIGKILL)  # the launcher, both jobs and what controls them
    assert launcher.wait(60) == -signal.SIGKILL
    made = {path: path.stat().st_mtime_ns for path in out.glob("*/results.json")}
    assert 3 <= len(made) < 12
    again = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert again.returncode == 0, again.stderr
    assert "2 jobs have ended" in again.stderr
    assert len(list(out.glob("*/results.json"))) == 12
    assert all(path.stat().st_mtime_ns == before for path, before in made.items())
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "another"))
    assert main([*words[:-1], str(whole)]) == 0
    assert report([out]).replace(str(out), "") == report([whole]).replace(str(whole), "")
    assert (out / "sweep.jsonl").read_text() == (whole / "sweep.jsonl").read_text()

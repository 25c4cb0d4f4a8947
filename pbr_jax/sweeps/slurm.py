"""Sweeps through submitit: as arrays of Slurm jobs, or as processes of this machine to try that on.

Each job makes a shard of the sweep, by the command that a shell would be given. A job that Slurm stops, for
another one or at its time limit, is queued again and continues: finished runs are found, and the run that
was stopped goes on (`claims`).
"""

import importlib
import os
import runpy
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pbr_jax.base.files import private_folder
from pbr_jax.base.types import UserError

Cluster = Literal["submitit", "local"]

JOBS = ".jobs"
"""The folder of submitit in a sweep's folder: what was submitted, and what jobs printed."""

_MINUTES = 240  # of a job, which goes on in another one; short jobs fit into a cluster's gaps
_CONTINUED = 1000  # times that a job may reach its time limit: it goes on each time
_ENDED = (1, 2, 130)  # exit codes of this program
_LOG = "SUBMITIT_LOG_LEVEL"
_OURS = ("time", "nodes", "signal_delay_s", "array_parallelism", "setup")  # else sbatch's own parameters


class Job:
    """One command of the array."""

    def __init__(self, words: Sequence[str]) -> None:
        self.words = [*words]

    def __call__(self) -> None:
        sys.argv = ["pbr-jax", *self.words]
        try:
            runpy.run_module("pbr_jax", run_name="__main__")
        except SystemExit as error:
            if error.code not in (None, 0, *_ENDED):
                raise  # submitit's own, once it has queued the job again
            if error.code:
                raise RuntimeError(f"pbr-jax ended with code {error.code}, for the reason above") from error

    def checkpoint(self) -> Any:
        """What is queued again: the same."""
        return _submitit().helpers.DelayedSubmission(self)


def parameters(words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The values of `--slurm.NAME VALUE`, by names with underscores, and the words without them. Raises
    UserError: one without a value."""
    found, rest, words = dict[str, Any](), list[str](), [*words]
    while words:
        word = words.pop(0)
        if not word.startswith("--slurm."):
            rest.append(word)
            continue
        name, equals, value = word.removeprefix("--slurm.").partition("=")
        if not equals:
            if not words or words[0].startswith("--"):
                raise UserError(f"{word} has no value; write {word} VALUE, or {word} true")
            value = words.pop(0)
        known = {"true": True, "false": None}
        value = int(value) if value.isdecimal() else known.get(value.lower(), value)
        found[name.replace("-", "_")] = value
    return found, rest


def submit(cluster: Cluster, out: Path, commands: Sequence[Sequence[str]], given: Mapping[str, Any]) -> str:
    """Submits commands as an array, of which each is a job; says what was done, in words.

    On this machine (`local`) it returns when all have ended.

    Raises UserError: submitit or Slurm is not there, a parameter is wrong, or a local job failed.
    """
    folder = out / JOBS
    private_folder(folder)
    executor = _executor(cluster, folder, given)
    jobs = executor.submit_array([Job(command) for command in commands])
    if cluster == "submitit":
        number = jobs[0].job_id.partition("_")[0]
        return (
            f"{len(jobs)} jobs are queued as {number}; they print to {folder}; squeue -j {number} shows them"
        )
    try:
        while not all(job.done() for job in jobs):
            time.sleep(1)
    except KeyboardInterrupt:
        for job in jobs:
            job.cancel()
        raise
    failed = [job for job in jobs if job.exception() is not None]
    if failed:
        raise UserError(
            f"{len(failed)} of {len(jobs)} jobs failed or were ended, as {failed[0].paths.stderr} tells; "
            "the same command goes on from here"
        )
    return f"{len(jobs)} jobs have ended; they printed to {folder}"


def script(out: Path, jobs: int, given: Mapping[str, Any]) -> str:
    """What sbatch would be given. It takes no Slurm."""
    found = _slurm(out / JOBS, given, there=True)
    if jobs > 1:
        found.parameters["map_count"] = jobs
    return found._make_submission_file_text(found._submitit_command_str, "")


def _executor(cluster: Cluster, folder: Path, given: Mapping[str, Any]) -> Any:
    if cluster == "submitit":
        return _slurm(folder, given)
    found = _submitit().LocalExecutor(folder, max_num_timeout=_CONTINUED)
    gpus = given.get("gpus_per_node", 0)
    found.update_parameters(timeout_min=_minutes(given), gpus_per_node=gpus, setup=_setup(given) or ())
    return found


def _slurm(folder: Path, given: Mapping[str, Any], *, there: bool = False) -> Any:
    """submitit's executor. `there`: Slurm need not be."""
    executor = _submitit().SlurmExecutor
    if there:
        executor = type("Written", (executor,), {"affinity": classmethod(lambda cls: 1)})
    elif shutil.which("sbatch") is None or shutil.which("srun") is None:
        raise UserError(
            "no Slurm is here: srun or sbatch is not found; run this on a login node, add --dry to see the "
            "script, or take --launcher local or --shard"
        )
    found = executor(folder, max_num_timeout=_CONTINUED)
    own = {name: value for name, value in given.items() if name in _OURS and value is not None}
    rest = {name: value for name, value in given.items() if name not in _OURS and value is not None}
    setup = {"setup": _setup(given)} if "setup" in own else {}
    found.update_parameters(
        **{"job_name": "pbr-jax", **own, **setup, "time": _minutes(given)},
        additional_parameters={"requeue": True, **rest},
    )
    return found


def _minutes(given: Mapping[str, Any]) -> int:
    minutes = given.get("time", _MINUTES)
    if not isinstance(minutes, int) or isinstance(minutes, bool) or minutes < 1:
        raise UserError(f"--slurm.time is {minutes!r}, want whole minutes, at least 1")
    return minutes


def _setup(given: Mapping[str, Any]) -> list[str] | None:
    """A line of the shell before the job, such as one that loads a module."""
    return [str(given["setup"])] if given.get("setup") else None


def _submitit() -> Any:
    """The package; where it is first imported here, it would close the handlers of all other logs."""
    given = os.environ.get(_LOG)
    os.environ[_LOG] = "NOCONFIG"
    try:
        return importlib.import_module("submitit")
    except ImportError as error:
        raise UserError(
            f"--launcher needs submitit, which is not there ({error}); pip install 'pbr-jax[slurm]'"
        ) from error
    finally:  # jobs, which inherit the environment, keep their logs
        del os.environ[_LOG]
        os.environ |= {} if given is None else {_LOG: given}

"""Sweeps through submitit: as arrays of Slurm jobs, or as processes of this machine to try that on.

Each job makes a shard of the sweep, by the command that a shell would be given. A job that Slurm stops, for
another one or at its time limit, is queued again and continues: finished runs are skipped, and the run that
was stopped goes on.
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
_OURS = ("nodes", "signal_delay_s", "array_parallelism")  # of submitit; others are sbatch's own parameters


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
    given, rest, words = dict[str, Any](), list[str](), [*words]
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
        switched = {"true": True, "false": None}
        given[name.replace("-", "_")] = (
            int(value) if value.isdecimal() else switched.get(value.lower(), value)
        )
    return given, rest


def submit(cluster: Cluster, out: Path, commands: Sequence[Sequence[str]], given: Mapping[str, Any]) -> str:
    """Submits commands as an array, of which each is a job; says what was done, in words.

    On this machine (`local`) it returns when all have ended.

    Raises UserError: submitit or Slurm is not there, a parameter is wrong, or a local job failed.
    """
    folder = out / JOBS
    private_folder(folder)
    jobs = _executor(cluster, folder, given).submit_array([Job(command) for command in commands])
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
    executor = _executor("submitit", out / JOBS, given, dry=True)
    if jobs > 1:
        executor.parameters["map_count"] = jobs
    return executor._make_submission_file_text(executor._submitit_command_str, "")


def _executor(cluster: Cluster, folder: Path, given: Mapping[str, Any], *, dry: bool = False) -> Any:
    """submitit's executor. `dry`: nothing is submitted, so Slurm need not be there."""
    minutes, submitit = given.get("time", _MINUTES), _submitit()
    if not isinstance(minutes, int) or isinstance(minutes, bool) or minutes < 1:
        raise UserError(f"--slurm.time is {minutes!r}, want whole minutes, at least 1")
    setup = [str(given["setup"])] if given.get("setup") else None  # a line of the shell before the job
    if cluster == "local":
        executor = submitit.LocalExecutor(folder, max_num_timeout=_CONTINUED)
        gpus = given.get("gpus_per_node", 0)
        executor.update_parameters(timeout_min=minutes, gpus_per_node=gpus, setup=setup or ())
        return executor
    kind = submitit.SlurmExecutor
    if dry:
        kind = type("Written", (kind,), {"affinity": classmethod(lambda cls: 1)})
    elif shutil.which("sbatch") is None or shutil.which("srun") is None:
        raise UserError(
            "no Slurm is here: srun or sbatch is not found; run this on a login node, add --dry to see the "
            "script, or take --launcher local or --shard"
        )
    executor = kind(folder, max_num_timeout=_CONTINUED)
    rest = {n: value for n, value in given.items() if value is not None and n not in ("time", "setup")}
    own = {name: rest.pop(name) for name in _OURS if name in rest}
    executor.update_parameters(
        **{"job_name": "pbr-jax", **own, "time": minutes, "setup": setup},
        additional_parameters={"requeue": True, **rest},
    )
    return executor


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

"""The command sweep: the runs of a config's sweep(), all, one, or a shard of them."""

import argparse
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pbr_jax.base import terminal
from pbr_jax.base.types import UserError
from pbr_jax.cli import flags
from pbr_jax.config import Config, ConfigFile
from pbr_jax.eval.report import report
from pbr_jax.experiment.run import Results
from pbr_jax.sweeps import launcher, slurm
from pbr_jax.sweeps.launcher import ALL, dry, sweep
from pbr_jax.sweeps.sweep import Trial, command, identity, trials


def add(commands: Any, show: Callable[[Sequence[Results]], None]) -> None:
    """Adds the command's parser. `show` is called with the runs that were made."""
    # It takes any field of the config, so its --help comes from the config (see `flags`).
    parser = commands.add_parser("sweep", help="run a config's sweep()", add_help=False, allow_abbrev=False)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--index", type=int)
    parser.add_argument("--shard")
    parser.add_argument("--launcher", choices=get_args(slurm.Cluster))
    parser.add_argument("--jobs", type=int)
    parser.add_argument("--max-parallel", type=int, default=1)
    parser.add_argument("--stale-after")
    parser.set_defaults(function=lambda options, rest: _sweep(options, rest, show))


def _sweep(options: argparse.Namespace, rest: list[str], show: Callable[[Sequence[Results]], None]) -> int:
    given, rest = slurm.parameters(rest)
    file, config = flags.config(rest, flags.SWEEP)
    planned = trials(file, config)
    part = _part(options, len(planned))
    if options.launcher is None and (given or options.jobs):
        raise UserError("--slurm and --jobs are of jobs; add --launcher submitit, or --launcher local")
    if options.launcher is not None:
        return _launch(options, rest, given, file, config, planned)
    if options.dry:
        for text in dry(planned, options.out, part):
            terminal.out(text)
        return 0
    out = _out(options)
    if options.list:
        terminal.out("\n".join(command(file, trial, out) for trial in planned[part]))
        return 0
    _check(options)
    results = sweep(file, out, config, options.max_parallel, part=part)
    if not results:
        terminal.out(f"shard {options.shard} has none of the sweep's {len(planned)} runs")
        return 0
    terminal.out(report([result.path for result in results]))
    show(results)
    return 0


def _launch(
    options: argparse.Namespace,
    rest: list[str],
    given: Mapping[str, Any],
    file: ConfigFile,
    config: Config,
    planned: Sequence[Trial],
) -> int:
    """Submits the sweep as jobs: a shard each, or, where a job has several nodes, one run each."""
    if options.index is not None or options.shard is not None:
        raise UserError("--launcher submits the whole sweep; leave --index and --shard out, or set --jobs")
    _check(options)
    out, several = _out(options).absolute(), given.get("nodes", 1) != 1
    count = len(planned) if options.jobs is None or several else min(options.jobs, len(planned))
    if options.dry:
        terminal.out(slurm.script(out, count, given))
        return 0
    earlier = launcher.own(out)
    if several:
        runs = [(trial.name, trial.overrides) for trial in planned]
        launcher.note(runs, out, earlier, identity(file, config))
        lines = [shlex.split(command(file, trial, out))[1:] for trial in planned]
        commands = [[*line, "--distributed"] for line in lines]
    else:
        words = ["sweep", *rest, "--out", str(out), "--max-parallel", str(options.max_parallel)]
        commands = [[*words, "--shard", f"{place}/{count}"] for place in range(count)]
    terminal.err(slurm.submit(options.launcher, out, commands, given))
    terminal.out(report([out]) if options.launcher == "local" else f"pbr-jax report {shlex.quote(str(out))}")
    return 0


def _out(options: argparse.Namespace) -> Path:
    if options.out is None:
        raise UserError("no output folder given; add --out DIR")
    return options.out


def _part(options: argparse.Namespace, count: int) -> slice:
    """The runs that are wanted, of so many."""
    if options.index is not None and options.shard is not None:
        raise UserError("--index and --shard exclude each other; give one of them")
    if options.index is not None:
        if not 0 <= options.index < count:
            raise UserError(f"--index is {options.index}, want 0 to {count - 1}; --list shows the runs")
        return slice(options.index, options.index + 1)
    if options.shard is None:
        return ALL
    found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", options.shard)
    if found is None or int(found[1]) >= int(found[2]):
        raise UserError(
            f"--shard is {options.shard}, want I/N, the I-th of N shards, counted from 0: 0/4, 1/4, 2/4, 3/4"
        )
    return slice(int(found[1]), None, int(found[2]))


def _check(options: argparse.Namespace) -> None:
    if options.jobs is not None and options.jobs < 1:
        raise UserError(f"--jobs is {options.jobs}, want at least 1")
    if options.max_parallel < 1:
        raise UserError(f"--max-parallel is {options.max_parallel}, want at least 1")
    if options.stale_after is not None:
        raise UserError("--stale-after goes: runs of a process that has ended are free at once; leave it out")

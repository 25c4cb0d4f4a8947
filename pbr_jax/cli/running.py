"""The commands that make runs: run, sweep, check and audit. They take any field of the config."""

import argparse
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pbr_jax.base import processes, terminal
from pbr_jax.base.types import UserError
from pbr_jax.checking import check as checking
from pbr_jax.cli import flags
from pbr_jax.config import Benchmark, Config, ConfigFile
from pbr_jax.eval.report import report
from pbr_jax.experiment import audit as auditing
from pbr_jax.experiment import slices, stand_in
from pbr_jax.experiment.cost import estimate, table
from pbr_jax.experiment.opening import read_config
from pbr_jax.experiment.plan import Plan
from pbr_jax.experiment.questions import examples
from pbr_jax.experiment.run import Results, follow
from pbr_jax.experiment.run import run as made
from pbr_jax.graph.lists import tree
from pbr_jax.sweeps import launcher, slurm
from pbr_jax.sweeps.sweep import Trial, command, identity, trials


def run(options: argparse.Namespace, words: list[str]) -> None:
    """Makes one run, or shows what it would compute."""
    if (options.distributed or options.coordinator) and not options.dry:  # before anything else of JAX
        processes.start(options.coordinator, options.processes, options.process)
    _, config = flags.config(words, flags.RUN)
    if not processes.leads():
        follow(config)
    elif options.chip or options.utilisation:
        raise UserError(
            "--chip and --utilisation were removed; --dry --cost counts FLOPs, so divide them by the FLOP/s "
            "that your chip reaches"
        )
    elif options.dry:
        plan = Plan(config)
        if stand_in.recorder is not None or not options.topology:
            plan.check()  # with the devices of the slice, where there is one
        if stand_in.recorder is not None:
            _rehearse(plan, stand_in.recorder)
            return
        terminal.out(tree(plan.last))
        if options.cost:
            terminal.out(f"\n{table(estimate(plan))}")
        if options.topology:
            _compile(options.topology, words)
    elif options.cost or options.topology:
        raise UserError("--cost and --topology tell what a run would take; add --dry")
    else:
        results = made(config, _out(options), overwrite=options.overwrite)
        terminal.out(report([results.path]))
        _show_examples([results])


def _compile(topology: str, words: Sequence[str]) -> None:
    """Prints what a run's programs take on a slice. Raises UserError for one that does not fit."""
    text, wrong = slices.elsewhere(topology, words)
    terminal.out(f"\n{text}")
    if wrong:
        raise UserError(wrong)


def _rehearse(plan: Plan, recorder: stand_in.Recorder) -> None:
    """The same, in the process that rehearses."""
    failed = slices.rehearsed(plan.last, recorder)
    found = slices.rows(recorder)
    terminal.out(slices.table(found, failed, recorder))
    if wrong := slices.refusal(found, recorder):
        raise UserError(wrong)


def audit(options: argparse.Namespace, words: list[str]) -> None:
    """Tests what a deletion leaves, of a copy of a run or of a config on made-up users."""
    is_run = len(words) == 1 and Path(words[0]).is_dir()
    what = Path(words[0]) if is_run else flags.config(words, flags.RUN)[1]
    with auditing.memory_of(what) as memory:
        found = auditing.audit(memory, options.canaries)
    terminal.out(found.text())
    if found.after or found.shown_after:
        raise UserError("the deletion left something of the canaries")


def _show_examples(results: Sequence[Results]) -> None:
    """Questions in full, of the runs that ask for it."""
    wanted = [(result.path, count) for result in results if (count := read_config(result.path).eval.examples)]
    if wanted:
        terminal.out(examples([path for path, _ in wanted], max(count for _, count in wanted)))


def _out(options: argparse.Namespace) -> Path:
    if options.out is None:
        raise UserError("no output folder given; add --out DIR")
    return options.out


def check(options: argparse.Namespace, words: list[str]) -> None:
    """Tests whether the users' own history helps."""
    folder = words.pop(0) if words and not words[0].startswith("-") else None
    base = Config() if folder is None else Config(benchmark=Benchmark(name="own", root=folder))
    config = flags.parsed(words, base, "pbr-jax check FOLDER --out DIR")
    checking.check(config, _out(options), options.minutes, options.price)
    terminal.out((options.out / checking.PAGE).read_text(encoding="utf-8"))


# -- sweeps --------------------------------------------------------------------------------------------


def sweep(options: argparse.Namespace, words: list[str]) -> None:
    """Makes the runs of a config's sweep(): all, one, or a shard of them."""
    slurm_options, words = slurm.parameters(words)
    file, config = flags.config(words, flags.SWEEP)
    planned = trials(file, config)
    part = _part(options, len(planned))
    if options.stale_after is not None:
        raise UserError("--stale-after has no use: a process that ends frees its runs at once; leave it out")
    if options.launcher is None and (slurm_options or options.jobs):
        raise UserError("--slurm and --jobs are of jobs; add --launcher submitit, or --launcher local")
    for name in ("jobs", "max_parallel"):
        if (value := getattr(options, name)) is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} is {value}, want at least 1")
    if options.launcher is not None:
        _launch(options, words, slurm_options, file, config, planned)
    elif options.dry:
        for text in launcher.dry(planned, options.out, part):
            terminal.out(text)
        for trial in planned[part] if options.topology else ():
            terminal.out(f"\n{trial.words}")
            _compile(options.topology, shlex.split(command(file, trial, options.out or Path("out")))[2:])
    elif options.list:
        terminal.out("\n".join(command(file, trial, _out(options)) for trial in planned[part]))
    elif results := launcher.sweep(file, _out(options), config, options.max_parallel, part=part):
        terminal.out(report([result.path for result in results]))
        _show_examples(results)
    else:
        terminal.out(f"shard {options.shard} has none of the sweep's {len(planned)} runs")


def _launch(
    options: argparse.Namespace,
    words: list[str],
    slurm_options: Mapping[str, Any],
    file: ConfigFile,
    config: Config,
    planned: Sequence[Trial],
) -> None:
    """Submits the sweep as jobs: a shard each, or, where a job has several nodes, one run each."""
    if options.index is not None or options.shard is not None:
        raise UserError("--launcher submits the whole sweep; leave --index and --shard out, or set --jobs")
    out, several = _out(options).absolute(), slurm_options.get("nodes", 1) != 1
    count = len(planned) if options.jobs is None or several else min(options.jobs, len(planned))
    if options.dry:
        terminal.out(slurm.script(out, count, slurm_options))
        return
    earlier = launcher.own(out)
    if several:
        runs = [(trial.name, trial.overrides) for trial in planned]
        launcher.note(runs, out, earlier, identity(file, config))
        lines = [shlex.split(command(file, trial, out))[1:] for trial in planned]
        commands = [[*line, "--distributed"] for line in lines]
    else:
        shared = ["sweep", *words, "--out", str(out), "--max-parallel", str(options.max_parallel)]
        commands = [[*shared, "--shard", f"{place}/{count}"] for place in range(count)]
    terminal.err(slurm.submit(options.launcher, out, commands, slurm_options))
    terminal.out(report([out]) if options.launcher == "local" else f"pbr-jax report {shlex.quote(str(out))}")


def _part(options: argparse.Namespace, count: int) -> slice:
    """The runs that are wanted, of so many."""
    if options.index is not None and options.shard is not None:
        raise UserError("--index and --shard exclude each other; give one of them")
    if options.index is not None:
        if not 0 <= options.index < count:
            raise UserError(f"--index is {options.index}, want 0 to {count - 1}; --list shows the runs")
        return slice(options.index, options.index + 1)
    if options.shard is None:
        return launcher.ALL
    match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", options.shard)
    if match is None or int(match[1]) >= int(match[2]):
        raise UserError(
            f"--shard is {options.shard}, want I/N, the I-th of N shards, counted from 0: 0/4, 1/4, 2/4, 3/4"
        )
    return slice(int(match[1]), None, int(match[2]))

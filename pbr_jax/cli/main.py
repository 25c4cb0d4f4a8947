"""The command line: run, sweep, report, examples, ask, export, feedback, store and others (`--help`).

Whatever the user can mend, and whatever the environment does, ends with one line on stderr and exit code 2.
PBR_JAX_TRACEBACK=1 shows where it came from.
"""

import argparse
import os
import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from pbr_jax import __version__
from pbr_jax.base import interrupts, system_errors, terminal
from pbr_jax.base.files import replace_own
from pbr_jax.base.types import UserError
from pbr_jax.cli import check as check_command
from pbr_jax.cli import completion as completion_command
from pbr_jax.cli import data as data_commands
from pbr_jax.cli import export as export_command
from pbr_jax.cli import flags
from pbr_jax.cli import questions as question_commands
from pbr_jax.cli import remarks as remark_commands
from pbr_jax.cli import sweep as sweep_command
from pbr_jax.config import listed
from pbr_jax.distributed import processes
from pbr_jax.eval.report import report
from pbr_jax.experiment.cost import estimate, table
from pbr_jax.experiment.opening import read_config
from pbr_jax.experiment.plan import Plan
from pbr_jax.experiment.questions import examples
from pbr_jax.experiment.run import Results, follow, run
from pbr_jax.graph.lists import tree
from pbr_jax.llm import answers_file

# What our own files begin with, so that nobody else's is overwritten.
_REPORT = {
    "md": "<!-- pbr_jax report -->",
    "html": '<meta name="generator" content="pbr_jax report">',
    "latex": "% pbr_jax report",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    terminal.prepare()
    with interrupts.acknowledged():
        try:
            words = list(sys.argv[1:] if arguments is None else arguments)
            _refuse_undecodable(words)
            options, rest = _parser().parse_known_args(words)
            return options.function(options, rest)
        except BrokenPipeError:  # the reader of our output left, as `head` does
            return 0
        except KeyboardInterrupt:
            code = interrupts.told()
            processes.failed("interrupted", code)
            return code
        except Exception as error:
            return _failed(error)


def _failed(error: Exception) -> int:
    """Tells one line of what the user can mend or the environment did. Raises all else: an error of ours."""
    message = str(error) if isinstance(error, UserError) else system_errors.line(error)
    if message is None:
        processes.failed(f"{type(error).__name__}: {error}", 1, error)
        raise error
    if os.environ.get("PBR_JAX_TRACEBACK"):
        terminal.err("".join(traceback.format_exception(error)))
    terminal.err(f"pbr-jax: error: {' '.join(message.split())}")
    processes.failed(message, 2)
    return 2


def _refuse_undecodable(words: list[str]) -> None:
    """Raises UserError for bytes that Python took for no text: no file of ours could hold them."""
    for word in words:
        if re.search("[\ud800-\udfff]", word):
            raise UserError(
                f"argument {word!r} is not UTF-8; write it in UTF-8, rename a file that is called so"
            )


class _Parser(argparse.ArgumentParser):
    """argparse whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; {self.prog} --help lists what there is")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="pbr-jax", description="Personalized retrieval-augmented generation in JAX.")
    parser.add_argument("--version", action="version", version=f"pbr-jax {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    _add_running(commands)
    _add_reading(commands)
    _add_asking(commands)
    data_commands.add(commands.add_parser("data", help="check, import or generate data"))
    _add_cache_commands(
        commands.add_parser("cache", help="export and import cached answers of language models")
    )
    completion_command.add(commands, _parser)
    return parser


def _add_running(commands: Any) -> None:
    # It takes any field of the config, so its --help comes from the config (see `flags`).
    run = commands.add_parser("run", help="run one config", add_help=False, allow_abbrev=False)
    run.add_argument("--out", type=Path)
    run.add_argument("--overwrite", action="store_true")
    run.add_argument("--dry", action="store_true")
    run.add_argument("--distributed", action="store_true")
    run.add_argument("--coordinator")
    run.add_argument("--processes", type=int)
    run.add_argument("--process", type=int)
    run.add_argument("--cost", action="store_true")
    run.add_argument("--chip")
    run.add_argument("--utilisation")
    run.set_defaults(function=_run)

    sweep_command.add(commands, _show_examples)


def _add_reading(commands: Any) -> None:
    configs = commands.add_parser("configs", help="list the configs included in the package")
    configs.set_defaults(function=_configs)

    report = commands.add_parser("report", help="compare runs in one table")
    report.add_argument("runs", type=Path, nargs="+", metavar="DIR", help="a run, or a folder of runs")
    report.add_argument("--format", choices=("md", "html", "latex"), default="md")
    report.add_argument("--out", type=Path, help="output file; default: print the report")
    report.add_argument("--all", action="store_true", help="show all metrics, not only the main ones")
    report.add_argument(
        "--reference",
        metavar="SYSTEM",
        help="system that differences are relative to; default: zero_shot, otherwise the first",
    )
    report.add_argument(
        "--questions", type=int, default=60, metavar="N",
        help="number of single questions in HTML (60); 0: none, so the page shows no user's text",
    )  # fmt: skip
    report.add_argument(
        "--over", metavar="PART", help="part of the streams to report, such as second_half, new or seen"
    )
    report.set_defaults(function=_report)

    shown = commands.add_parser("examples", help="show questions of finished runs in full, with answers")
    shown.add_argument("runs", type=Path, nargs="+", metavar="DIR", help="a run, or a folder of runs")
    shown.add_argument("--count", type=int, default=3, help="number of questions to show, from the first (3)")
    shown.set_defaults(function=_examples)


def _add_asking(commands: Any) -> None:
    question_commands.add(commands)

    checked = commands.add_parser(
        "check",
        help="test whether the users' own history helps; one-page result",
        allow_abbrev=False,
        add_help=False,
    )
    checked.add_argument("--minutes", type=float, default=10.0)
    checked.add_argument("--out", type=Path)
    checked.set_defaults(function=check_command.check)

    remark_commands.add(commands)

    export_command.add(commands)


def _add_cache_commands(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "The cache stores language models' answers, but not the prompts. No prompt is run twice."
    )
    commands = parser.add_subparsers(required=True, metavar="ACTION")
    export = commands.add_parser("export", help="write all answers to a JSONL file")
    export.add_argument("file", type=Path, metavar="FILE")
    export.set_defaults(function=_export)

    merge = commands.add_parser(
        "import", help="add all answers of an exported file, or none if it is invalid"
    )
    merge.add_argument("file", type=Path, metavar="FILE")
    merge.set_defaults(function=_import)


def _run(options: argparse.Namespace, rest: list[str]) -> int:
    if (options.distributed or options.coordinator) and not options.dry:  # before anything else of JAX
        processes.start(options.coordinator, options.processes, options.process)
    _, config = flags.config(rest, flags.RUN)
    if not processes.leads():
        follow(config)
        processes.finished()
        return 0
    if options.chip or options.utilisation:
        raise UserError(
            "--chip and --utilisation were removed; --dry --cost counts FLOPs, so divide them by the FLOP/s "
            "that your chip reaches"
        )
    if options.dry:
        plan = Plan(config)
        plan.check()
        terminal.out(tree(plan.last))
        if options.cost:
            terminal.out(f"\n{table(estimate(plan))}")
        return 0
    if options.cost:
        raise UserError("--cost tells what a run would ask; add --dry")
    results = run(config, _required_out(options), overwrite=options.overwrite)
    processes.finished()
    terminal.out(report([results.path]))
    _show_examples([results])
    return 0


def _show_examples(results: Sequence[Results]) -> None:
    """Questions in full, of the runs that ask for it."""
    wanted = [(result.path, count) for result in results if (count := read_config(result.path).eval.examples)]
    if wanted:
        terminal.out(examples([path for path, _ in wanted], max(count for _, count in wanted)))


def _configs(options: argparse.Namespace, rest: list[str]) -> int:
    _nothing_left(rest)
    known = listed()
    width = max(map(len, known))
    terminal.out("\n".join(f"{name:{width}}  {line}" for name, line in known.items()))
    return 0


def _report(options: argparse.Namespace, rest: list[str]) -> int:
    _nothing_left(rest)
    text = report(
        options.runs,
        options.format,
        all_metrics=options.all,
        reference=options.reference,
        part=options.over,
        questions=options.questions,
    )
    if options.out is None:
        terminal.out(text)
    else:
        marker = _REPORT[options.format]
        place = text.index("<head>\n") + len("<head>\n") if options.format == "html" else 0
        replace_own(options.out, f"{text[:place]}{marker}\n{text[place:]}\n", marker)
        terminal.out(options.out)
    return 0


def _examples(options: argparse.Namespace, rest: list[str]) -> int:
    _nothing_left(rest)
    terminal.out(examples(options.runs, options.count))
    return 0


def _export(options: argparse.Namespace, rest: list[str]) -> int:
    _nothing_left(rest)
    count = answers_file.Answers(answers_file.location()).export(options.file)
    terminal.out(f"{count} answers in {options.file}")
    return 0


def _import(options: argparse.Namespace, rest: list[str]) -> int:
    _nothing_left(rest)
    merged = answers_file.Answers(answers_file.location()).merge(options.file)
    terminal.out(
        f"{merged.added} answers added, {merged.known} were there, {merged.conflicts} differed: ours kept"
    )
    return 0


def _required_out(options: argparse.Namespace) -> Path:
    if options.out is None:
        raise UserError("no output folder given; add --out DIR")
    return options.out


def _nothing_left(rest: list[str]) -> None:
    if rest:
        raise UserError(f"unknown argument {rest[0]!r}; --help lists what there is")


if __name__ == "__main__":
    sys.exit(main())

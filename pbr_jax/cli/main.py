"""The command line: run, sweep, report, examples, ask, export, feedback, store and others (`--help`).

Whatever the user can mend, and whatever the environment does, ends with one line on stderr and exit code 2.
PBR_JAX_TRACEBACK=1 shows where it came from. What a command computes with is imported once it is chosen.
"""

import argparse
import importlib
import os
import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from pbr_jax import __version__
from pbr_jax.base import interrupts, system_errors, terminal
from pbr_jax.base.types import UserError

_FORMATS = ("trec", "ranx", "csv", "parquet", "sentence-transformers", "adapter", "state")
_SHELLS = ("bash", "zsh", "tcsh")
_COLUMNS = {
    "user": "person who wrote or received the row; it becomes part of this user's history",
    "input": "question or request: what the user was asked, or asks",
    "output": "what the user wrote or received, or the correct answer",
    "time": "time of the row; without it, rows are in the order of the file",
    "id": "id of the row",
    "query": "search query; without it, the whole input",
    "history": "ids of the documents that a question may use; without it, all earlier ones",
    "relevant": "ids of the documents that contain the answer",
    "category": "category; results are also reported for each one",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    terminal.prepare()
    with interrupts.acknowledged():
        try:
            words = list(sys.argv[1:] if arguments is None else arguments)
            _refuse_undecodable(words)
            options, rest = parser().parse_known_args(words)
            if rest and not options.fields:
                raise UserError(f"unknown argument {rest[0]!r}; --help lists what there is")
            module, _, function = options.function.partition(".")
            with interrupts.deferred():
                family = importlib.import_module(f"pbr_jax.cli.{module}")
            getattr(family, function)(*([options, rest] if options.fields else [options]))
            return 0
        except BrokenPipeError:  # the reader of our output left, as `head` does
            return 0
        except KeyboardInterrupt:
            code = interrupts.told()
            _tell_processes("interrupted", code)
            return code
        except Exception as error:
            return _failed(error)


def _failed(error: Exception) -> int:
    """Tells one line of what the user can mend or the environment did. Raises all else: an error of ours."""
    message = str(error) if isinstance(error, UserError) else system_errors.line(error)
    if message is None:
        _tell_processes(f"{type(error).__name__}: {error}", 1, error)
        raise error
    if os.environ.get("PBR_JAX_TRACEBACK"):
        terminal.err("".join(traceback.format_exception(error)))
    terminal.err(f"pbr-jax: error: {' '.join(message.split())}")
    _tell_processes(message, 2)
    return 2


def _tell_processes(*failure: Any) -> None:
    """Tells the other processes of a distributed run that this one has failed."""
    if processes := sys.modules.get("pbr_jax.distributed.processes"):
        processes.failed(*failure)


def _refuse_undecodable(words: list[str]) -> None:
    """Raises UserError for bytes that Python took for no text: no file of ours could hold them."""
    for word in words:
        if re.search("[\ud800-\udfff]", word):
            raise UserError(
                f"argument {word!r} is not UTF-8; write it in UTF-8, rename a file that is called so"
            )


# -- the commands and their options -----------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """argparse whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; {self.prog} --help lists what there is")


def parser() -> argparse.ArgumentParser:
    """The parser of all commands. It gives the `function` that runs one, as `module.name` of this package,
    and whether this takes `fields` of the config, which are all words that the parser does not know."""
    whole = _Parser(prog="pbr-jax", description="Personalized retrieval-augmented generation in JAX.")
    whole.add_argument("--version", action="version", version=f"pbr-jax {__version__}")
    whole.set_defaults(fields=False)
    commands = whole.add_subparsers(required=True, metavar="COMMAND")
    _add_running(commands)
    _add_reading(commands)
    _add_asking(commands)
    _add_data(commands.add_parser("data", help="check, import or generate data"))
    about = "The cache stores language models' answers, but not the prompts. No prompt is run twice."
    cache = commands.add_parser(
        "cache", help="export and import cached answers of language models", description=about
    ).add_subparsers(required=True, metavar="ACTION")
    for name, help in (
        ("export", "write all answers to a JSONL file"),
        ("import", "add all answers of an exported file, or none if it is invalid"),
    ):
        _add(cache, name, help, f"data.{name}_answers").add_argument("file", type=Path, metavar="FILE")
    about = "print a completion script for a shell"
    shell = _add(commands, "completion", about, "completion.completion")
    shell.add_argument("shell", choices=_SHELLS)
    return whole


def _add(commands: Any, name: str, help: str, function: str, *, fields: bool = False) -> _Parser:
    """Adds a command. Help on one that takes fields comes from the config (see `flags`)."""
    command = commands.add_parser(name, help=help, allow_abbrev=False, add_help=not fields)
    command.set_defaults(function=function, fields=fields)
    return command


def _add_running(commands: Any) -> None:
    run = _add(commands, "run", "run one config", "running.run", fields=True)
    run.add_argument("--out", type=Path)
    for switch in ("overwrite", "dry", "distributed", "cost"):
        run.add_argument(f"--{switch}", action="store_true")
    run.add_argument("--coordinator")
    run.add_argument("--processes", type=int)
    run.add_argument("--process", type=int)
    run.add_argument("--chip")
    run.add_argument("--utilisation")

    sweep = _add(commands, "sweep", "run a config's sweep()", "running.sweep", fields=True)
    sweep.add_argument("--out", type=Path)
    sweep.add_argument("--list", action="store_true")
    sweep.add_argument("--dry", action="store_true")
    sweep.add_argument("--index", type=int)
    sweep.add_argument("--shard")
    sweep.add_argument("--launcher", choices=("submitit", "local"))
    sweep.add_argument("--jobs", type=int)
    sweep.add_argument("--max-parallel", type=int, default=1)
    sweep.add_argument("--stale-after")

    about = "test whether the users' own history helps; one-page result"
    check = _add(commands, "check", about, "running.check", fields=True)
    check.add_argument("--minutes", type=float, default=10.0)
    check.add_argument("--out", type=Path)


def _add_reading(commands: Any) -> None:
    _add(commands, "configs", "list the configs included in the package", "reading.configs")

    report = _add(commands, "report", "compare runs in one table", "reading.report")
    report.add_argument("runs", type=Path, nargs="+", metavar="DIR", help="a run, or a folder of runs")
    report.add_argument("--format", choices=("md", "html", "latex"), default="md")
    report.add_argument("--out", type=Path, help="output file; default: print the report")
    report.add_argument("--all", action="store_true", help="show all metrics, not only the main ones")
    about = "system that differences are relative to; default: zero_shot, otherwise the first"
    report.add_argument("--reference", metavar="SYSTEM", help=about)
    about = "number of single questions in HTML (60); 0: none, so the page shows no user's text"
    report.add_argument("--questions", type=int, default=60, metavar="N", help=about)
    about = "part of the streams to report, such as second_half, new or seen"
    report.add_argument("--over", metavar="PART", help=about)

    examples = _add(
        commands, "examples", "show questions of finished runs in full, with answers", "reading.examples"
    )
    examples.add_argument("runs", type=Path, nargs="+", metavar="DIR", help="a run, or a folder of runs")
    about = "number of questions to show, from the first (3)"
    examples.add_argument("--count", type=int, default=3, help=about)

    about = "show documents, scores, answers and metrics of single questions"
    show = _add(commands, "show", about, "reading.show")
    show.add_argument("runs", type=Path, nargs="+", metavar="DIR", help="a run, or a folder of runs")
    which = show.add_mutually_exclusive_group(required=True)
    which.add_argument("--question", metavar="ID")
    which.add_argument("--user", metavar="ID", help="show the first questions of this user")
    about = "maximum number of questions of the user (3)"
    show.add_argument("--limit", type=int, default=3, metavar="N", help=about)
    about = "number of documents of each run (5)"
    show.add_argument("--documents", type=int, default=5, metavar="N", help=about)
    show.add_argument("--prompt", action="store_true", help="also show the prompt that the model received")
    show.add_argument("--json", action="store_true", help="print one JSON object, with all documents")

    about = "plot a question of a finished run and the user's documents"
    picture = _add(commands, "picture", about, "reading.picture")
    picture.add_argument("--run", type=Path, required=True, metavar="DIR")
    picture.add_argument("--question", required=True, metavar="ID")
    picture.add_argument("--out", type=Path, required=True, metavar="FILE.svg")

    export = _add(commands, "export", "export a finished run in a format of other programs", "reading.export")
    export.add_argument("run", type=Path, metavar="DIR", help="a finished run")
    about = (
        "rankings (trec, ranx), tables of predictions and rankings (csv, parquet), the tuned encoder "
        "(sentence-transformers), the tuned generator's LoRA adapter (adapter), the state of a method that "
        "learned from the run's stream (state)"
    )
    export.add_argument("--format", choices=_FORMATS, required=True, help=about)
    about = "output folder, which must not exist yet"
    export.add_argument("--out", type=Path, required=True, metavar="FOLDER", help=about)
    export.add_argument("--slot", help="for state: slot of the method, such as retrieve")
    about = "for state: the state after the first N blocks"
    export.add_argument("--blocks", type=int, metavar="N", help=about)


def _add_asking(commands: Any) -> None:
    ask = _add(commands, "ask", "answer one question of one user with a finished run", "asking.ask")
    ask.add_argument("--run", type=Path, required=True, metavar="DIR")
    ask.add_argument("--user", required=True)
    about = "print one JSON object: answer, documents, tokens, seconds"
    ask.add_argument("--json", action="store_true", help=about)
    ask.add_argument("query")

    about = "submit a user's remark, which is judged and can change what is retrieved"
    feedback = _add(commands, "feedback", about, "asking.feedback")
    feedback.add_argument("--run", type=Path, required=True, metavar="DIR")
    feedback.add_argument("--user", required=True)
    about = "id of the request; a remark repeated with the same id counts once"
    feedback.add_argument("--request", metavar="ID", help=about)
    about = "JSON file of rules that judge instead of the model"
    feedback.add_argument("--judge", type=Path, metavar="FILE", help=about)
    feedback.add_argument("--dry", action="store_true", help="show what would change, without saving it")
    feedback.add_argument("remark")

    store = commands.add_parser("store", help="list or erase the changes made by remarks")
    actions = store.add_subparsers(required=True, metavar="{log,erase}")
    about = "list the changes, and the claims that need more users"
    log = _add(actions, "log", about, "asking.store_log")
    log.add_argument("--run", type=Path, required=True, metavar="DIR")
    about = "erase a remark with its document, or everything from a user"
    erase = _add(actions, "erase", about, "asking.store_erase")
    erase.add_argument("--run", type=Path, required=True, metavar="DIR")
    what = erase.add_mutually_exclusive_group(required=True)
    what.add_argument("--document", metavar="ID")
    what.add_argument("--user")
    for name in ("rollback", "approve", "verify"):
        removed = actions.add_parser(name, add_help=False)
        removed.set_defaults(function="asking.store_removed", action=name, fields=True)


def _add_data(data: argparse.ArgumentParser) -> None:
    commands = data.add_subparsers(required=True, metavar="ACTION")
    validate = _add(commands, "validate", "check every record of a benchmark", "data.validate")
    prepare = _add(commands, "prepare", "write a benchmark as array_record", "data.prepare")
    for command in (validate, prepare):
        command.add_argument("--benchmark.name", dest="name", required=True)
        command.add_argument("--benchmark.root", dest="root", required=True)
    for field in ("form", "passages", "distractors"):
        validate.add_argument(f"--benchmark.{field}", dest=field)
    prepare.add_argument("--out", type=Path, required=True)

    about = "write an example table, with the commands that use it"
    init = _add(commands, "init", about, "data.init")
    init.add_argument("folder", type=Path, nargs="?", default=Path("example"), metavar="FOLDER")

    table = _add(commands, "import", "make a benchmark from your own table", "data.import_")
    table.add_argument("table", type=Path, help="CSV, TSV, JSON, JSONL, Parquet or mbox file, or a folder")
    for name, about in _COLUMNS.items():
        table.add_argument(f"--{name}", default="", metavar="COLUMN", help=about)
    about = "columns of a row that later prompts show"
    table.add_argument("--document", nargs="+", default=[], metavar="COLUMN", help=about)
    about = "table of documents; without it, the rows are the documents"
    table.add_argument("--documents", type=Path, metavar="FILE", help=about)
    table.add_argument("--instruction", default="", help="instruction to the model, in one sentence")
    about = "role of the user: wrote the answers (author), or received them"
    table.add_argument("--user-is", choices=("author", "recipient"), help=about)
    about = "task of a benchmark, or a TOML file"
    table.add_argument("--task", default="", metavar="NAME|FILE", help=about)
    table.add_argument("--out", type=Path, required=True, metavar="FOLDER")

    recipe = _add(commands, "recipe", "get the data used in the documentation", "data.recipe")
    recipe.add_argument("name", nargs="?", metavar="NAME", help="recipe; without it, all are listed")
    recipe.add_argument("--out", type=Path, metavar="FOLDER", help="folder for the benchmark")
    about = "folder of files downloaded manually"
    recipe.add_argument("--from", dest="given", type=Path, metavar="FOLDER", help=about)
    about = "compare a folder with the data used there"
    recipe.add_argument("--check", type=Path, metavar="FOLDER", help=about)

    about = "write the synthetic benchmark in LaMP's format"
    synthetic = _add(commands, "synthetic", about, "data.write_synthetic")
    synthetic.add_argument("--out", type=Path, required=True)
    synthetic.add_argument("--seed", type=int, default=0)
    synthetic.add_argument("--users", type=int, default=60)


if __name__ == "__main__":
    sys.exit(main())

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
from pbr_jax.base import files, interrupts, system_errors, terminal
from pbr_jax.base.types import UserError


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
            if options.function == "running.check" and {"-h", "--help"} & set(rest):
                terminal.out(_CHECK)
                return 0
            module, _, function = options.function.partition(".")
            if os.environ.get("PBR_JAX_REHEARSES"):  # before what it replaces is imported
                from pbr_jax.experiment import stand_in

                stand_in.install(options.topology)
            with interrupts.deferred():
                family = importlib.import_module(f"pbr_jax.cli.{module}")
            getattr(family, function)(*([options, rest] if options.fields else [options]))
            return 0
        except BrokenPipeError:  # the reader of our output left, as `head` does
            return 0
        except KeyboardInterrupt:
            code = interrupts.told()
            _end_processes(code)
            return code
        except Exception as error:
            return _failed(error)


def _failed(error: Exception) -> int:
    """Tells one line of what the user can mend or the environment did. Raises all else: an error of ours."""
    message = str(error) if isinstance(error, UserError) else system_errors.line(error)
    if message is None:
        _end_processes(1, error)
        raise error
    if os.environ.get("PBR_JAX_TRACEBACK"):
        terminal.err("".join(traceback.format_exception(error)))
    terminal.err(f"pbr-jax: error: {' '.join(message.split())}")
    _end_processes(2)
    return 2


def _end_processes(*failure: Any) -> None:
    """Ends this process where it is one of several, and so all of them."""
    if processes := sys.modules.get("pbr_jax.base.processes"):
        processes.failed(*failure)


def _refuse_undecodable(words: list[str]) -> None:
    """Raises UserError for bytes that Python took for no text: no file of ours could hold them."""
    for word in words:
        if re.search("[\ud800-\udfff]", word):
            raise UserError(
                f"argument {word!r} is not UTF-8; write it in UTF-8, rename a file that is called so"
            )


def configs(options: argparse.Namespace) -> None:
    """Lists the packaged configs. Here, since it needs none of the modules that compute."""
    lines = files.packaged_configs()
    width = max(map(len, lines))
    terminal.out("\n".join(f"{name:{width}}  {line}" for name, line in lines.items()))


# -- the commands and their options -----------------------------------------------------------------------

# A command's line has its name, the function of this package that runs it, and its help; `*`: all words that
# the parser does not know are fields of the config. A line below has an option, METAVAR:type, and its help,
# or several options without help, with a semicolon between them. The type pair is two numbers. After a type:
# =DEFAULT, ! required, + one or more, ? none or one, ^ one of these is required.
_COMMANDS = """
run  running.run*  run one config
  --out path; --overwrite switch; --dry switch; --distributed switch; --cost switch; --coordinator text
  --processes int; --process int; --chip text; --utilisation text; --topology text
sweep  running.sweep*  run a config's sweep()
  --out path; --list switch; --dry switch; --index int; --shard text; --launcher submitit|local; --jobs int
  --topology text
  --max-parallel int=1; --stale-after text
check  running.check*  test whether the users' own history helps; one-page result
  --minutes float=10; --out path
  --price IN,OUT:pair  prices of a million prompt tokens and of a million generated ones
configs  main.configs  list the configs included in the package
report  reading.report  compare runs in one table
  runs DIR:path+  a run, or a folder of runs
  --format md|html|latex|csv=md
  --out path  output file; default: print the report
  --all switch  show all metrics, not only the main ones
  --rows SYSTEM:text+  systems to show; default: all
  --reference SYSTEM:text  system that differences are relative to; default: zero_shot, otherwise the first
  --questions N:int=60  number of single questions in HTML (60); 0: none, so the page shows no user's text
  --over PART:text  part of the streams to report, such as second_half, new or seen
examples  reading.examples  show questions of finished runs in full, with answers
  runs DIR:path+  a run, or a folder of runs
  --count int=3  number of questions to show, from the first (3)
show  reading.show  show documents, scores, answers and metrics of single questions
  runs DIR:path+  a run, or a folder of runs
  --question ID:text^
  --user ID:text^  show the first questions of this user
  --limit N:int=3  maximum number of questions of the user (3)
  --documents N:int=5  number of documents of each run (5)
  --prompt switch  also show the prompt that the model received
  --json switch  print one JSON object, with all documents
picture  reading.picture  plot a question of a finished run and the user's documents
  --run DIR:path!; --question ID:text!; --out FILE.svg:path!
export  reading.export  export a finished run in a format of other programs
  run DIR:path  a finished run
  --format trec|ranx|csv|parquet|sentence-transformers|adapter|state!  rankings (trec, ranx), tables of
      predictions and rankings (csv, parquet), the tuned encoder (sentence-transformers), the tuned
      generator's LoRA adapter (adapter), the state of a method that learned from the run's stream (state)
  --out FOLDER:path!  output folder, which must not exist yet
  --slot text  for state: slot of the method, such as retrieve
  --blocks N:int  for state: the state after the first N blocks
ask  asking.ask  answer one question of one user with a finished run
  --run DIR:path!; --user text!
  --json switch  print one JSON object: answer, documents, tokens, seconds
  query text
feedback  asking.feedback  submit a user's remark, which is judged and can change what is retrieved
  --run DIR:path!; --user text!
  --request ID:text  id of the request; a remark repeated with the same id counts once
  --judge FILE:path  JSON file of rules that judge instead of the model
  --dry switch  show what would change, without saving it
  remark text
store  {log,erase}  list or erase the changes made by remarks
store.log  asking.store_log  list the changes, and the claims that need more users
  --run DIR:path!
store.erase  asking.store_erase  erase a remark with its document, or everything from a user
  --run DIR:path!; --document ID:text^; --user text^
store.rollback  asking.store_removed*
store.approve  asking.store_removed*
store.verify  asking.store_removed*
serve  serving.serve*  serve a run or a config over HTTP: OpenAI's protocol, documents, a page
  what RUN|CONFIG:text
  --host text=127.0.0.1; --port int=8000; --keys FILE:path; --queue int=64; --seconds float=120
  --body int=1048576
mcp  serving.mcp*  give an agent the tools remember, search and forget of one user (MCP, stdin and stdout)
  what RUN|CONFIG:text
  --user text!
keys  ACTION  make, list and delete the keys of callers of serve
keys.add  serving.keys  make a key and print it, the only time that it is shown
  --file FILE:path!; --user text
  --trusted switch  for a program that names the user of each request itself
keys.list  serving.keys  list whose keys there are
  --file FILE:path!
keys.rm  serving.keys  delete all keys of a user, or of trusted programs
  --file FILE:path!; --user text; --trusted switch
forget  asking.forget  delete a user, or documents, from the cache and all runs; print a receipt
  --user text
  --document ID:text+  only these documents of the user
  --before DATE:text  only documents dated before; without --user those of all users
  --run DIR:path+  runs that this cache does not know of, such as copies
  --retrain switch  make the runs that knew the user anew, without the user
  --dry switch  list what would be deleted
  --out FILE:path  write the receipt to a file
audit  running.audit*  add canaries to a run, or to a run of a config on made-up users, delete and search them
  --canaries N:int=20  number of canaries (20)
data  ACTION  check, import or generate data
data.validate  data.validate  check every record of a benchmark
  --benchmark.name text!; --benchmark.root text!; --benchmark.form text; --benchmark.passages text
  --benchmark.distractors text
data.prepare  data.prepare  write a benchmark as array_record
  --benchmark.name text!; --benchmark.root text!; --out path!
data.init  data.init  write an example table, with the commands that use it
  folder FOLDER:path=example?
data.import  data.import_  make a benchmark from your own table
  table path  CSV, TSV, JSON, JSONL, Parquet or mbox file, or a folder
  --user COLUMN:text=  person who wrote or received the row; it becomes part of this user's history
  --input COLUMN:text=  question or request: what the user was asked, or asks
  --output COLUMN:text=  what the user wrote or received, or the correct answer
  --time COLUMN:text=  time of the row; without it, rows are in the order of the file
  --id COLUMN:text=  id of the row
  --query COLUMN:text=  search query; without it, the whole input
  --history COLUMN:text=  ids of the documents that a question may use; without it, all earlier ones
  --relevant COLUMN:text=  ids of the documents that contain the answer
  --category COLUMN:text=  category; results are also reported for each one
  --document COLUMN:text+  columns of a row that later prompts show
  --documents FILE:path  table of documents; without it, the rows are the documents
  --instruction text=  instruction to the model, in one sentence
  --user-is author|recipient  role of the user: wrote the answers (author), or received them
  --task NAME|FILE:text=  task of a benchmark, or a TOML file
  --encoding NAME:text=  encoding of CSV and TSV, such as cp1252; without it, UTF-8
  --date-format FORMAT:text=  form of the dates, such as %%d/%%m/%%Y; without it, any unambiguous form
  --same-id refuse|first|last=refuse  of rows with one id keep the first or the last
  --skip-bad switch  leave out rows that have a fault, and count them
  --out FOLDER:path!
data.recipe  data.recipe  get the data used in the documentation
  name NAME:text?  recipe; without it, all are listed
  --out FOLDER:path  folder for the benchmark
  --from FOLDER:path  folder of files downloaded manually
  --check FOLDER:path  compare a folder with the data used there
data.synthetic  data.write_synthetic  write the synthetic benchmark in LaMP's format
  --out path!; --seed int=0; --users int=60
cache  ACTION  export, import and erase cached answers of language models; free disk
cache.export  data.export_answers  write all answers to a JSONL file
  file FILE:path
cache.import  data.import_answers  add all answers of an exported file, or none if it is invalid
  file FILE:path
cache.rm  data.remove_answers  erase the answers of one model
  --llm MODEL:text!  its name in llm.model
cache.gc  data.collect  delete results that no known run is made of, and what killed processes left
  --keep DAYS:float=7  keep what was made or read in the last days (7)
  --run DIR:path+  runs that this cache does not know of, such as moved ones
  --dry switch  list what would be deleted
completion  completion.completion  print a completion script for a shell
  shell bash|zsh|tcsh
"""
_CHECK = """\
usage: pbr-jax check FOLDER --out DIR [--minutes 10] [--price IN OUT] [--any.config.field VALUE ...]

Tests whether showing users' own history to the language model helps, for which users, and by how much. It
compares a few systems on a sample of questions, which grows until the time is up. The result is a verdict in
words, with confidence intervals.

  FOLDER          your own data (pbr-jax data import); otherwise give --benchmark.name and --benchmark.root
  --out DIR       output folder for the runs, verdict.md, verdict.json and report.html
  --minutes M     target for the wall-clock time (10), in minutes. It can be exceeded, because the first round
                  of 25 questions is always finished
  --price IN OUT  prices of a million prompt tokens and of a million generated ones, for the table of costs"""
_KIND = re.compile(r"(?:(?P<metavar>\S+):)?(?P<type>[^=!+?^]+)(?:=(?P<default>[^?]*))?(?P<mark>[!+?^]?)")
_TYPES = {"path": Path, "int": int, "float": float, "text": str}


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
    groups: dict[str, Any] = {"": whole.add_subparsers(required=True, metavar="COMMAND")}
    for block in re.split(r"\n(?! )", _COMMANDS.strip().replace("\n      ", " ")):
        line, *options = re.split(r"\n  |; (?=--)", block)
        path, function, *about = line.split("  ", 2)
        group, _, name = path.rpartition(".")
        help = {"help": about[0]} if about else {}
        if "." not in function:
            command = groups[group].add_parser(name, **help)
            groups[name] = command.add_subparsers(required=True, metavar=function)
            continue
        fields = function.endswith("*")
        # The help of commands that take all fields comes from the config (see `flags`).
        helps = not fields or any(not one.startswith("--") for one in options)
        command = groups[group].add_parser(name, **help, allow_abbrev=False, add_help=helps)
        command.set_defaults(function=function.rstrip("*"), fields=fields, action=name)
        _add_options(command, options)
    return whole


def _add_options(command: argparse.ArgumentParser, lines: Sequence[str]) -> None:
    """Adds the options of a command's lines in the table."""
    exclusive = None
    for line in lines:
        declared, _, about = line.partition("  ")
        name, _, kind = declared.partition(" ")
        match = _KIND.fullmatch(kind)
        assert match is not None, line
        values: dict[str, Any] = {"help": about or None}
        if name.startswith("--"):
            values["dest"] = name.lstrip("-").rpartition(".")[2].replace("-", "_")
        if match["type"] == "switch":
            command.add_argument(name, action="store_true", **values)
            continue
        values |= {"metavar": match["metavar"], "default": match["default"]}
        if match["type"] == "pair":
            values |= {"metavar": tuple(match["metavar"].split(",")), "nargs": 2, "type": float}
        values |= {"type": _TYPES[match["type"]]} if match["type"] in _TYPES else {}
        values |= {"choices": match["type"].split("|")} if "|" in match["type"] else {}
        values |= {"!": {"required": True}, "+": {"nargs": "+"}, "?": {"nargs": "?"}}.get(match["mark"], {})
        if match["mark"] == "^":
            exclusive = exclusive or command.add_mutually_exclusive_group(required=True)
            exclusive.add_argument(name, **values)
        else:
            command.add_argument(name, **values)


if __name__ == "__main__":
    sys.exit(main())

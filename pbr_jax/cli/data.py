"""The commands on data: validate, prepare, synthetic, and init and import for tables of one's own."""

import argparse
import dataclasses
from pathlib import Path
from typing import Any, get_args

from pbr_jax import data
from pbr_jax.base import terminal
from pbr_jax.base.types import UserError
from pbr_jax.config import Benchmark
from pbr_jax.data import prepared, recipes, synthetic
from pbr_jax.importing import example
from pbr_jax.importing.columns import Columns
from pbr_jax.importing.task_file import UserIs
from pbr_jax.importing.writing import import_table


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the actions to the parser of `data`."""
    commands = parser.add_subparsers(required=True, metavar="ACTION")
    validate = commands.add_parser("validate", help="check every record of a benchmark", allow_abbrev=False)
    validate.add_argument("--benchmark.name", dest="name", required=True)
    validate.add_argument("--benchmark.root", dest="root", required=True)
    validate.add_argument("--benchmark.form", dest="form", default=Benchmark.form)
    validate.add_argument("--benchmark.passages", dest="passages", default="")
    validate.add_argument("--benchmark.distractors", dest="distractors", default="")
    validate.set_defaults(function=_validate)

    prepare = commands.add_parser("prepare", help="write a benchmark as array_record", allow_abbrev=False)
    prepare.add_argument("--benchmark.name", dest="name", required=True)
    prepare.add_argument("--benchmark.root", dest="root", required=True)
    prepare.add_argument("--out", type=Path, required=True)
    prepare.set_defaults(function=_prepare)

    init = commands.add_parser("init", help="write an example table, with the commands that use it")
    init.add_argument("folder", type=Path, nargs="?", default=Path("example"), metavar="FOLDER")
    init.set_defaults(function=_init)
    _add_import(commands)

    _add_recipe(commands)

    synthetic = commands.add_parser("synthetic", help="write the synthetic benchmark in LaMP's format")
    synthetic.add_argument("--out", type=Path, required=True)
    synthetic.add_argument("--seed", type=int, default=0)
    synthetic.add_argument("--users", type=int, default=60)
    synthetic.set_defaults(function=_synthetic)


def _add_recipe(commands: Any) -> None:
    made = commands.add_parser("recipe", help="get the data used in the documentation", allow_abbrev=False)
    made.add_argument("name", nargs="?", metavar="NAME", help="recipe; without it, all are listed")
    made.add_argument("--out", type=Path, metavar="FOLDER", help="folder for the benchmark")
    made.add_argument(
        "--from", dest="given", type=Path, metavar="FOLDER", help="folder of files downloaded manually"
    )
    made.add_argument(
        "--check", type=Path, metavar="FOLDER", help="compare a folder with the data used there"
    )
    made.set_defaults(function=_recipe)


def _add_import(commands: Any) -> None:
    made = commands.add_parser("import", help="make a benchmark from your own table", allow_abbrev=False)
    made.add_argument("table", type=Path, help="CSV, TSV, JSON, JSONL, Parquet or mbox file, or a folder")
    for name, text in (
        ("user", "person who wrote or received the row; it becomes part of this user's history"),
        ("input", "question or request: what the user was asked, or asks"),
        ("output", "what the user wrote or received, or the correct answer"),
        ("time", "time of the row; without it, rows are in the order of the file"),
        ("id", "id of the row"),
        ("query", "search query; without it, the whole input"),
        ("history", "ids of the documents that a question may use; without it, all earlier ones"),
        ("relevant", "ids of the documents that contain the answer"),
        ("category", "category; results are also reported for each one"),
    ):
        made.add_argument(f"--{name}", default="", metavar="COLUMN", help=text)
    made.add_argument(
        "--document", nargs="+", default=[], metavar="COLUMN", help="columns of a row that later prompts show"
    )
    made.add_argument(
        "--documents",
        type=Path,
        metavar="FILE",
        help="table of documents; without it, the rows are the documents",
    )
    made.add_argument("--instruction", default="", help="instruction to the model, in one sentence")
    made.add_argument(
        "--user-is",
        choices=get_args(UserIs),
        help="role of the user: wrote the answers (author), or received them",
    )
    made.add_argument("--task", default="", metavar="NAME|FILE", help="task of a benchmark, or a TOML file")
    made.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    made.set_defaults(function=_import)


def _recipe(options: argparse.Namespace, rest: list[str]) -> int:
    _nothing_left(rest)
    if options.name is None:
        width = max(map(len, recipes.recipes()))
        for name, recipe in recipes.recipes().items():
            terminal.out(f"{name:{width}}  {recipe.what} ({recipe.licence})")
    elif options.given is not None and options.out is None:
        raise UserError("--from needs --out FOLDER, where the benchmark goes")
    elif options.check is not None:
        terminal.out("\n".join(recipes.check(options.name, options.check)))
    elif options.out is not None:
        said = recipes.make(options.name, options.out, options.given)
        benchmark = recipes.named(options.name).benchmark
        fields = f"--benchmark.name {benchmark} --benchmark.root {options.out}"
        terminal.out("\n".join([*said, f"use it with {fields}"]))
    else:
        terminal.out(recipes.described(options.name))
    return 0


def _validate(options: argparse.Namespace, rest: list[str]) -> int:
    _nothing_left(rest)
    fields = {name: getattr(options, name) for name in ("name", "root", "form", "passages", "distractors")}
    for split in data.validate(Benchmark(**fields)):
        terminal.out(str(split))
        for repair in split.repairs:
            terminal.out(f"  repaired: {repair}")
    return 0


def _prepare(options: argparse.Namespace, rest: list[str]) -> int:
    _nothing_left(rest)
    terminal.out(prepared.prepare(Benchmark(name=options.name, root=options.root), options.out))
    return 0


def _synthetic(options: argparse.Namespace, rest: list[str]) -> int:
    _nothing_left(rest)
    synthetic.generate(options.out, seed=options.seed, users=options.users)
    terminal.out(options.out)
    return 0


def _init(options: argparse.Namespace, rest: list[str]) -> int:
    _nothing_left(rest)
    example.write(options.folder)
    place = options.folder
    terminal.out(
        f"{place / example.TABLE}: made-up support tickets, 8 customers with 12 each\n"
        f"{place / 'task.toml'}: what is asked, with comments\n"
        f"{place / 'commands.sh'}: import, validate, check and run, with comments\n"
        f"try it: cd {place} && sh commands.sh"
    )
    return 0


def _import(options: argparse.Namespace, rest: list[str]) -> int:
    _nothing_left(rest)
    names = {item.name for item in dataclasses.fields(Columns)}
    given = {name: value for name, value in vars(options).items() if name in names}
    columns = Columns(**{**given, "document": tuple(options.document)})
    made = import_table(
        options.table,
        options.out,
        columns,
        options.instruction,
        documents=options.documents,
        task=options.task,
        user_is=options.user_is,
    )
    terminal.out(made.text())
    return 0


def _nothing_left(rest: list[str]) -> None:
    if rest:
        raise UserError(f"unknown argument {rest[0]!r}; --help lists what there is")

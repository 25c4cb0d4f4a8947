"""The commands on data (validate, prepare, synthetic, recipe, init, import) and on the cache."""

import argparse
import dataclasses

from pbr_jax import data
from pbr_jax.base import terminal
from pbr_jax.base.types import UserError
from pbr_jax.config import Benchmark, Encoder
from pbr_jax.data import own, prepared, recipes, synthetic
from pbr_jax.experiment import unused
from pbr_jax.importing import example
from pbr_jax.importing.columns import Columns
from pbr_jax.importing.tables import Reading
from pbr_jax.importing.writing import import_table
from pbr_jax.llm import answers_file
from pbr_jax.models import sentence_folder
from pbr_jax.models.pretrained import locate
from pbr_jax.text.lengths import CUT, count_cut, cut_notes
from pbr_jax.text.tokenizing import load_tokenizer


def validate(options: argparse.Namespace) -> None:
    """Checks every record of a benchmark, and counts them."""
    fields = {name: getattr(options, name) for name in ("name", "root", "form", "passages", "distractors")}
    benchmark = Benchmark(**{name: v for name, v in fields.items() if v is not None})
    encoder = Encoder()
    folder = locate(encoder.model)
    tokenizer = load_tokenizer(folder, max_length=encoder.max_length or sentence_folder.max_length(folder))
    cut: dict[int, int] = {}  # by the hash of each text

    def read(text: str) -> None:
        if (name := hash(text)) not in cut:
            cut[name] = count_cut(tokenizer, [(text,)])

    for split in data.validate(benchmark, read):
        terminal.out(str(split))
        for repair in split.repairs:
            terminal.out(f"  repaired: {repair}")
    for line in own.left_out(benchmark):
        terminal.out(f"left out: {line}")
    counts = zip(CUT, (sum(cut.values()), len(cut), tokenizer.max_length or 0))
    for note in cut_notes(dict(counts)):
        terminal.out(f"note: with the default encoder {note}")


def prepare(options: argparse.Namespace) -> None:
    """Writes a benchmark as array_record."""
    terminal.out(prepared.prepare(Benchmark(name=options.name, root=options.root), options.out))


def write_synthetic(options: argparse.Namespace) -> None:
    """Writes the synthetic benchmark."""
    synthetic.generate(options.out, seed=options.seed, users=options.users)
    terminal.out(options.out)


def recipe(options: argparse.Namespace) -> None:
    """Lists or describes recipes, makes a benchmark from one, or compares a folder with one."""
    given = getattr(options, "from")
    if options.name is None:
        width = max(map(len, recipes.recipes()))
        for name, listed in recipes.recipes().items():
            terminal.out(f"{name:{width}}  {listed.what} ({listed.licence})")
    elif given is not None and options.out is None:
        raise UserError("--from needs --out FOLDER, where the benchmark goes")
    elif options.check is not None:
        terminal.out("\n".join(recipes.check(options.name, options.check)))
    elif options.out is not None:
        lines = recipes.make(options.name, options.out, given)
        benchmark = recipes.named(options.name).benchmark
        fields = f"--benchmark.name {benchmark} --benchmark.root {options.out}"
        terminal.out("\n".join([*lines, f"use it with {fields}"]))
    else:
        terminal.out(recipes.described(options.name))


def init(options: argparse.Namespace) -> None:
    """Writes an example table."""
    example.write(options.folder)
    place = options.folder
    terminal.out(
        f"{place / example.TABLE}: made-up support tickets, 8 customers with 12 each\n"
        f"{place / 'task.toml'}: what is asked, with comments\n"
        f"{place / 'commands.sh'}: import, validate, check and run, with comments\n"
        f"try it: cd {place} && sh commands.sh"
    )


def import_(options: argparse.Namespace) -> None:
    """Makes a benchmark from a table."""
    columns = {item.name: getattr(options, item.name) for item in dataclasses.fields(Columns)}
    made = import_table(
        options.table,
        options.out,
        Columns(**{**columns, "document": tuple(options.document or ())}),
        options.instruction,
        documents=options.documents,
        task=options.task,
        user_is=options.user_is,
        reading=Reading(
            encoding=options.encoding,
            date_format=options.date_format,
            skip_bad=options.skip_bad,
            same_id=options.same_id,
        ),
    )
    terminal.out(made.text())


def export_answers(options: argparse.Namespace) -> None:
    """Writes the cached answers to a file."""
    count = answers_file.Answers(answers_file.location()).export(options.file)
    terminal.out(f"{count} answers in {options.file}")


def import_answers(options: argparse.Namespace) -> None:
    """Adds the answers of a file to the cache."""
    merged = answers_file.Answers(answers_file.location()).merge(options.file)
    terminal.out(
        f"{merged.added} answers added, {merged.known} were there, {merged.conflicts} differed: ours kept"
    )


def remove_answers(options: argparse.Namespace) -> None:
    """Erases the cached answers of a model."""
    count = answers_file.Answers(answers_file.location()).erase_model(options.llm)
    terminal.out(
        f"{count} answers of {options.llm} erased; finished stages keep what they made of them: a run with "
        "--llm.ask_again 1 (or a higher number) makes them anew"
    )


def collect(options: argparse.Namespace) -> None:
    """Deletes stages that no known run is made of."""
    terminal.out(unused.collect(options.keep, options.run or (), dry=options.dry).text())

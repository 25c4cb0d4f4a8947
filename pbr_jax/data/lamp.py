"""LaMP 1-5 and 7, user split and time split: `{split}_questions.json` and `{split}_outputs.json`.

Salemi et al., "LaMP: When Large Language Models Meet Personalization", 2024. In the user split a
question is a user; the time split has a `user_id`, several questions of which share a growing
history, and dates. Question ids may recur in another split: see `users.py` for who is called what. What the
retriever sees of a question and of a history record follows the official code; with `benchmark.form cfrag`
that of CFRAG (Shi et al., 2025), which quotes fields by their names. The test split is released without
outputs: its targets are None.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from pbr_jax.base.types import Document, Example, UserError
from pbr_jax.data import json_stream, users
from pbr_jax.data.reader import Files, Reader, named
from pbr_jax.data.records import Note, Record, moment_after, profile
from pbr_jax.options import Benchmark


@dataclass(frozen=True, kw_only=True)
class _Format:
    """How a task writes its files: `keys` of a history record besides id and date, those of them whose
    values make the document's `text`, and the `marker` in the input that the query follows."""

    number: int
    keys: tuple[str, ...]
    text: tuple[str, ...]
    marker: str = ":"


_FORMATS = {
    "lamp_1": _Format(number=1, keys=("title", "abstract"), text=("title", "abstract")),
    "lamp_2": _Format(number=2, keys=("tag", "description"), text=("description",), marker="description:"),
    "lamp_3": _Format(number=3, keys=("text", "score"), text=("text",), marker="review:"),
    "lamp_4": _Format(number=4, keys=("text", "title"), text=("title", "text"), marker="article:"),
    "lamp_5": _Format(number=5, keys=("title", "abstract"), text=("title", "abstract"), marker="paper:"),
    "lamp_7": _Format(number=7, keys=("text",), text=("text",)),
}
_FORMATS["synthetic"] = _FORMATS["lamp_4"]

SPLITS = ("train", "dev", "test")

# What CFRAG's code has for the text of a history record, by the task's number; a query is a first field.
_QUOTED = {
    1: ("title", "abstract"),
    2: ("description", "tag"),
    4: ("text", "title"),
    5: ("abstract", "title"),
}

# Titles may hold quotes and even "[2]:", so the two candidates are found by the words around them, the
# official ones first.
_CANDIDATES = tuple(
    re.compile(before + r'\[1\]:\s*"(.*?)"\s*\[2\]:\s*"(.*)"\s*$', re.DOTALL)
    for before in (r"without explanation\.\s*", "")
)


def _layout(benchmark: Benchmark) -> dict[str, Files]:
    """Of each split whose questions are there what finds its files."""
    root = Path(benchmark.root)
    return {
        split: partial(_files, root, split) for split in SPLITS if _file(root, split, "questions").is_file()
    }


def _files(root: Path, split: str) -> tuple[Path, ...]:
    """Outputs, unless withheld, and questions of the split."""
    questions, outputs = _file(root, split, "questions"), _file(root, split, "outputs")
    if os.path.lexists(outputs):
        return outputs, questions
    if split == "test":
        return (questions,)
    raise UserError(
        f"{outputs}: found no such file, wanted the {split} labels; only those of test are withheld"
    )


def _question_users(benchmark: Benchmark) -> bool:
    """Whether a question of the split is a user by itself, as the first tells; True where none is read."""
    try:
        first = next(json_stream.records(_file(Path(benchmark.root), benchmark.split, "questions")), None)
    except UserError:
        return True
    return first is None or not first.has("user_id")


def _examples(benchmark: Benchmark, note: Note) -> Iterator[Example]:
    form = _FORMATS[benchmark.name]
    quoted = _QUOTED.get(form.number, ()) if benchmark.form == "cfrag" else ()
    *outputs, questions = _files(Path(benchmark.root), benchmark.split)
    targets = _targets(outputs[0], form) if outputs else None
    seen: set[str] = set()
    alone = _question_users(benchmark)
    for name, record in named(json_stream.records(questions), "id"):
        if targets is not None and name not in targets:
            raise record.fault("id", f"no output for {name!r} in {outputs[0].name}", "one for every question")
        if not seen and alone and not _question_users(replace(benchmark, split=benchmark.training)):
            raise users.two_kinds(benchmark, questions)
        seen.add(name)
        user = _user(record, benchmark, alone)
        yield _example(record, form, quoted, user, targets[name] if targets is not None else None, note)
    _check_complete(targets or {}, seen, questions, outputs)


def _file(root: Path, split: str, part: str) -> Path:
    """The file in the root or, as in the official download, in a folder named after the split."""
    name = f"{split}_{part}.json"
    nested = root / split / name
    return nested if nested.is_file() else root / name


def _check_complete(targets: Mapping[str, str], seen: set[str], questions: Path, outputs: list[Path]) -> None:
    missing = next((name for name in targets if name not in seen), None)
    if missing is not None:
        raise UserError(
            f"{questions}: found no question with the id {missing!r}, wanted one for every output in "
            f"{outputs[0].name}; take both files from the same release"
        )


def _targets(path: Path, form: _Format) -> dict[str, str]:
    """The outputs by question id."""
    record = json_stream.load(path)
    found = record.text("task")
    if not (match := re.match(r"lamp_(\d+)", found, re.IGNORECASE)) or int(match[1]) != form.number:
        remedy = f"set --benchmark.name lamp_{match[1]}" if match else "take the file as released"
        raise record.fault("task", repr(found), f"'LaMP_{form.number}'", f"{remedy} or another root")
    return {name: gold.text("output") for name, gold in named(record.records("golds"), "id")}


def _user(record: Record, benchmark: Benchmark, alone: bool) -> str:
    """Who asks; `alone`: whether the file's questions are users by themselves."""
    if record.has("user_id") == alone:
        found = "one, and none in the records before" if alone else "none, and one in the records before"
        remedy = "split the file in two: a question's id and a user's could be equal by chance"
        raise record.fault("user_id", found, "one in every record or in none", remedy)
    if alone:
        return users.of_question(record, "id", benchmark)
    return users.of_person(record, "user_id", benchmark)


def _example(
    record: Record, form: _Format, quoted: tuple[str, ...], user: str, target: str | None, note: Note
) -> Example:
    name = record.name("id")
    text = record.text("input")
    entries = ((entry, _document(entry, form, quoted, user)) for entry in record.records("profile"))
    history = profile(entries, note)
    parts, repair = _query(text, form)
    query = " ".join(_named(quoted[0], part) if quoted else part for part in parts)
    moment = record.time("date")
    if repair:
        note(f"{record.file}: {record.label}, field 'input': {repair}")
    return Example(
        id=name,
        user_id=user,
        query=query,
        input=text,
        target=target,
        profile=history,
        time=moment_after(history) if moment is None else moment,
    )


def _named(key: str, text: str) -> str:
    return f"'{key}': '{text}'"


def _document(record: Record, form: _Format, quoted: tuple[str, ...], user: str) -> Document:
    _check_task(record, form)
    text = " ".join(record.text(key) for key in form.text)
    if not text.strip():
        raise record.fault(
            form.text[-1], "a blank string", "the document's text", "remove the document or fill it"
        )
    if quoted:
        text = " ".join(_named(key, record.text(key)) for key in quoted)
    fields = record.strings("id", "date")
    return Document(id=record.name("id"), user_id=user, text=text, fields=fields, **record.dates("date"))


def _check_task(record: Record, form: _Format) -> None:
    """A history of another task's shape is a UserError that names that task."""
    keys = record.values.keys() - {"id", "date"}
    if set(form.keys) <= keys and not any(
        keys == set(other.keys) != set(form.keys) for other in _FORMATS.values()
    ):
        return
    others = [name for name, other in _FORMATS.items() if set(other.keys) == keys and name != "synthetic"]
    missing = next((key for key in form.keys if key not in keys), "")
    found = f"the keys {', '.join(sorted(keys)) or 'none'}"
    if others:
        found += f", which look like {' or '.join(others)}"
    remedy = f"set --benchmark.name {others[0]} or another root" if others else ""
    raise record.fault(missing, found, f"the keys {', '.join(form.keys)} of lamp_{form.number}", remedy)


def _query(text: str, form: _Format) -> tuple[list[str], str]:
    """The parts of what the retriever searches for, and what had to be mended (empty: nothing)."""
    if form.number == 1:
        for pattern in _CANDIDATES:
            if match := pattern.search(text):
                return [match[1], match[2]], ""
        return [text.strip()], "found no two candidate titles, the whole input serves as query"
    _, _, query = text.partition(form.marker)
    if query.strip():
        return [query.strip()], ""
    # LaMP-2's dev question 110 has lost its "description:"; what follows the list of tags is the movie.
    tail = text.rpartition("]")[2].strip() if form.number == 2 else ""
    rest = "what follows the tags" if tail else "the whole input"
    return [tail or text.strip()], f"found no text after {form.marker!r}, {rest} serves as query"


_READER = Reader(
    expected="{split}_questions.json and {split}_outputs.json, split one of " + ", ".join(SPLITS),
    layout=_layout,
    examples=_examples,
    forms=("official", "cfrag"),
    question_users=_question_users,
)
READERS = dict.fromkeys(_FORMATS, _READER)

"""LongLaMP: abstract generation, product reviews and topic writing, as JSON, JSONL or Parquet.

Kumar et al., "LongLaMP: A Benchmark for Personalized Long-form Text Generation", 2024. A row is one
question of the user that its id field names (`name`, `reviewerId`, `author`). The files lie in the
root under the name of their split, or in a folder named after their configuration, as in the
public dataset repository. What the published code leaves open (the topic task's keys) follows the
released rows: a document's text is all it says in words, title or summary first.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

from pbr_jax.base.types import Document, Example, UserError
from pbr_jax.data import json_stream, tables, users
from pbr_jax.data.reader import Files, Reader
from pbr_jax.data.records import Note, Record, moment_after, profile, top_record
from pbr_jax.options import Benchmark


@dataclass(frozen=True, kw_only=True)
class _Format:
    """How a task writes its rows: the folder's prefix, the field that names the user, the keys of a
    document's text in order, and the marker that the query follows (empty: the whole input)."""

    folder: str
    user: str
    text: tuple[str, ...]
    marker: str = ""


_FORMATS = {
    "longlamp_abstract": _Format(
        folder="abstract_generation", user="name", text=("title", "abstract"), marker="items:"
    ),
    "longlamp_review": _Format(
        folder="product_review", user="reviewerId", text=("summary", "description", "reviewText")
    ),
    "longlamp_topic": _Format(folder="topic_writing", user="author", text=("summary", "content")),
}
_ALIASES = {"train": ("train",), "dev": ("val", "validation", "dev"), "test": ("test",)}
_SETTINGS = ("", "_user", "_temporal")
_DATES = ("date", "year")
_PART = re.compile(r"-of-(\d+)\.parquet$")


def _layout(benchmark: Benchmark) -> dict[str, Files]:
    """Of each split that is there what finds its file, or all its Parquet parts."""
    groups = {split: _groups(benchmark, split) for split in _ALIASES}
    return {split: partial(_files, benchmark.root, split, some) for split, some in groups.items() if some}


def _files(root: str, split: str, groups: list[tuple[Path, ...]]) -> tuple[Path, ...]:
    if len(groups) > 1:
        names = " and ".join(str(group[0]) for group in groups[:2])
        raise UserError(
            f"{root}: found the {split} split more than once ({names}), wanted one; "
            "set --benchmark.root to one folder or remove the copy"
        )
    (group,) = groups
    if (parts := _PART.search(group[0].name)) and int(parts[1]) != len(group):
        raise UserError(
            f"{group[0].parent}: found {len(group)} of the {int(parts[1])} parts of the {split} "
            "split, wanted all; fetch the others too"
        )
    return group


def _examples(benchmark: Benchmark, note: Note) -> Iterator[Example]:
    """A user's further rows get the ids "user#2", "user#3", since the released rows have no id of
    their own.
    """
    form = _FORMATS[benchmark.name]
    seen: set[str] = set()
    for path in _files(benchmark.root, benchmark.split, _groups(benchmark, benchmark.split)):
        for record in _rows(path):
            user = _user(record, form)
            yield _example(record, users.unique(user, seen), user, benchmark, note)


def _groups(benchmark: Benchmark, split: str) -> list[tuple[Path, ...]]:
    """Each set of files that may be the split: one file, or the parts of one Parquet table."""
    root, form = Path(benchmark.root), _FORMATS[benchmark.name]
    folders = [root, root / "data", *(root / f"{form.folder}{setting}" for setting in _SETTINGS)]
    groups: list[tuple[Path, ...]] = []
    for folder in folders:
        for alias in _ALIASES.get(split, ()):
            groups += [
                (path,)
                for ending in ("jsonl", "json", "parquet")
                if (path := folder / f"{alias}.{ending}").is_file()
            ]
            if parts := sorted(folder.glob(f"{alias}-*-of-*.parquet")):
                groups.append(tuple(parts))
    return groups


def _rows(path: Path) -> Iterator[Record]:
    if path.suffix == ".parquet":
        rows = enumerate(tables.parquet(path))
        return (top_record(_plain(dict(row.values)), path, index) for index, row in rows)
    return json_stream.records(path) if json_stream.is_list(path) else json_stream.lines(path)


def _plain(value: Any) -> Any:
    """What JSON has for a value of a Parquet file: null for NaN and infinity, a text for a date."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, Decimal):
        value = int(value) if value == int(value) else float(value)
    if isinstance(value, date):  # with or without a clock
        return value.isoformat()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _example(record: Record, name: str, user: str, benchmark: Benchmark, note: Note) -> Example:
    form = _FORMATS[benchmark.name]
    text = record.text("input")
    withheld = benchmark.split == "test" and not record.has("output")
    entries = (
        (entry, _document(entry, position, form, user)) for position, entry in enumerate(_entries(record))
    )
    history = profile(entries, note)
    return Example(
        id=name,
        user_id=user,
        query=_query(record, form, note),
        input=text,
        target=None if withheld else record.text("output"),
        profile=history,
        time=moment_after(history),
    )


def _user(record: Record, form: _Format) -> str:
    others = [name for name, other in _FORMATS.items() if other.user in record.values]
    if form.user not in record.values and others:
        found = f"the key {_FORMATS[others[0]].user!r}, which looks like {others[0]}"
        raise record.fault(form.user, found, f"the key {form.user!r}", f"set --benchmark.name {others[0]}")
    return record.name(form.user)


def _query(record: Record, form: _Format, note: Note) -> str:
    """What the retriever searches for: what follows the marker, or the whole input."""
    text = record.text("input").strip()
    if not form.marker:
        return text
    if query := text.partition(form.marker)[2].strip():
        return query
    found = f"found no text after {form.marker!r}, the whole input serves as query"
    note(f"{record.file}: {record.label}, field 'input': {found}")
    return text


def _entries(record: Record) -> list[Record]:
    """The history: a list of objects, or the object of lists that some Parquet writers make of it."""
    value: Any = record.value("profile")
    if not isinstance(value, Mapping):
        return record.records("profile")
    columns = record.record("profile")
    lengths = {key: len(columns.items(key)) for key in value}
    if len(set(lengths.values())) > 1:
        raise record.fault("profile", f"columns of the lengths {lengths}", "columns of one length")
    rows = (dict(zip(value, row)) for row in zip(*value.values()))
    return [record.inner(row, f"profile[{position}]") for position, row in enumerate(rows)]


def _document(record: Record, position: int, form: _Format, user: str) -> Document:
    """A history record; reviews have no id of their own, so their place in the history serves."""
    text = " ".join(record.text(key) for key in form.text if _required(record, key, form)).strip()
    if not text:
        raise record.fault(
            form.text[-1], "a blank string", "the document's text", "remove the document or fill it"
        )
    name = record.name("id") if record.has("id") else str(position)
    dates = record.dates(next(filter(record.has, _DATES), _DATES[0]))
    return Document(id=name, user_id=user, text=text, fields=record.strings("id", "date"), **dates)


def _required(record: Record, key: str, form: _Format) -> bool:
    """Whether to read `key`: null counts as empty, a missing key as the file of another task."""
    if key not in record.values:
        others = [name for name, other in _FORMATS.items() if set(other.text) <= record.values.keys()]
        found = f"the keys {', '.join(sorted(record.values)) or 'none'}"
        if others:
            found += f", which look like {others[0]}"
        remedy = f"set --benchmark.name {others[0]} or another root" if others else ""
        raise record.fault(key, found, f"the keys {', '.join(form.text)}", remedy)
    return record.has(key)


READERS = {
    name: Reader(
        expected="train, val and test as .jsonl, .json or .parquet files, "
        f"here or in a folder {form.folder}_user",
        layout=_layout,
        examples=_examples,
    )
    for name, form in _FORMATS.items()
}

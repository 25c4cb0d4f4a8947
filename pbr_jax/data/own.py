"""Data of one's own: `documents.jsonl`, and a file of questions for each split, one JSON object a line.

A document has `id`, `user`, `text` (what is searched) and `fields` (what prompts show beside). A question
has `id`, `user` and `input`. All else is optional; docs/reference/data_format.md lists the keys. A question
sees the documents of its user that came before it: where both carry an `order`, those of a lower one; where
both carry a `time`, those whose whole date lies before. It never sees the document that records its own
answer (`question`). A `history` names the documents instead.
"""

import json
import os
import sqlite3
from collections.abc import Collection, Iterable, Iterator
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from pbr_jax.base.types import Document, Example
from pbr_jax.data import json_stream, users
from pbr_jax.data.reader import Reader, named
from pbr_jax.data.records import Note, Record, kind, moment_after
from pbr_jax.options import Benchmark

DOCUMENTS = "documents.jsonl"
LEFT_OUT = "left_out.txt"
"""The file in which an import says, a line a reason, which records of the table it left out."""
_OF_DOCUMENT = ("id", "user", "text", "fields", "time", "order", "question")
_OF_QUESTION = (
    "id", "user", "input", "query", "target", "alternatives", "time", "order", "history", "relevant",
    "category", "unit", "options", "scored",
)  # fmt: skip


class _Known(NamedTuple):
    """A document, its place in an order, and the question whose answer it records."""

    document: Document
    order: float | None
    question: str


def left_out(benchmark: Benchmark) -> list[str]:
    """What an import says about the records that it left out; [] for data that says nothing."""
    path = Path(benchmark.root, LEFT_OUT)
    there = benchmark.name == "own" and path.is_file()
    return path.read_text(encoding="utf-8").splitlines() if there else []


def _layout(benchmark: Benchmark) -> dict[str, tuple[Path, ...]]:
    """The questions of each split, and the documents of all splits where there are any."""
    root = Path(benchmark.root)
    documents = [root / DOCUMENTS] if os.path.lexists(root / DOCUMENTS) else []  # a broken link is a fault
    return {p.stem: (p, *documents) for p in sorted(root.glob("*.jsonl")) if p.name != DOCUMENTS}


def _examples(benchmark: Benchmark, note: Note) -> Iterator[Example]:
    """The questions in file order. Documents lie on disk meanwhile, but for those of a few users."""
    questions, *documents = _layout(benchmark)[benchmark.split]
    with closing(sqlite3.connect("")) as index:  # a database on disk, which goes with the connection
        _index(index, documents)

        @lru_cache(maxsize=16)
        def history(user: str) -> list[_Known]:
            found = index.execute("SELECT record, line FROM documents WHERE user=? ORDER BY line", (user,))
            return [
                _known(Record(json.loads(record), documents[0], f"record {line}")) for record, line in found
            ]

        for _, record in named(_checked(json_stream.lines(questions), _OF_QUESTION), "id"):
            yield _example(record, history(users.of_person(record, "user", benchmark)))


def _checked(records: Iterable[Record], keys: Collection[str]) -> Iterator[Record]:
    for record in records:
        record.check_keys(keys)
        yield record


def _index(index: sqlite3.Connection, paths: list[Path]) -> None:
    index.execute("CREATE TABLE documents (user TEXT, id TEXT, line INTEGER PRIMARY KEY, record TEXT)")
    index.execute("CREATE UNIQUE INDEX by_user ON documents (user, id)")
    for path in paths:
        for line, record in enumerate(json_stream.lines(path)):
            record.check_keys(_OF_DOCUMENT)
            _known(record)  # faults of documents that no question sees are faults too
            row = (record.name("user"), record.name("id"), line, json.dumps(dict(record.values)))
            if not index.execute("INSERT OR IGNORE INTO documents VALUES (?, ?, ?, ?)", row).rowcount:
                raise record.fault("id", f"{row[1]!r} a second time for the user {row[0]!r}", "unique ids")


def _known(record: Record) -> _Known:
    fields = record.record("fields").strings() if record.has("fields") else {}
    text = record.text("text") if record.has("text") else " ".join(fields.values())
    if not text.strip():
        raise record.fault("text", "no text", "the text that is searched, or fields that hold some")
    document = Document(
        id=record.name("id"),
        user_id=record.name("user"),
        text=text,
        fields={"text": text, **fields},
        **record.dates("time"),
    )
    question = record.name("question") if record.has("question") else ""
    return _Known(document, _order(record), question)


def _example(record: Record, history: list[_Known]) -> Example:
    name, order, asked = record.name("id"), _order(record), record.dates("time")
    if record.has("history"):
        profile = _named(record, history)
    else:
        profile = tuple(
            known.document
            for known in history
            if known.question != name and _before(known, order, asked["time"])
        )
    relevant = _relevant(record, {document.id for document in profile})
    text, options = record.text("input"), _options(record)
    return Example(
        id=name,
        user_id=record.name("user"),
        query=record.text("query") if record.has("query") else text,
        input=text,
        target=record.text("target") if record.has("target") else None,
        profile=profile,
        time=moment_after(profile) if asked["time"] is None else asked["time"],
        relevant=relevant,
        category=record.text("category") if record.has("category") else "",
        scored=_scored(record),
        alternatives=tuple(_texts(record, "alternatives")),
        unit=record.text("unit") if record.has("unit") else "",
        options=options,
    )


def _before(known: _Known, order: float | None, time: float | None) -> bool:
    """Whether a document came before a question, as far as order and time say so."""
    if order is not None and known.order is not None and known.order >= order:
        return False
    document = known.document
    if time is None or document.time is None:
        return True
    return (document.time if document.until is None else document.until) < time


def _named(record: Record, history: list[_Known]) -> tuple[Document, ...]:
    """The documents of `history`, in its order."""
    known = {one.document.id: one.document for one in history}
    names = record.names("history")
    if missing := next((name for name in names if name not in known), None):
        raise record.fault("history", f"{missing!r}, no document of the user", "ids of the user's documents")
    return tuple(known[name] for name in dict.fromkeys(names))


def _relevant(record: Record, visible: set[str]) -> tuple[tuple[str, ...], ...]:
    """Groups of ids: of a plain list of ids each is a group of its own."""
    if not record.has("relevant"):
        return ()
    groups = []
    for place, item in enumerate(record.items("relevant")):
        inner = record.inner({"ids": item if isinstance(item, list) else [item]}, f"relevant[{place}]")
        groups.append(tuple(inner.names("ids")))
    if unseen := next((name for group in groups for name in group if name not in visible), None):
        raise record.fault(
            "relevant", f"{unseen!r}, which the question does not see", "ids of documents of its history"
        )
    return tuple(groups)


def _texts(record: Record, key: str) -> Iterator[str]:
    for place, item in enumerate(record.items(key) if record.has(key) else []):
        if not isinstance(item, str):
            raise record.fault(f"{key}[{place}]", kind(item), "a string")
        yield item


def _options(record: Record) -> tuple[str, ...]:
    """The answers to choose from, the target among them; () where the question offers none."""
    options = tuple(option.strip() for option in _texts(record, "options"))
    target = record.text("target").strip() if record.has("target") else None
    if len(set(options)) < len(options) or "" in options:
        raise record.fault("options", f"{list(options)!r:.80}", "different answers to choose from")
    if options and target is not None and target not in options:
        raise record.fault("target", f"{target!r:.60}", "one of the question's options")
    return options


def _scored(record: Record) -> bool:
    if not record.has("scored"):
        return True
    if not isinstance(value := record.value("scored"), bool):
        raise record.fault("scored", kind(value), "true or false")
    return value


def _order(record: Record) -> float | None:
    if not record.has("order"):
        return None
    value = record.value("order")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise record.fault("order", kind(value), "a number")
    return float(value)


READERS = {
    "own": Reader(
        expected=f"a folder with {DOCUMENTS} and a file of questions for each split, such as dev.jsonl",
        layout=_layout,
        examples=_examples,
    )
}

"""Shared collections of passages, read one at a time: JSON lines, tables, and SQuAD's paragraphs.

`.jsonl`: an object a line with `id` (BEIR: `_id`), `text` and, if it has one, `title`. `.tsv`: tab-separated
columns of these names, as in DPR's psgs_w100.tsv. `.json`: SQuAD's format; its paragraphs have no ids, so the
hash of their text is one (`relevant`). Each of them may be compressed (`.gz`).
"""

import csv
import hashlib
import io
from collections.abc import Iterator
from pathlib import Path

from pbr_jax.data import json_stream
from pbr_jax.data.records import Record
from pbr_jax.options import Benchmark
from pbr_jax.types import Document, UserError


def documents(benchmark: Benchmark) -> Iterator[Document]:
    """The passages of a benchmark, in file order, as shared documents; none where it has no collection.

    A retriever indexes a passage's title and text, as BEIR does. UserError for a missing file and a format
    that is not known, at once, and for faults in records, with file, record and field.
    """
    return (_document(record) for path in files(benchmark) for record in _records(path))


def files(benchmark: Benchmark) -> tuple[Path, ...]:
    """The file of a benchmark's passages, if it has one; UserError where that is missing."""
    path = Path(benchmark.passages)
    if benchmark.passages and not path.is_file():
        raise UserError(f"benchmark.passages: found no such file {path}, wanted a collection of passages")
    return (path,) if benchmark.passages else ()


def relevant(benchmark: Benchmark, paragraph: str) -> tuple[tuple[str, ...], ...]:
    """The passage that answers a question of SQuAD's, as `Example.relevant`; none where it is not known.

    It is known where the passages are of SQuAD's format too.
    """
    known = bool(paragraph) and bool(benchmark.passages) and _format(Path(benchmark.passages)) == ".json"
    return ((_paragraph_id(paragraph),),) if known else ()


def paragraphs(path: Path) -> Iterator[Record]:
    """The paragraphs of a file in SQuAD's format, each with its article's `title`."""
    for article in json_stream.load(path).records("data"):
        title = article.text("title") if article.has("title") else ""
        for paragraph in article.records("paragraphs"):
            yield Record({**paragraph.values, "title": title}, path, path=paragraph.path)


def _paragraph_id(text: str) -> str:
    """The id of one of SQuAD's paragraphs."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _format(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).suffix


def _records(path: Path) -> Iterator[Record]:
    """Records with the fields `id` or `_id`, `text`, and `title` where there is one."""
    if _format(path) == ".jsonl":
        return json_stream.lines(path)
    if _format(path) == ".tsv":
        return _table(path)
    if _format(path) == ".json":
        return _distinct(path)
    raise UserError(
        f"benchmark.passages: found {path}, wanted a file that ends in .jsonl (id, title, text), .tsv (DPR's "
        "columns) or .json (SQuAD's format), or in one of these and .gz"
    )


def _distinct(path: Path) -> Iterator[Record]:
    """SQuAD's paragraphs, each once, with ids."""
    seen = set[str]()
    for paragraph in paragraphs(path):
        id = _paragraph_id(text := paragraph.text("context"))
        if id not in seen:
            seen.add(id)
            values = {"id": id, "title": paragraph.values["title"], "text": text}
            yield Record(values, path, paragraph.path)


def _table(path: Path) -> Iterator[Record]:
    with json_stream.opened(path) as file:
        text = io.TextIOWrapper(file, "utf-8-sig", newline="")  # type: ignore[arg-type]
        rows = csv.reader(text, delimiter="\t")
        try:
            header = next(rows, [])
            for name in ("id", "text"):
                if name not in header:
                    raise UserError(
                        f"{path}: line 1: found the columns {', '.join(header)!r:.80}, wanted {name!r} among "
                        "them; name the columns in the first line, as DPR's psgs_w100.tsv does"
                    )
            for index, row in enumerate(filter(None, rows)):
                record = Record(dict(zip(header, row)), path, f"record {index} (line {rows.line_num})")
                if len(row) != len(header):
                    raise record.fault("", f"{len(row)} columns", f"{len(header)}: {', '.join(header)}")
                yield record
        except (csv.Error, UnicodeDecodeError) as error:
            raise UserError(
                f"{path}: after line {rows.line_num}: found {error!s:.80}, wanted tab-separated columns in "
                "UTF-8; convert the file"
            ) from error


def _document(record: Record) -> Document:
    name = record.name("id" if record.has("id") or not record.has("_id") else "_id")
    title = record.text("title").strip() if record.has("title") else ""
    if not (text := record.text("text")).strip():
        raise record.fault("text", "an empty text", "a passage")
    fields = {"title": title, "text": text} if title else {"text": text}
    return Document(name, "", f"{title} {text}".strip(), fields, shared=True)

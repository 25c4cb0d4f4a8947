"""Shared collections of passages, read one at a time: JSON lines, tables, and what question sets release.

`.jsonl`: an object a line with `id` (BEIR: `_id`), `text` and, if it has one, `title`. `.tsv`: tab-separated
columns of these names, as in DPR's psgs_w100.tsv. `.json`: SQuAD's format (`squad`). Each of them may be
compressed (`.gz`). The name of a split, of XQuAD a language: the passages that it was released with.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from pbr_jax.base.file_hashes import file_hash
from pbr_jax.base.types import Document, Example, UserError
from pbr_jax.data import json_stream, question_sets, tables
from pbr_jax.data.question_sets import (
    Question,
    squad_passages,
    squad_questions,
    web_qa_passages,
    web_qa_questions,
)
from pbr_jax.data.records import Record
from pbr_jax.options import Benchmark

_RELEASED = {"squad": squad_questions, "xquad": squad_questions, "web_qa": web_qa_questions}
"""The questions of sets that come with passages."""


def documents(benchmark: Benchmark) -> Iterator[Document]:
    """All passages of a benchmark, in file order, as shared documents; none where it has no collection."""
    return chain.from_iterable(collections(benchmark).values())


def count(benchmark: Benchmark) -> int:
    """How many passages there are. UserError for an id that stands twice."""
    with closing(sqlite3.connect("")) as seen:  # a database on disk: a collection may be larger than memory
        seen.execute("create table ids (id text primary key) without rowid")
        for path, found in collections(benchmark).items():
            for number, document in enumerate(found):
                if not seen.execute("insert or ignore into ids values (?)", (document.id,)).rowcount:
                    raise UserError(
                        f"{path}: record {number}, field 'id': found {document.id!r} a second time, wanted "
                        "ids that are unique among all passages; give every passage its own"
                    )
        return seen.execute("select count(*) from ids").fetchone()[0]


def collections(benchmark: Benchmark) -> dict[str, Iterator[Document]]:
    """The same by file: first the passages, then the distractors.

    A retriever indexes a passage's title and text, as BEIR does, but of XQuAD the paragraph alone: its titles
    are English in all languages. UserError for a missing file and a format
    that is not known, at once, and for faults in records, with file, record and field, and for no records.
    """
    return {str(path): _some(path, benchmark) for path in files(benchmark)}


def _some(path: Path, benchmark: Benchmark) -> Iterator[Document]:
    """The passages of a file. Raises UserError where it has none."""
    records, titled = iter(_records(benchmark, path)), not _is_xquad(benchmark, path)
    if (first := next(records, None)) is not None:
        yield _document(first, titled)
        yield from (_document(record, titled) for record in records)
    else:
        raise UserError(f"{path}: found no passage, wanted at least one; fetch the file again")


def files(benchmark: Benchmark) -> tuple[Path, ...]:
    """The files of a benchmark's passages and distractors; UserError where one is missing, or is both."""
    passages, distractors = _passages(benchmark), benchmark.distractors
    if not distractors:
        return (passages,) if passages else ()
    path = _there(Path(distractors), "distractors", "a collection of passages")
    if passages is not None and path.samefile(passages):
        raise UserError(f"benchmark.distractors: found {path}, the passages' file, wanted another one")
    return (passages, path) if passages else (path,)


def identity(benchmark: Benchmark) -> list[str]:
    """What tells collections apart in a key: hashes of their files, and which are distractors."""
    hashes = [file_hash(path) for path in files(benchmark)]
    return [*hashes[:-1], "distractors", hashes[-1]] if benchmark.distractors else hashes


def is_split(benchmark: Benchmark) -> bool:
    """Whether `benchmark.passages` names a split of the benchmark's root, and no file."""
    return _split(benchmark) is not None


@dataclass(frozen=True)
class Counterparts:
    """What a collection says of questions: of those that were asked of its passages, by id.

    `strict`: it is the set's own, so it must know every question. `passages`: the ids of all.
    """

    path: Path
    questions: dict[str, Question]
    passages: frozenset[str]
    strict: bool

    def of(self, question: Question) -> Question:
        """The question with the answers, and the passages that hold them, of this collection.

        By its id or, in a file that is not the set's own, by its paragraph. UserError where it has neither.
        """
        found = self.questions.get(question.id)
        if found is not None:
            same = found.unit == question.unit  # else titles are in languages of their own
            unit = question.unit if same else f"article {found.article}"
            return replace(question, answers=found.answers, held=found.held, unit=unit)
        if not self.strict and self.passages.issuperset(question.held):
            return question
        wanted = "its id there" if self.strict else "its id or its paragraph there"
        raise UserError(
            f"{self.path}: found no question {question.id!r}, wanted {wanted}, since relevant passages are "
            "known by it; take passages that were released with these questions, or .jsonl without relevance"
        )

    def joined(self, example: Example) -> Example:
        """The same for an example of which the question alone is known, and not its paragraph."""
        question = Question(example.id, example.query, None, unit=example.unit)
        found = self.of(question)
        return example if found is question else replace(example, **found.fields)


def counterparts(benchmark: Benchmark) -> Counterparts | None:
    """What the passages say of the benchmark's questions; None where they were released with none.

    UserError for a question's id that stands there twice.
    """
    path, read = _passages(benchmark), _RELEASED.get(benchmark.name)
    if path is None or read is None:
        return None
    if not is_split(benchmark) and not (read is squad_questions and _suffix(path) == ".json"):
        return None
    questions: dict[str, Question] = {}
    for question in read(path):
        if question.id in questions:
            raise UserError(
                f"{path}: found the question {question.id!r} a second time, wanted every id once, since "
                "questions are joined by it; take the data as released"
            )
        questions[question.id] = question
    ids = frozenset(record.values["id"] for record in _records(benchmark, path))
    return Counterparts(path, questions, ids, is_split(benchmark))


def _split(benchmark: Benchmark) -> Path | None:
    """The official file of the split that `benchmark.passages` names."""
    if benchmark.name not in _RELEASED:
        return None
    return question_sets.files(benchmark.name, benchmark.root).get(benchmark.passages)


def _passages(benchmark: Benchmark) -> Path | None:
    if not benchmark.passages:
        return None
    if path := _split(benchmark):
        return path
    wanted = "a collection of passages"
    if benchmark.name in _RELEASED:
        there = ", ".join(question_sets.files(benchmark.name, benchmark.root)) or "none"
        wanted += f", or a split of {benchmark.root} (there are {there})"
    return _there(Path(benchmark.passages), "passages", wanted)


def _there(path: Path, field: str, wanted: str) -> Path:
    if not path.is_file():
        raise UserError(f"benchmark.{field}: found no such file {path}, wanted {wanted}")
    return path


def _is_xquad(benchmark: Benchmark, path: Path) -> bool:
    return benchmark.name == "xquad" and _suffix(path) == ".json"


def _suffix(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).suffix


def _records(benchmark: Benchmark, path: Path) -> Iterator[Record]:
    """Records with the fields `id` or `_id`, `text`, and `title` where there is one."""
    if path == _split(benchmark) and benchmark.name == "web_qa":
        return web_qa_passages(path)
    if _suffix(path) == ".jsonl":
        return json_stream.lines(path)
    if _suffix(path) == ".tsv":
        return _table(path)
    if _suffix(path) == ".json":
        return squad_passages(path, unique=_is_xquad(benchmark, path))
    raise UserError(
        f"benchmark.passages: found {path}, wanted a file that ends in .jsonl (id, title, text), .tsv (DPR's "
        "columns) or .json (SQuAD's format), or in one of these and .gz"
    )


def _table(path: Path) -> Iterator[Record]:
    for record in tables.separated(path):
        for name in ("id", "text"):
            if name not in record.values:
                raise UserError(
                    f"{path}: found the columns {', '.join(record.values)!r:.80}, wanted {name!r} among "
                    "them; name the columns in the first line, as DPR's psgs_w100.tsv does"
                )
        yield record


def _document(record: Record, titled: bool) -> Document:
    name = record.name("id" if record.has("id") or not record.has("_id") else "_id")
    title = record.text("title").strip() if record.has("title") else ""
    if not (text := record.text("text")).strip():
        raise record.fault("text", "an empty text", "a passage")
    fields = {"title": title, "text": text} if title else {"text": text}
    return Document(name, "", f"{title} {text}".strip() if titled else text, fields, shared=True)

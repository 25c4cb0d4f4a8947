"""PersonaMem: which of several replies suits what a user told a chatbot, versions 1 and 2.

Jiang et al., "Know Me, Respond to Me: Benchmarking LLMs for Dynamic User Profiling and Personalized Responses
at Scale", 2025, https://arxiv.org/abs/2504.14225, in the files of https://github.com/bowen-upenn/PersonaMem:
the splits are `32k`, `128k` and `1M`. A context of messages is the user; a question sees its messages before
`end_index_in_shared_context`. The persona is the unit. Options stand as released, without their letters.

PersonaMem-v2, https://arxiv.org/abs/2512.06688, in the files of https://github.com/bowen-upenn/PersonaMem-v2:
the splits are the stems of `benchmark/text/*.csv`, and the history is the one of 32k tokens, which the
released code reads by default. A persona is the user and the unit. The right answer and the wrong ones stand
apart in the release: here the options are in alphabetical order.

Of equal options, which some questions offer, the first alone is kept, and a note counts these questions.

A document is an exchange, what the user says and what the assistant replies, or with `benchmark.form turns` a
message. Messages of the system, which describe the persona, are documents of their own, each text once.
"""

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from pbr_jax.base.files import parse_json
from pbr_jax.base.types import Document, Example, UserError
from pbr_jax.data import json_stream, tables, users
from pbr_jax.data.conversations import begins
from pbr_jax.data.reader import Files, Reader, named
from pbr_jax.data.records import Note, Record, kind
from pbr_jax.options import Benchmark

LINK = "chat_history_32k_link"

_V2 = "benchmark/text"
_OPTION = re.compile(r"\s*\(([a-z])\)\s*(.*)", re.DOTALL)
_LONGEST = 1 << 20  # characters of a cell that holds a list

_Message = tuple[str, str]  # role and content


def _layout(benchmark: Benchmark) -> dict[str, Files]:
    """Sizes of version 1 and files of version 2; each with the questions, and what was said."""
    root = Path(benchmark.root)
    first = [path.stem.removeprefix("questions_") for path in root.glob("questions_*.csv")]
    second = [path.stem for path in (root / _V2).glob("*.csv")]
    names = [*sorted(first), *sorted(second)]
    return {name: partial(_files, replace(benchmark, split=name)) for name in names}


def _files(benchmark: Benchmark) -> tuple[Path, ...]:
    questions, contexts = _paths(benchmark)
    if contexts is not None:
        return questions, contexts
    return questions, *dict.fromkeys(_history_path(row, benchmark) for row in tables.separated(questions))


def _examples(benchmark: Benchmark, note: Note) -> Iterator[Example]:
    """The questions; of version 1 context by context, in the order of the file of contexts."""
    questions, contexts = _paths(benchmark)
    found = _second(questions, benchmark) if contexts is None else _first(questions, contexts, benchmark)
    return _merged(found, questions, note)


def _paths(benchmark: Benchmark) -> tuple[Path, Path | None]:
    """The file of questions; of version 1 that of contexts too."""
    root, split = Path(benchmark.root), benchmark.split
    if (questions := root / f"questions_{split}.csv").is_file():
        return questions, root / f"shared_contexts_{split}.jsonl"
    return root / _V2 / f"{split}.csv", None


# -- Version 1 ---------------------------------------------------------------------------------------


def _first(questions: Path, contexts: Path, benchmark: Benchmark) -> Iterator[Example]:
    asked: dict[str, list[Record]] = {}
    for _, row in named(tables.separated(questions), "question_id"):
        asked.setdefault(row.name("shared_context_id"), []).append(row)
    for line in json_stream.lines(contexts):
        for name in line.values:
            rows = asked.pop(name, [])
            said = _messages(line, name) if rows else []
            for row in rows:
                yield _chosen(row, said, benchmark)
    for row in (rows[0] for rows in asked.values()):
        found = f"{row.text('shared_context_id')!r:.80}, which is not in {contexts.name}"
        raise row.fault("shared_context_id", found, "the id of a context")


def _merged(found: Iterator[Example], questions: Path, note: Note) -> Iterator[Example]:
    """The same with each option once, so that accuracy knows no place among equal ones."""
    merged = 0
    for example in found:
        options: dict[str, str] = {}
        for option in example.options:
            options.setdefault(" ".join(option.split()), option)
        if len(options) == 1:
            raise UserError(
                f"{questions}: question {example.id!r} offers one answer {len(example.options)} times, "
                "wanted two or more different ones; correct the record or take the file as released"
            )
        merged += len(options) < len(example.options)
        target = options[" ".join(str(example.target).split())]
        yield replace(example, options=tuple(options.values()), target=target)
    if merged:
        note(f"{questions.name}: {merged} questions offer equal options, which are counted as one")


def _chosen(row: Record, said: Sequence[_Message], benchmark: Benchmark) -> Example:
    user = users.of_person(row, "shared_context_id", benchmark)
    end = row.text("end_index_in_shared_context")
    if not re.fullmatch("[0-9]{1,9}", end) or int(end) > len(said):
        wanted = f"a number from 0 to {len(said)}, the messages of the context"
        raise row.fault("end_index_in_shared_context", f"{end!r:.60}", wanted)
    options, right = _lettered(row)
    question = row.text("user_question_or_message")
    return Example(
        id=row.name("question_id"),
        user_id=user,
        query=question,
        input=question,
        target=options[right],
        profile=_documents(said[: int(end)], user, turns=benchmark.form == "turns"),
        category=row.text("question_type"),
        unit=f"persona_{row.name('persona_id')}",
        options=options,
    )


def _lettered(row: Record) -> tuple[tuple[str, ...], int]:
    """The options without their letters, and the place of the right one."""
    items = _strings(row, "all_options")
    matches = [_OPTION.fullmatch(item) for item in items]
    letters = [match[1] if match else "" for match in matches]
    right = row.text("correct_answer").strip().strip("()").lower()
    if len(items) < 2 or len(set(letters)) < len(letters) or right not in letters:
        wanted = "two or more options that begin with (a), (b) and so on, the right one among them"
        raise row.fault("all_options", f"{items!r:.80} and the right one {right!r:.20}", wanted)
    return tuple(match[2].strip() if match else "" for match in matches), letters.index(right)


# -- Version 2 ---------------------------------------------------------------------------------------


def _second(questions: Path, benchmark: Benchmark) -> Iterator[Example]:
    read: tuple[Path, tuple[Document, ...]] | None = None
    for number, row in enumerate(tables.separated(questions)):
        user, path = users.of_person(row, "persona_id", benchmark), _history_path(row, benchmark)
        if read is None or read[0] != path or (read[1] and read[1][0].user_id != user):
            history = _documents(_history(path), user, turns=benchmark.form == "turns")
            read = (path, history)
        question, right = _query(row), row.text("correct_answer").strip()
        wrong = [text.strip() for text in _strings(row, "incorrect_answers")]
        options = tuple(sorted({right, *wrong}))
        if not wrong or not right or right in wrong:
            raise row.fault(
                "incorrect_answers", f"{wrong!r:.80}", "one or more answers other than the right one"
            )
        yield Example(
            id=f"{questions.stem}_{number}",
            user_id=user,
            query=question,
            input=question,
            target=right,
            profile=read[1],
            category=row.text("pref_type"),
            unit=user,
            options=options,
        )


def _history_path(row: Record, benchmark: Benchmark) -> Path:
    """The file of a history. Raises UserError for one that is not under the root."""
    root, link = Path(benchmark.root).resolve(), row.text(LINK).strip()
    path = (root / link).resolve()
    if not link or not path.is_relative_to(root) or "\0" in link:
        raise row.fault(LINK, f"{link!r:.80}", "the path of a file under --benchmark.root")
    return path


def _history(path: Path) -> list[_Message]:
    record = json_stream.load(path)
    return _messages(record, "chat_history" if record.has("chat_history") else "conversations")


def _query(row: Record) -> str:
    """What the user asks: a message as JSON or a Python literal, or the plain text."""
    if not (text := row.text("user_query").strip()).startswith("{"):
        return text
    return row.inner(_literal(row, "user_query"), "user_query").text("content")


# -- Both --------------------------------------------------------------------------------------------


def _messages(record: Record, key: str) -> list[_Message]:
    return [(message.text("role"), message.text("content")) for message in record.records(key)]


def _documents(said: Sequence[_Message], user: str, *, turns: bool) -> tuple[Document, ...]:
    """The exchanges, or the messages. An id says which messages a document holds, counted from 0."""
    found: dict[str, Document] = {}
    for first, last in _spans(said, turns):
        lines = [_line(role, content) for role, content in said[first : last + 1]]
        text = "\n".join(lines)
        key = text if said[first][0] == "system" else f"{first}-{last}"
        found.setdefault(key, Document(f"{user}_{first}-{last}", user, text, turns=begins(lines)))
    return tuple(found.values())


def _spans(said: Sequence[_Message], turns: bool) -> Iterator[tuple[int, int]]:
    """The first and last message of each document: a new one begins where the user speaks again."""
    first = 0
    for place in range(1, len(said) + 1):
        before = said[place - 1][0]
        after = said[place][0] if place < len(said) else "system"
        if turns or "system" in (before, after) or (before != "user" and after == "user"):
            yield first, place - 1
            first = place


def _line(role: str, content: str) -> str:
    """A message in one line; version 1 writes the role in front of some."""
    label, text = f"{role.capitalize()}: ", " ".join(content.split())
    return text if text.startswith(label) or role == "system" else label + text


def _literal(row: Record, key: str) -> Any:
    """A cell that holds JSON or a Python literal."""
    if len(text := row.text(key)) > _LONGEST:
        raise row.fault(key, f"{len(text)} characters", f"at most {_LONGEST}")
    try:
        return parse_json(text)
    except ValueError:
        pass
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        raise row.fault(key, f"{text!r:.80}", "JSON or a Python literal") from None


def _strings(row: Record, key: str) -> list[str]:
    if not isinstance(value := _literal(row, key), list):
        raise row.fault(key, kind(value), "a list of texts")
    return [row.inner({"": item}, f"{key}[{place}]").text("") for place, item in enumerate(value)]


READERS = {
    "personamem": Reader(
        expected="questions_32k.csv with shared_contexts_32k.jsonl, "
        f"or {_V2}/benchmark.csv with its chat histories",
        layout=_layout,
        examples=_examples,
        forms=("official", "turns"),
    )
}

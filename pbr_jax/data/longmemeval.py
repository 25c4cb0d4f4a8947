"""LongMemEval, original and cleaned releases: one JSON file is a split.

Wu et al., "LongMemEval: Benchmarking Chat Assistants on Long-Term Interactive Memory", 2025. A
question is a user with a history of chat sessions; a document is a session, its text the user's
turns joined by a space, as in the official retrieval code. Relevance and what is scored follow the
official scorer: a session counts if its id contains "answer" and one of the user's turns carries
`has_answer`; questions to abstain from and questions without such a session are not scored.

`benchmark.form pbr` is what PBR's released code makes of the same file (Zhang et al., "Personalize Before
Retrieve", 2025, section 4.1): a document's text is compact JSON of the session's date and the user's turns,
and every session whose id contains "answer" is relevant, also those that the assistant alone answers. Which
questions are scored stays the same. The paper's R@k is `recall_all@k`, its N@k `ndcg_longmemeval@k`.

Dialogues of two people in this format, such as LoCoMo's, name sessions "conv-48_session_1" and begin turns
with the speaker ("Deborah: Hey"). There the unit of a question is the dialogue with the speaker who is the
user: all questions that are asked of one history.
"""

import json
import re
from collections.abc import Iterator

from pbr_jax.base.types import Document, Example
from pbr_jax.data import json_stream, users
from pbr_jax.data.conversations import begins, user_turns
from pbr_jax.data.reader import Reader, json_files, named
from pbr_jax.data.records import Note, Record, kind
from pbr_jax.options import Benchmark

_DIALOGUE = re.compile(r"(?:answer_)?(.+)_session_\d+")
_SPEAKER = re.compile(r"([^:\n]{1,60}):\s")


def _examples(benchmark: Benchmark, note: Note) -> Iterator[Example]:
    (path,) = json_files(benchmark)[benchmark.split]
    for _, record in named(json_stream.records(path), "question_id"):
        user = users.of_question(record, "question_id", benchmark)
        yield _example(record, user, note, as_pbr=benchmark.form == "pbr")


def _example(record: Record, user: str, note: Note, *, as_pbr: bool) -> Example:
    name = record.name("question_id")
    question = record.text("question")
    documents, relevant, marked = _sessions(record, user, note, as_pbr)
    return Example(
        id=name,
        user_id=user,
        query=question,
        input=question,
        target=record.text("answer") if record.has("answer") else None,
        profile=documents,
        time=record.time("question_date"),
        relevant=relevant,
        category=record.text("question_type"),
        scored="_abs" not in name and marked,
        unit=_unit(record),
    )


def _unit(record: Record) -> str:
    """The dialogue, and who of it is the user, as far as sessions and turns say so; else "".

    The sessions are ones that `_sessions` has read.
    """
    matches = map(_DIALOGUE.fullmatch, record.items("haystack_session_ids"))
    dialogues = {match[1] if match else "" for match in matches}
    if len(dialogues) != 1 or "" in dialogues:
        return ""
    turns = [
        turn for i, s in enumerate(record.items("haystack_sessions")) for turn in user_turns(record, s, i)
    ]
    speakers = {match[1] if (match := _SPEAKER.match(turn.text("content"))) else "" for turn in turns}
    return " ".join([*dialogues, *(speakers if len(speakers) == 1 else [])]).strip()


def _sessions(
    record: Record, user: str, note: Note, as_pbr: bool
) -> tuple[tuple[Document, ...], tuple[tuple[str, ...], ...], bool]:
    """The documents in file order; for each relevant session id the documents that hold it; and whether the
    user's side of any of them is marked as telling the answer.

    A session id that occurs again in a history gets a suffix ("id#2"). The official scorer counts
    ids, so the occurrences are alternatives of one another.
    """
    names, dates, sessions = (
        record.items(f"haystack_{part}") for part in ("session_ids", "dates", "sessions")
    )
    if not len(names) == len(dates) == len(sessions):
        found = f"{len(names)} ids, {len(dates)} dates and {len(sessions)} sessions"
        raise record.fault("haystack_sessions", found, "equally many of each")
    seen: set[str] = set()
    documents: list[Document] = []
    relevant: dict[str, list[str]] = {}
    any_marked = False
    for position, name in enumerate(names):
        name = _name(record, name, position)
        unique = users.unique(name, seen)
        if unique != name:
            note(f"{record.file}: {record.label}: the session {name!r} occurs again, kept as {unique!r}")
        turns = user_turns(record, sessions[position], position)
        documents.append(_document(record, unique, user, turns, position, as_pbr))
        marked = "answer" in name and any(turn.values.get("has_answer") for turn in turns)
        any_marked = any_marked or marked
        if marked or (as_pbr and "answer" in name):
            relevant.setdefault(name, []).append(unique)
    return tuple(documents), tuple(map(tuple, relevant.values())), any_marked


def _name(record: Record, name: object, position: int) -> str:
    if not isinstance(name, str) or not name:
        raise record.fault(f"haystack_session_ids[{position}]", kind(name), "an id")
    return record.inner({"id": name}, f"haystack_session_ids[{position}]").name("id")


def _document(
    record: Record, name: str, user: str, turns: list[Record], position: int, as_pbr: bool
) -> Document:
    contents = [turn.text("content") for turn in turns]
    text = " ".join(contents)
    field = f"haystack_dates[{position}]"
    dated = record.inner({field: record.items("haystack_dates")[position]}, "")
    date = dated.text(field) if dated.has(field) else ""
    fields = {"text": text, "date": date}
    begin = () if as_pbr else begins(contents)
    if as_pbr:  # what prompts of answers show stays the plain text, in fields
        text = json.dumps({"date": date, "conversation": contents}, separators=(",", ":"))
    return Document(id=name, user_id=user, text=text, fields=fields, turns=begin, **dated.dates(field))


READERS = {
    "longmemeval": Reader(
        expected="a LongMemEval JSON file, or a folder of such files, whose stems name the splits",
        layout=json_files,
        examples=_examples,
        forms=("official", "pbr"),
        question_users=True,
    )
}

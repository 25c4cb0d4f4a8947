"""LUCid: which of a user's sessions tells what a question leaves unsaid; one JSON file is a split.

Okite et al., "LUCid: Redefining Relevance For Lifelong Personalization", 2026,
https://arxiv.org/abs/2604.26996, in the schema of https://github.com/MichiganNLP/LUCid. A question is a user
with a history of chat sessions. A document is a session, its text the user's turns joined by a space, or
with `benchmark.form turns` a turn of the user. The sessions in `answer_session_ids` are relevant; of turns
those in them that carry `has_answer`. Nothing is dated.

The release has no reference answers and none to choose from: its judge says which category an answer suits.
So targets are withheld, and questions are scored by the evidence found.
"""

from collections.abc import Iterator
from pathlib import Path

from pbr_jax.base.types import Document, Example
from pbr_jax.data import json_stream, users
from pbr_jax.data.conversations import begins
from pbr_jax.data.records import Note, Record, kind
from pbr_jax.options import Benchmark

BENCHMARKS = {"lucid": "lucid"}
FORMS = ("official", "turns")


def expected(benchmark: Benchmark) -> str:
    """What the root should hold, for error messages."""
    return "a LUCid JSON file (lucid_s.json), or a folder of such files, whose stems name the splits"


def splits(benchmark: Benchmark) -> tuple[str, ...]:
    """The stems of the JSON files."""
    return tuple(path.stem for path in _files(benchmark))


def files(benchmark: Benchmark) -> tuple[Path, ...]:
    """The one file of the split."""
    return tuple(path for path in _files(benchmark) if path.stem == benchmark.split)


def question_users(benchmark: Benchmark) -> bool:
    """True: every question is a user by itself."""
    return True


def examples(benchmark: Benchmark, note: Note) -> Iterator[Example]:
    """The questions in file order, one at a time."""
    seen: set[str] = set()
    for path in files(benchmark):
        for record in json_stream.records(path):
            name = record.name("query_id")
            if name in seen:
                raise record.fault("query_id", f"the id {name!r} a second time", "unique ids")
            seen.add(name)
            user = users.of_question(record, "query_id", benchmark)
            yield _example(record, name, user, note, turns=benchmark.form == "turns")


def _files(benchmark: Benchmark) -> list[Path]:
    root = Path(benchmark.root)
    return [root] if root.is_file() else sorted(root.glob("*.json"))


def _example(record: Record, name: str, user: str, note: Note, *, turns: bool) -> Example:
    question = record.text("query")
    documents, relevant = _history(record, user, note, turns)
    return Example(
        id=name,
        user_id=user,
        query=question,
        input=question,
        target=None,
        profile=documents,
        relevant=relevant,
        category=record.text("query_dimension"),
        scored=bool(relevant),
    )


def _history(
    record: Record, user: str, note: Note, turns: bool
) -> tuple[tuple[Document, ...], tuple[tuple[str, ...], ...]]:
    """The documents in file order, and the groups of relevant ones.

    A session id that occurs again gets a suffix ("id#2"); the occurrences are alternatives of one another.
    """
    names, sessions = record.names("haystack_session_ids"), record.items("haystack_sessions")
    if len(names) != len(sessions):
        found = f"{len(names)} ids and {len(sessions)} sessions"
        raise record.fault("haystack_sessions", found, "equally many of each")
    answers = dict.fromkeys(record.names("answer_session_ids"))
    if lacking := [name for name in answers if name not in names]:
        place = f"{record.file}: {record.label}, field 'answer_session_ids'"
        note(f"{place}: {lacking[0]!r:.60} is no session of the history, left out")
    documents: list[Document] = []
    relevant: dict[str, list[str]] = {}
    seen: set[str] = set()
    for position, name in enumerate(names):
        unique, said = users.unique(name, seen), _said(record, sessions[position], position)
        if turns:
            documents += [Document(f"{unique}_{i}", user, text) for i, (text, _) in enumerate(said)]
            held = [f"{unique}_{i}" for i, (_, marked) in enumerate(said) if marked]
            keys = [f"{name}_{id.removeprefix(unique)}" for id in held]
        else:
            texts = [text for text, _ in said]
            documents.append(Document(unique, user, " ".join(texts), turns=begins(texts)))
            held, keys = [unique], [name]
        if name in answers:
            for key, id in zip(keys, held, strict=True):
                relevant.setdefault(key, []).append(id)
    return tuple(documents), tuple(map(tuple, relevant.values()))


def _said(record: Record, session: object, position: int) -> list[tuple[str, bool]]:
    """The user's turns of a session, and whether each is marked as evidence."""
    field = f"haystack_sessions[{position}]"
    if not isinstance(session, list):
        raise record.fault(field, kind(session), "a list of turns")
    turns = [record.inner(turn, f"{field}[{number}]") for number, turn in enumerate(session)]
    return [
        (turn.text("content"), bool(turn.values.get("has_answer")))
        for turn in turns
        if turn.text("role") == "user"
    ]

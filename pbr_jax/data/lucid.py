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

from pbr_jax.base.types import Document, Example
from pbr_jax.data import json_stream, users
from pbr_jax.data.conversations import begins, user_turns
from pbr_jax.data.reader import Reader, json_files, named
from pbr_jax.data.records import Note, Record
from pbr_jax.options import Benchmark


def _examples(benchmark: Benchmark, note: Note) -> Iterator[Example]:
    (path,) = json_files(benchmark)[benchmark.split]
    for name, record in named(json_stream.records(path), "query_id"):
        user = users.of_question(record, "query_id", benchmark)
        yield _example(record, name, user, note, turns=benchmark.form == "turns")


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
        unique, heard = users.unique(name, seen), user_turns(record, sessions[position], position)
        said = [(turn.text("content"), bool(turn.values.get("has_answer"))) for turn in heard]
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


READERS = {
    "lucid": Reader(
        expected="a LUCid JSON file (lucid_s.json), or a folder of such files, whose stems name the splits",
        layout=json_files,
        examples=_examples,
        forms=("official", "turns"),
        question_users=True,
    )
}

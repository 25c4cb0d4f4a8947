"""REALTALK: seven chats of seven people over three weeks: questions about them, and a person's next message.

Lee et al., "REALTALK: A 21-Day Real-World Dataset for Long-Term Conversation", 2025,
https://arxiv.org/abs/2502.13270, as released at https://github.com/danny911kr/REALTALK. All chats under the
root are one split, `all`.

`realtalk` is memory probing: a chat is the user, and the unit, of all questions about it. A document is a
session of both people, or with `benchmark.form turns` a message. Questions come after the last session. The
sessions of a file are numbered anew where they were divided, but the ids of turns are not: "D3:30" may stand
in session_4. An id is unique in its file, so evidence is found by it. Questions whose evidence names no turn
are not scored.

`realtalk_persona` is persona simulation: a person is the user. A question is a message that answers the other
person: the last `_CONTEXT` messages of the session before it are shown. The history is what the person wrote
in both chats before that session began, a message a document.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pbr_jax.base.types import Document, Example
from pbr_jax.data import conversations, json_stream, users
from pbr_jax.data.conversations import Session, Turn
from pbr_jax.data.reader import Reader
from pbr_jax.data.records import Note, Record
from pbr_jax.options import Benchmark

CATEGORIES = {1: "multi_hop", 2: "temporal", 3: "commonsense"}

_CONTEXT = 8  # messages shown before the answer: four of five such inputs fit gamma * 512 tokens


class _Chat(NamedTuple):
    """A file's record and sessions, and its stem."""

    name: str
    record: Record
    sessions: tuple[Session, ...]


def _chats(benchmark: Benchmark) -> dict[str, tuple[Path, ...]]:
    """All chats, as one split, where there are any."""
    root = Path(benchmark.root)
    paths = (root,) if root.is_file() else tuple(sorted(root.glob("Chat_*.json")))
    return {"all": paths} if paths else {}


def _examples(benchmark: Benchmark, note: Note) -> Iterator[Example]:
    """The questions, chat by chat; or the messages that answer, person by person within a chat."""
    persona = benchmark.name == "realtalk_persona"
    chats = (_read(path, benchmark) for path in _chats(benchmark)["all"])
    if persona:
        yield from _messages(list(chats), benchmark)
        return
    turns = benchmark.form == "turns"
    for chat in chats:
        asked = chat.record, chat.sessions, chat.name, CATEGORIES
        yield from conversations.questions(*asked, note, turns=turns)


def _read(path: Path, benchmark: Benchmark) -> _Chat:
    record = json_stream.load(path)
    users.of_person(Record({"name": path.stem}, path), "name", benchmark)
    names = record.record("name")
    people = {_person(names, key) for key in ("speaker_1", "speaker_2")}
    found = conversations.sessions(record, "clean_text")
    for turn in (turn for session in found for turn in session.turns):
        if _person(turn.record, "speaker") not in people:
            wanted = f"one of {' and '.join(sorted(people))}, whom 'name' names"
            raise turn.record.fault("speaker", f"{turn.speaker!r:.60}", wanted)
    return _Chat(path.stem, record, found)


def _person(record: Record, key: str) -> str:
    """A person's name as one and the same in all chats: the release writes "Elise" and "elise"."""
    return record.name(key).casefold()


def _messages(chats: Sequence[_Chat], benchmark: Benchmark) -> Iterator[Example]:
    written: dict[str, list[Document]] = {}
    for chat in chats:
        for turn in (turn for session in chat.sessions for turn in session.turns if turn.text):
            document = _message(turn, chat.name, benchmark)
            written.setdefault(document.user_id, []).append(document)
    for chat in chats:
        for session in chat.sessions:
            began = min(_moment(turn) for turn in session.turns)
            earlier = {
                person: tuple(d for d in documents if d.time is not None and d.time < began)
                for person, documents in written.items()
            }
            for place in range(1, len(session.turns)):
                yield from _answer(chat.name, session.turns[: place + 1], earlier)


def _message(turn: Turn, chat: str, benchmark: Benchmark) -> Document:
    person = Record({"speaker": _person(turn.record, "speaker")}, turn.record.file, path=turn.record.path)
    return Document(
        id=f"{chat}_{turn.id}",
        user_id=users.of_person(person, "speaker", benchmark),
        text=turn.text,
        fields={"date": turn.record.text("date_time")},
        time=_moment(turn),
    )


def _moment(turn: Turn) -> float:
    if (moment := turn.record.time("date_time")) is None:
        raise turn.record.fault("date_time", "no date", "the moment of the message")
    return moment


def _answer(chat: str, turns: Sequence[Turn], earlier: dict[str, tuple[Document, ...]]) -> Iterator[Example]:
    """The last of the turns as a question, if it answers the other person and its person has a history."""
    *shown, last = turns[-_CONTEXT - 1 :]
    person = _person(last.record, "speaker")
    heard = [turn.line for turn in _trailing(shown, last.speaker)]
    if not last.text or not heard or not (history := earlier.get(person)):
        return
    lines = [turn.line for turn in shown]
    yield Example(
        id=f"{chat}_{last.id}",
        user_id=person,
        query="\n".join(heard),
        input="\n".join([*lines, f"What {last.speaker} writes next:"]),
        target=last.text,
        profile=history,
        time=_moment(last),
        unit=person,
    )


def _trailing(turns: Sequence[Turn], speaker: str) -> list[Turn]:
    """The turns at the end that others than the speaker say."""
    own = [place for place, turn in enumerate(turns) if turn.speaker == speaker]
    return list(turns[own[-1] + 1 :] if own else turns)


_READER = Reader(
    expected="REALTALK's folder of chats, Chat_1_Emi_Elise.json and so on, or one of them",
    layout=_chats,
    examples=_examples,
    forms=("official", "turns"),
)
READERS = {"realtalk": _READER, "realtalk_persona": _READER}

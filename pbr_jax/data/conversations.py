"""Conversations in sessions, as LoCoMo and REALTALK release them: turns, documents, evidence.

A JSON object holds the sessions, `session_1`, `session_2`, ..., each a list of turns, and their dates,
`session_1_date_time`, .... A turn has the id that evidence names: "D1:3".
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from pbr_jax.base.types import SPEAKERS, Document, Example
from pbr_jax.data.records import Note, Record, kind, moment_after

_SESSION = re.compile(r"session_([0-9]{1,9})")
_ID = re.compile(r"D:?([0-9]{1,9})[:;]([0-9]{1,9})")  # D1:3; also D:11:26, D17;39 and D30:05


class Turn(NamedTuple):
    """What one speaker says. `line` is "Speaker: text" in one line, the caption of a picture behind it."""

    id: str
    speaker: str
    text: str
    line: str
    picture: bool
    record: Record


class Session(NamedTuple):
    """The turns of one sitting, at least one. `date` is the field of `record` that dates it."""

    name: str
    date: str
    turns: tuple[Turn, ...]
    record: Record


def sessions(record: Record, text: str) -> tuple[Session, ...]:
    """The sessions that hold turns, in the order of their numbers; field `text` of a turn is what is said.

    Raises UserError for malformed turns, and for an id that two turns of the conversation bear.
    """
    numbers = sorted(int(match[1]) for key in record.values if (match := _SESSION.fullmatch(key)))
    seen: set[tuple[int, int]] = set()
    found = []
    for name in (f"session_{number}" for number in numbers):
        if turns := tuple(_turn(turn, text, seen) for turn in record.records(name)):
            found.append(Session(name, f"{name}_date_time", turns, record))
    return tuple(found)


def _turn(record: Record, text: str, seen: set[tuple[int, int]]) -> Turn:
    id = record.name("dia_id")
    if not (match := _ID.fullmatch(id)):
        raise record.fault("dia_id", f"{id!r:.60}", "an id such as D1:3")
    if (place := _place(match)) in seen:
        raise record.fault("dia_id", f"the id {id!r} a second time", "ids that are unique in a conversation")
    seen.add(place)
    speaker = record.name("speaker")
    caption = record.text("blip_caption").strip() if record.has("blip_caption") else ""
    said = record.text(text).strip()
    shared = f"{said} and shared {caption.rstrip('.')}." if caption else said
    picture = bool(caption) or any(bool(record.values.get(key)) for key in ("img_file", "img_url"))
    return Turn(id, speaker, said, " ".join(f"{speaker}: {shared}".split()), picture, record)


def _place(match: re.Match[str]) -> tuple[int, int]:
    return int(match[1]), int(match[2])


def documents(found: Sequence[Session], user: str, *, turns: bool) -> tuple[Document, ...]:
    """A document for each session, a turn a line; or for each turn. An id begins with the user's name."""
    return tuple(d for session in found for d in (_of_turns if turns else _whole)(session, user))


def _whole(session: Session, user: str) -> Iterator[Document]:
    lines = [turn.line for turn in session.turns]
    yield Document(
        id=f"{user}_{session.name}",
        user_id=user,
        text="\n".join(lines),
        fields=_fields(session.record, session.date, session.turns),
        turns=begins(lines),
        **session.record.dates(session.date),
    )


def _of_turns(session: Session, user: str) -> Iterator[Document]:
    for turn in session.turns:
        record, date = session.record, session.date
        if turn.record.has("date_time"):
            record, date = turn.record, "date_time"
        yield Document(
            id=f"{user}_{turn.id}",
            user_id=user,
            text=turn.line,
            fields=_fields(record, date, session.turns),
            **record.dates(date),
        )


def _fields(record: Record, key: str, turns: Sequence[Turn]) -> dict[str, str]:
    date = {"date": record.text(key)} if record.has(key) else {}
    return date | {SPEAKERS: ", ".join(sorted({turn.speaker for turn in turns}))}


def category(record: Record, names: Mapping[int, str]) -> str:
    """The word for the number in field `category`."""
    number = record.value("category")
    if isinstance(number, bool) or not isinstance(number, int) or number not in names:
        raise record.fault("category", f"{number!r:.60}", f"one of {', '.join(map(str, names))}")
    return names[number]


class Evidence:
    """What a question's evidence names, as groups of alternative documents (`Example.relevant`).

    A number that no turn bears was a picture or a turn that the release left out. Its session is that of the
    turns with the nearest numbers. At the level of turns, REALTALK shows such a picture with the message
    before or after it: those of the two that carry a picture are alternatives.
    """

    def __init__(self, found: Sequence[Session], user: str, *, turns: bool) -> None:
        self._user, self._turns = user, turns
        self._of: dict[int, dict[int, tuple[Session, Turn]]] = {}
        for session in found:
            for turn in session.turns:
                day, number = _place(_ID.fullmatch(turn.id))  # type: ignore[arg-type]
                self._of.setdefault(day, {})[number] = (session, turn)

    def groups(self, record: Record, note: Note) -> tuple[tuple[str, ...], ...]:
        """Of the field `evidence`, texts with any number of ids each; what names nothing is noted."""
        found: dict[tuple[str, ...], None] = {}
        for position, item in enumerate(record.items("evidence")):
            text = record.inner({"": item}, f"evidence[{position}]").text("")
            groups = [self._group(*_place(match)) for match in _ID.finditer(text)]
            found |= dict.fromkeys(filter(None, groups))
            if not groups or not all(groups) or re.search("[A-Za-z0-9]", _ID.sub("", text)):
                place = f"{record.label}, ".removeprefix(", ") + f"field '{record.path}.evidence[{position}]'"
                note(f"{record.file}: {place}: {text!r:.60} names a turn that is not there, left out")
        return tuple(found)

    def _group(self, day: int, number: int) -> tuple[str, ...]:
        turns = self._of.get(day, {})
        if number in turns:
            near = [turns[number]]
        else:
            before = max((n for n in turns if n < number), default=None)
            after = min((n for n in turns if n > number), default=None)
            near = [turns[n] for n in (before, after) if n is not None]
            if self._turns:
                near = [(s, turn) for s, turn in near if turn.picture and None not in (before, after)]
        names = (turn.id if self._turns else session.name for session, turn in near)
        return tuple(dict.fromkeys(f"{self._user}_{name}" for name in names))


def questions(
    record: Record,
    found: Sequence[Session],
    user: str,
    categories: Mapping[int, str],
    note: Note,
    *,
    turns: bool,
) -> Iterator[Example]:
    """The questions in field `qa`, after the last session of a conversation, which is their user and unit.
    Those without evidence are not scored, and adversarial ones have no target."""
    history, evidence = documents(found, user, turns=turns), Evidence(found, user, turns=turns)
    for number, question in enumerate(record.records("qa")):
        word = category(question, categories)
        text, relevant = question.text("question"), evidence.groups(question, note)
        yield Example(
            id=f"{user}_{number}",
            user_id=user,
            query=text,
            input=text,
            target=None if word == "adversarial" else question.text("answer"),
            profile=history,
            time=moment_after(history),
            relevant=relevant,
            category=word,
            scored=bool(relevant),
            unit=user,
        )


def user_turns(record: Record, session: object, position: int) -> list[Record]:
    """The user's turns of a session of chat that stands at `haystack_sessions[position]`."""
    field = f"haystack_sessions[{position}]"
    if not isinstance(session, list):
        raise record.fault(field, kind(session), "a list of turns")
    turns = [record.inner(turn, f"{field}[{number}]") for number, turn in enumerate(session)]
    return [turn for turn in turns if turn.text("role") == "user"]


def begins(parts: Sequence[str]) -> tuple[int, ...]:
    """Where each part begins in the parts joined by one character (`Document.turns`)."""
    return tuple(accumulate((len(part) + 1 for part in parts[:-1]), initial=0)) if parts else ()

"""Chats as a table: a conversation in each record, or a message in each row.

A conversation is a list of messages as OpenAI (chat and responses), Anthropic, Gemini or ShareGPT write it. A
row of a message names its conversation, role and text. Every question that is answered becomes a row: what
the user said, and what the assistant said until the user spoke again, after its last call of a tool. All
other messages are counted as left out.

The `user`, else the id of the conversation, else the place in the file, says whose history it is. A row has
the date of the question, else that of the record. A conversation that is a history by itself has no date of
the record: it would be that of all its rows, none of which were earlier then.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pbr_jax.data.dates import parse_interval
from pbr_jax.data.records import RecordError, caught, kind
from pbr_jax.importing.left_out import LeftOut

_LISTS = ("messages", "conversations", "conversation", "contents", "chat_messages", "turns", "items")
_ROLES = ("role", "from", "sender", "author", "speaker")
_TEXTS = ("content", "value", "text", "parts", "message")
_USERS = ("user", "user_id", "userid", "username", "customer", "customer_id", "user.id")
_CONVERSATIONS = ("conversation", "conversation_id", "chat_id", "thread_id", "session_id", "dialogue_id")
_OWN = (*_CONVERSATIONS, "id")
_TIMES = ("created", "created_at", "create_time", "time", "timestamp", "date", "datetime", "sent", "sent_at")
_SPEAKERS = {
    "user": ("user", "human", "prompter", "customer"),
    "assistant": ("assistant", "ai", "model", "gpt", "chatgpt", "bot", "chatbot", "agent"),
    "instructions": ("system", "developer", "instructions", "reasoning"),
}
_TOOL = ("tool", "function", "_call", "observation", "ipython")  # parts of the names of a tool's roles
_REASONS = {
    "instructions": "messages with instructions or reasoning",
    "tool": "messages of a tool or that call one",
    "": "messages of a role that is neither a user's nor an assistant's",
}
Placed = tuple[Mapping[str, Any], str]
"""A record or a row, and where it stands."""


class _Message(NamedTuple):
    """A message. `speaker`: a key of `_SPEAKERS`, "tool" or, for any other role, "". `others`: how many
    parts of it are no text."""

    speaker: str
    text: str
    time: Any
    place: str
    others: int


class _Turn:
    """The open turn of a conversation: what the user asked, and what the assistant has said since.

    `about`: what its row says beside. `place`: where the row stands. `moment`: the time of the last message.
    """

    def __init__(self, left_out: LeftOut) -> None:
        self.left_out, self.moment, self.place = left_out, -math.inf, ""
        self.about: dict[str, Any] = {}
        self._asked: list[_Message] = []
        self._said: list[_Message] = []

    def rows(self, message: _Message, about: dict[str, Any], place: str) -> Iterator[Placed]:
        """Adds a message. Yields the row of the turn that it ends: one with an answer, or another user's."""
        if message.speaker == "tool":
            self._leave("messages of the assistant before it called a tool", self._said)
        if message.speaker in _REASONS:
            self._leave(_REASONS[message.speaker], [message])
        elif not message.text:
            self._leave("messages without text", [message])
        elif message.speaker == "user":
            if self._said or about != self.about:
                yield from self.end()
            self._asked.append(message)
            self.about, self.place = about, place
        elif self._asked:
            self._said.append(message)
        else:
            self._leave("messages of the assistant that answer nothing", [message])

    def end(self) -> Iterator[Placed]:
        """The row of the turn, if it has an answer, and its place."""
        if self._said:
            times = (message.time for message in (*reversed(self._asked), *self._said))
            time = next(({"time": time} for time in times if time is not None), {})
            asked, said = ("\n".join(message.text for message in of) for of in (self._asked, self._said))
            yield {**self.about, **time, "input": asked, "output": said}, self.place
            for message in (*self._asked, *self._said):
                for _ in range(message.others):
                    self.left_out.add("parts of messages that are no text, such as pictures", message.place)
            self._asked, self._said = [], []
        else:
            self._leave("messages of the user that have no answer", self._asked)

    def _leave(self, reason: str, messages: list[_Message]) -> None:
        for message in messages:
            self.left_out.add(reason, message.place)
        messages.clear()


def rows(records: Iterable[Placed], left_out: LeftOut) -> Iterator[Placed]:
    """The rows of all conversations; a record that is no chat is a row as it is.

    Messages without a role or a text, and those of a table that are out of order, are faults of `left_out`.
    """
    turns: dict[str, _Turn] = {}  # those that are open in a table of messages, by conversation
    for record in records:
        found: Iterable[Placed] = [record]
        if (messages := _messages(record[0])) is not None:
            found = _of_conversation(record, messages, _Turn(left_out))
        elif turns or _is_message(record[0]):
            found = _of_message(record, turns, left_out)
        with caught(left_out.fault):
            yield from list(found)
    for turn in turns.values():
        yield from turn.end()


def _of_conversation(record: Placed, messages: Mapping[str, Any], turn: _Turn) -> Iterator[Placed]:
    values, place = record
    if not messages:
        turn.left_out.add("conversations without messages", place)
    user, time = _cell(values, _USERS), _cell(values, _TIMES)
    if user is None:
        user, time = _first(values, _OWN, Path(place).name), None
    used = {*_USERS, *_OWN, *_TIMES, *(path.partition("[")[0] for path in messages)}
    others = {name: values[name] for name in values if name not in used and _listed(values[name]) is None}
    about = {"user": user} | ({} if time is None else {"time": time}) | others
    for path, message in messages.items():
        yield from turn.rows(_message(message, f"{place}, {path}"), about, place)
    yield from turn.end()


def _of_message(record: Placed, turns: dict[str, _Turn], left_out: LeftOut) -> Iterator[Placed]:
    values, place = record
    if (conversation := _first(values, _CONVERSATIONS)) is None:
        left_out.add("messages without a conversation", place)
        return
    message = _message(values, place)
    turn = turns.setdefault(str(conversation), _Turn(left_out))
    moment, _ = parse_interval(str(message.time)) or (turn.moment, None)
    if moment < turn.moment:
        told = (
            f": found {str(message.time)!r:.40}, wanted no earlier time than that of the message before in "
            f"conversation {conversation!r:.40}; sort the table by time"
        )
        raise RecordError(place, told, "messages that are earlier than the one before")
    turn.moment = moment
    user = _cell(values, _USERS, turn.about.get("user", conversation))
    yield from turn.rows(message, {"user": user}, place)


def _is_message(values: Mapping[str, Any]) -> bool:
    """Whether a row is a message of a conversation."""
    role = values.get("role")
    named = [any(name in values for name in names) for names in (_CONVERSATIONS, _TEXTS)]
    return isinstance(role, str) and bool(_speaker(role)) and all(named)


def _messages(values: Mapping[str, Any]) -> dict[str, Any] | None:
    """The messages of a record by their place in it; None where it is no conversation."""
    lists = {name: items for name in values if (items := _listed(values[name])) is not None}
    known = ("messages", *(() if lists.get("conversations") else ("conversations",)))
    names = [name for name in lists if name in _LISTS and (name in known or any(map(_role, lists[name][:1])))]
    names = names[:1]
    said = lists.get("output")
    if not names and said and isinstance(said[0], Mapping) and "type" in said[0]:
        names = ["input", "output"]
        if isinstance(asked := values.get("input"), str):
            lists["input"] = [{"role": "user", "content": asked}]
    found = {f"{name}[{at}]": one for name in names for at, one in enumerate(lists.get(name, []))}
    return found if names else None


def _message(values: Any, place: str) -> _Message:
    role = _role(values) or (values.get("type") if isinstance(values, Mapping) else None)
    if not isinstance(role, str):
        told = f": found {kind(values)} without a role, wanted role and content; correct it"
        raise RecordError(place, told, "records with a message without a role")
    speaker = _speaker(role)
    text, calls, others = _text(_first(values, _TEXTS), place, speaker)
    calls = calls or any(_filled(values.get(name)) for name in ("tool_calls", "function_call"))
    if calls and (speaker == "assistant" or not text):
        speaker = "tool"
    place += "" if speaker else f", role {role!r:.40}"
    return _Message(speaker, text, _first(values, _TIMES), place, others)


def _role(message: Any) -> Any:
    return _first(message, _ROLES) if isinstance(message, Mapping) else None


def _speaker(role: str) -> str:
    """Who speaks, of a role's name: a key of `_SPEAKERS`, "tool" or ""."""
    name = role.strip().lower()
    tool = "tool" if any(part in name for part in _TOOL) else ""
    return next((speaker for speaker, names in _SPEAKERS.items() if name in names), tool)


def _text(content: Any, place: str, speaker: str) -> tuple[str, bool, int]:
    """A message's text, whether it calls a tool or holds the result of one, and how many of its parts are
    neither. What an assistant says before a call is not its answer."""
    if content is None or isinstance(content, str):
        return (content or "").strip(), False, 0
    if (parts := _listed(content)) is None:
        told = f": found {kind(content)} as content, wanted a text or a list of parts; correct it"
        raise RecordError(place, told, "records with a message without a text")
    texts: list[str] = []
    calls, others = False, 0
    for part in parts:
        named = part if isinstance(part, Mapping) else {"text": part}
        text, of = named.get("text"), named.get("type")
        if isinstance(text, str) and of in ("text", "input_text", "output_text", None):
            texts.append(text)
        elif "tool" in map(_speaker, (str(of), *filter(lambda name: _filled(named[name]), named))):
            texts, calls = ([] if speaker == "assistant" else texts), True
        else:
            others += _filled(part)
    return "\n".join(texts).strip(), calls and not texts, others


def _cell(values: Mapping[str, Any], names: Sequence[str], default: Any = None) -> Any:
    """The value of the first of these names that has one in a record, or else in its metadata."""
    cells = {name: value for name, value in values.items() if not isinstance(value, Mapping)}
    return _first(cells, (*names, *(f"metadata.{name}" for name in names)), default)


def _first(values: Mapping[str, Any], names: Iterable[str], default: Any = None) -> Any:
    """The value of the first of these names that has one."""
    return next((values[name] for name in names if _filled(values.get(name))), default)


def _filled(value: Any) -> bool:
    """Whether a value says something; frames and Parquet write what is missing in several ways."""
    if isinstance(value, Mapping):
        return any(map(_filled, value.values()))
    if (items := _listed(value)) is not None:
        return bool(items)
    return bool(value.strip()) if isinstance(value, str) else str(value) not in ("None", "nan", "NaT", "<NA>")


def _listed(value: Any) -> list[Any] | None:
    """A list, tuple or array as a list; None for anything else."""
    return list(value) if isinstance(value, list | tuple | np.ndarray) else None

"""What `System.add` takes beside documents: texts, records and messages of a chat."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from pbr_jax.base.types import Document, UserError
from pbr_jax.data.dates import parse_interval
from pbr_jax.llm.protocol import brief, check_text

Time = float | str | datetime | None
"""Seconds since 1970, a date such as "2018-03-07", or None for no date."""

_OWN = ("id", "text", "fields", "time")  # keys of a record that are not fields of the document


def document_of(entry: str | Mapping[str, Any], user: str, time: Time, what: str) -> Document:
    """The document of a text or a record; its id is the hash of its content, unless the record gives one.

    A record has the keys of a line in `documents.jsonl`: `text`, `fields`, `id` and `time`, all optional.
    Texts under other keys, such as "question" and "answer", are fields too. Without `text`, the document's
    text is that of all fields.
    """
    if isinstance(entry, str):
        id = hashlib.sha256(entry.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        return Document(id, user, entry, shared=not user, **_moments(time, what))
    fields = entry.get("fields", {})
    if not isinstance(fields, Mapping):
        raise UserError(f"the fields of {what} is {brief(fields)}, want texts by their names")
    fields = {**fields, **{name: value for name, value in entry.items() if name not in _OWN}}
    for name, value in fields.items():
        check_text(value, f"{name!r} of {what}")
    text = entry.get("text", "\n".join(fields.values()))
    if "time" in entry:
        time = entry["time"]
    known = json.dumps([text, fields, str(time)]).encode()
    id = entry.get("id", hashlib.sha256(known).hexdigest()[:16])
    return Document(id, user, text, {"text": text, **fields}, shared=not user, **_moments(time, what))


def exchanges(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """The messages of a chat as texts: a user's message and the answers to it, each with its role."""
    found: list[list[str]] = []
    for place, message in enumerate(messages):
        for name in ("role", "content"):
            check_text(message[name], f"the {name} of messages[{place}]")
        if message["content"].strip():
            if message["role"] == "user" or not found:
                found.append([])
            found[-1].append(f"{message['role']}: {message['content'].strip()}")
    return ["\n".join(lines) for lines in found]


def are_messages(entries: Sequence[Any]) -> bool:
    """Whether these are messages of a chat: all have a role and a content."""
    return bool(entries) and all(isinstance(e, Mapping) and {"role", "content"} <= {*e} for e in entries)


def _moments(time: Time, what: str) -> dict[str, Any]:
    """The first and the last moment of a date, as fields of a document."""
    if isinstance(time, datetime):
        return {"time": time.timestamp()}
    if not isinstance(time, str):
        return {"time": time}
    if (found := parse_interval(time)) is None:
        raise UserError(f"the time of {what} is {brief(time)}, want a date such as 2018-03-07")
    first, last = found
    return {"time": first, "until": None if first == last else last}

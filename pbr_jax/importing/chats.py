"""Chats as a table: conversations in OpenAI's format, each a list of `messages` with `role` and `content`.

Every message of the user that is answered is a row: what the user asked, and the answer. A record's `user`,
else its `id`, else its place in the file, says whose history it is, and `created` when it was. A conversation
that is a history by itself has no date: it would be that of all its rows, none of which were earlier then.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pbr_jax.base.types import UserError
from pbr_jax.data.records import kind
from pbr_jax.importing.left_out import LeftOut

_USERS, _OWN = ("user", "user_id"), ("id", "conversation_id")
_TIMES = ("created", "created_at", "create_time", "time")


def is_chat(values: Mapping[str, Any]) -> bool:
    """Whether a record is a conversation."""
    return isinstance(values.get("messages"), list)


def rows(values: Mapping[str, Any], place: str, left_out: LeftOut) -> Iterator[dict[str, Any]]:
    """The rows of a conversation. Raises UserError for messages without a role or a text."""
    user, time = _first(values, _USERS), _first(values, _TIMES)
    if user is None:
        user, time = _first(values, _OWN), None
    user = place.rpartition(": ")[2] if user is None else user
    asked = ""
    for number, message in enumerate(values["messages"]):
        at = f"{place}, messages[{number}]"
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise UserError(
                f"{at}: found {kind(message)} without a role, wanted role and content; correct it"
            )
        text = _text(message.get("content"), at)
        if message["role"] == "user":
            asked = f"{asked}\n{text}".strip()
        elif message["role"] == "assistant" and asked and text:
            yield {"user": user, "input": asked, "output": text, **({} if time is None else {"time": time})}
            asked = ""


def _first(values: Mapping[str, Any], names: Iterable[str]) -> Any:
    """The value of the first of these names that has one."""
    return next((values[name] for name in names if values.get(name) is not None), None)


def _text(content: Any, place: str) -> str:
    """A message's text; of a list its text parts, and nothing of a call of a tool."""
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise UserError(
            f"{place}: found {kind(content)} as content, wanted a text or a list of parts; correct it"
        )
    parts = [part.get("text") for part in content if isinstance(part, Mapping) and part.get("type") == "text"]
    return "\n".join(part for part in parts if isinstance(part, str))

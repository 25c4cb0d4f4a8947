"""Mail as a table: the messages of an mbox file, a row each.

The user is the sender, the output the text that the sender wrote, without what it quotes. The input is the
text that it answers, where that message is in the file, or else the subject.
"""

import mailbox
import re
from collections.abc import Iterator
from email.header import decode_header, make_header
from email.message import Message
from email.utils import parseaddr, parsedate_to_datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from pbr_jax.base.types import UserError
from pbr_jax.importing.left_out import LeftOut

_QUOTES = re.compile(r"^(?!>+From )\s*>|^-{2,}\s*Original Message|^On .{5,200} wrote:\s*$", re.IGNORECASE)
_ESCAPED = re.compile(r"^>(?=>*From )", re.MULTILINE)  # by mbox, where a message begins "From "
_ROUND = re.compile(r"^(?:(?:re|fwd?|aw|wg)\s*:\s*)+", re.IGNORECASE)


def rows(path: Path, left_out: LeftOut) -> Iterator[tuple[dict[str, Any], str]]:
    """Each message's values, in the order of the file, and its place. Raises UserError for no mbox."""
    with path.open("rb") as file:
        if not (begin := file.read(5)) or begin != b"From ":
            raise UserError(
                f"{path}: found {begin!r} at its start, wanted an mbox file, which begins 'From '"
            )
    box = mailbox.mbox(path, create=False)
    try:
        known = {name: key for key, message in box.iteritems() if (name := str(message["Message-ID"] or ""))}
        for number, (_, message) in enumerate(box.iteritems(), start=1):
            place = f"{path}: message {number}"
            answered = box.get(known.get(str(message["In-Reply-To"] or ""), ""))
            subject = _ROUND.sub("", _decoded(message["Subject"]))
            yield (
                {
                    "user": parseaddr(_decoded(message["From"]))[1].lower(),
                    "time": _time(message, place),
                    "input": (written(answered) if answered is not None else "") or subject,
                    "output": written(message),
                    "subject": subject,
                },
                place,
            )
    finally:
        box.close()


def written(message: Message) -> str:
    """The plain text of a message (of HTML its text), down to what it quotes."""
    parts = [part for part in message.walk() if part.get_content_maintype() == "text"]
    parts = [part for part in parts if part.get_content_disposition() != "attachment"]
    plain = next((part for part in parts if part.get_content_subtype() == "plain"), None)
    chosen = plain if plain is not None else next(iter(parts), None)
    if chosen is None:
        return ""
    payload = chosen.get_payload(decode=True)
    text = _text(payload, chosen.get_content_charset()) if isinstance(payload, bytes) else ""
    lines = (text if chosen is plain else _Text.of(text)).splitlines()
    kept = next((at for at, line in enumerate(lines) if _QUOTES.search(line)), len(lines))
    return re.sub(_ESCAPED, "", "\n".join(lines[:kept])).strip()


def _text(payload: bytes, charset: str | None) -> str:
    """The text of some bytes; as UTF-8 where there is no such character set."""
    try:
        return payload.decode(charset or "utf-8", "replace")
    except (LookupError, ValueError):
        return payload.decode("utf-8", "replace")


def _decoded(header: Any) -> str:
    try:
        return " ".join(str(make_header(decode_header(str(header or "")))).split())
    except (LookupError, UnicodeError, ValueError):
        return str(header)


def _time(message: Message, place: str) -> str:
    try:
        return parsedate_to_datetime(str(message["Date"])).isoformat()
    except ValueError as error:
        raise UserError(
            f"{place}, header 'Date': found {str(message['Date'])!r:.60}, wanted a date such as "
            "'Sat, 3 Feb 2024 14:05:00 +0000'; correct it, or take the message out"
        ) from error


class _Text(HTMLParser):
    """The text of HTML."""

    _HIDDEN = ("script", "style", "head", "blockquote")

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[str] = []
        self._hidden = 0

    @classmethod
    def of(cls, html: str) -> str:
        parser = cls()
        parser.feed(html)
        parser.close()
        return "".join(parser._parts)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self._hidden += tag in self._HIDDEN
        if tag in ("br", "p", "div", "li", "tr"):
            self._parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in self._HIDDEN and self._hidden > 0

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self._parts.append(data)

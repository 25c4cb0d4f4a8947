"""Mail as a table: the messages of mbox files, a row each.

The user is the sender, the output the text that the sender wrote, without what it quotes. The input is the
text that it answers, where that message is in the files, or else the subject.
"""

import mailbox
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from email.header import decode_header, make_header
from email.message import Message
from email.utils import getaddresses, parsedate_to_datetime
from pathlib import Path
from typing import Any

from pbr_jax.base.types import UserError
from pbr_jax.importing.left_out import LeftOut
from pbr_jax.importing.quotes import of_html, own_text, pattern

_ROUND = re.compile(r"^(?:(?:re|fwd?|aw|wg|sv|vs|tr|rv|antw)\s*:\s*)+", re.IGNORECASE)
_ADDRESS = re.compile(r"[^\s<>()\[\]\"',;:]+@[^\s<>()\[\]\"',;:]+")
_DRAFT = pattern("", "drafts", "")
_FOOTER = re.compile(r"\s*_{30,}\s*$", re.MULTILINE)  # begins the part that a mailing list adds


def rows(paths: Sequence[Path], left_out: LeftOut) -> Iterator[tuple[dict[str, Any], str]]:
    """Each message's values, in the order of the files, and its place. Drafts, copies, and messages without a
    sender, a date or a text, are left out. Raises UserError for no mbox."""
    for path in paths:
        with path.open("rb") as file:
            if (begin := file.read(5)) != b"From ":
                raise UserError(
                    f"{path}: found {begin!r} at its start, wanted an mbox file, which begins 'From '"
                )
    with ExitStack() as open_boxes:
        boxes = [open_boxes.enter_context(closing(mailbox.mbox(path, create=False))) for path in paths]
        known: dict[str, tuple[mailbox.mbox, str]] = {}  # where the message of an id stands
        for box in boxes:
            for key, message in box.iteritems():
                if not _is_draft(message) and (name := _id(message)):
                    known.setdefault(name, (box, key))
        taken: set[tuple[str, int]] = set()  # the ids and texts of rows
        for path, box in zip(paths, boxes):
            for number, message in enumerate(box, start=1):
                asked = written(there[0][there[1]]) if (there := known.get(_answered(message))) else ""
                subject = _ROUND.sub("", _decoded(message["Subject"]))
                user, time, text = _sender(message), _time(message), written(message)
                name = _id(message)
                reasons = {
                    "drafts": _is_draft(message),
                    "copies of a message with the same id": (name, hash(text)) in taken,
                    "messages without the address of a sender": not user,
                    "messages without a date that can be read": not time,
                    "messages without a text of their own": not text,
                    "messages that answer nothing in the file and have no subject": not (asked or subject),
                }
                place = f"{path}: message {number}"
                if reason := next((reason for reason, holds in reasons.items() if holds), None):
                    left_out.add(reason, place)
                    continue
                taken |= {(name, hash(text))} if name else set()
                row = {"user": user, "time": time, "input": asked or subject, "output": text}
                yield {**row, "subject": subject}, place


def _id(message: Message) -> str:
    return next(iter(_ids(message["Message-ID"])), "")


def _answered(message: Message) -> str:
    """The id of the message that this one answers; "" where it names none."""
    return next(iter(_ids(message["In-Reply-To"]) or _ids(message["References"])[-1:]), "")


def _ids(header: Any) -> list[str]:
    return re.findall(r"<[^<>]+>", "".join(str(header or "").split()))


def written(message: Message) -> str:
    """The text that the sender of a message wrote: of plain parts, or else of those in HTML."""
    texts = [text for text in _texts(message) if text]
    return "\n\n".join(texts[:1] + [text for text in texts[1:] if not _FOOTER.match(text)])


def _texts(part: Message) -> list[str]:
    """The own text of every part that is shown; of alternatives that of the plain one."""
    if part.get_content_disposition() == "attachment":
        return []
    kind = part.get_content_type()
    if kind in ("text/plain", "text/html"):
        payload = part.get_payload(decode=True)
        text = _text(payload, part.get_content_charset()) if isinstance(payload, bytes) else ""
        return [own_text(of_html(text) if kind == "text/html" else text)]
    if part.get_content_maintype() != "multipart" or not isinstance(parts := part.get_payload(), list):
        return []
    found = [_texts(inner) for inner in parts if isinstance(inner, Message)]
    if kind == "multipart/alternative":
        return next(filter(any, found), [])
    return [text for texts in found for text in texts]


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


def _sender(message: Message) -> str:
    """The address of the person who wrote a message; "" where none is known.

    Addresses are read before names are decoded, since a name may hold a comma. A mailing list that writes
    its own address as the sender's names the person elsewhere.
    """
    lists = _ADDRESS.findall(str(message["List-Post"] or "").lower())
    names = ("From", "X-Original-From", "X-Original-Sender", "Reply-To")
    found = (address for name in names for address in _addresses(message[name]))
    return next((address for address in found if address not in lists), "")


def _addresses(header: Any) -> list[str]:
    """The addresses in a header, in lower case; those in its decoded text where it is not well formed."""
    found = [address for _, address in getaddresses([" ".join(str(header or "").split())]) if "@" in address]
    text = _decoded(header)
    found = found or re.findall(rf"<\s*({_ADDRESS.pattern})\s*>", text) or _ADDRESS.findall(text)
    return [address.lower() for address in found]


def _is_draft(message: Message) -> bool:
    labels = _decoded(message["X-Gmail-Labels"]).split(",")
    if "T" in str(message["X-Status"]) or message["X-Unsent"] == "1" or "X-Mozilla-Draft-Info" in message:
        return True
    return any(_DRAFT.fullmatch(label.strip()) for label in labels)


def _time(message: Message) -> str:
    """The date of a message in ISO 8601; "" where none can be read."""
    try:
        return parsedate_to_datetime(str(message["Date"] or "")).isoformat()
    except (TypeError, ValueError, OverflowError):
        return ""

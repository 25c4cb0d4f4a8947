"""The key of a server: read from the environment, and kept out of all that is said and written.

A server may repeat what it was sent: in an error, in an answer, in another writing. What is looked for is
the key as it stands, in base64 (at each of its three alignments, in both alphabets) and in hexadecimal
digits, and these also escaped as JSON, HTML or a URL escapes, or broken by white space.
"""

import base64
import html
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import unquote

from pbr_jax.types import UserError

_SHORTEST = 8  # characters; what is shorter ("EMPTY", "none") is no secret, and stands in honest answers
_WINDOW, _OVERLAP = 512 << 10, 64 << 10  # characters: escapes undone take 75 times the memory of a text
_LAYERS = 3  # of escapes around escapes that are undone


def read_key(variable: str) -> str:
    """The key in an environment variable, "" where there is none.

    Raises:
      UserError: it has characters that a header cannot carry.
    """
    key = os.environ.get(variable, "").strip() if variable else ""
    if not (key.isascii() and key.isprintable()):
        del key  # nor does it stand in the traceback's frames
        raise UserError(
            f"the environment variable {variable} holds characters that no key has (a line break, an "
            "accent); set it again"
        )
    return key


def holds(text: str, key: str) -> bool:
    """Whether a text has the key in it, in any of its writings. Keys under 8 characters are none."""
    if len(key) < _SHORTEST:
        return False
    forms = list(_forms(key))
    starts = range(0, max(1, len(text) - _OVERLAP), _WINDOW - _OVERLAP)
    parts = (text[start : start + _WINDOW] for start in starts)
    return any(form in reading for part in parts for reading in _readings(part) for form in forms)


def redact(text: str, key: str) -> str:
    """The text with "[key]" in the key's place; nothing of it where the key stands in another writing."""
    if not key:
        return text
    text = text.replace(key, "[key]")
    return "[words that hold the key]" if holds(text, key) else text


def texts_in(value: Any) -> Iterator[str]:
    """All texts in a JSON value, names included."""
    rest = [value]
    while rest:
        item = rest.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, dict):
            yield from item
            rest += item.values()
        elif isinstance(item, list):
            rest += item


def _forms(key: str) -> Iterable[str]:
    """The key, and what of it any base64 that encloses it shows."""
    raw = key.encode()
    yield from (key, raw.hex(), raw.hex().upper())
    for shift in range(3):  # bytes before it in the first group of three
        whole = base64.b64encode(bytes(shift) + raw).decode()
        # Characters that its neighbours have a part in are left out; each stands for six bits.
        inner = whole[-(-8 * shift // 6) : 8 * (shift + len(raw)) // 6]
        yield from (inner, inner.translate(str.maketrans("+/", "-_")))


def _readings(text: str) -> Iterable[str]:
    """A text as it stands, without its escapes, and without white space too."""
    plain = text
    for _ in range(_LAYERS):
        undone = _unescaped(plain)
        if undone == plain:
            break
        plain = undone
    return {text, plain, "".join(plain.split())}


def _unescaped(text: str) -> str:
    if "\\" in text:
        text = re.sub(r"\\u([0-9a-fA-F]{4})", lambda found: chr(int(found[1], 16)), text)
        text = text.replace("\\/", "/")
    return unquote(html.unescape(text))

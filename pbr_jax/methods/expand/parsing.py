"""Reading what a language model wrote: tolerant of its habits, never guessing.

Models put JSON into fences, explain it, number lists by hand, or are cut off by the token limit. What can
be read is read; otherwise the answer is None, and the caller falls back to the query.
"""

import json
import re

_START = re.compile(r'\[\s*(?=["{])|\{\s*(?=")')  # of a list of texts, or of an object
_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ITEM = re.compile(r"^\s*(?:\d{1,2}[.):]|[-*•])\s+(?P<text>\S.*)$", re.MULTILINE)


def passage(text: str) -> str | None:
    """What was written, without the thinking before it; None where nothing is left."""
    if "</think>" in text:
        text = text.rpartition("</think>")[2]
    elif "<think>" in text:  # cut off while it was still thinking
        return None
    return _unfenced(text).strip() or None


def line(text: str) -> str | None:
    """The first line, without a label before it and quotes around it."""
    body = passage(text)
    if body is None:
        return None
    first = next(line for line in body.splitlines() if line.strip())
    unlabelled = re.sub(
        r"^\s*(?:search |rewritten )?(?:query|question)\s*:\s*", "", first, flags=re.IGNORECASE
    )
    return unlabelled.strip().strip("\"'“”`").strip() or None


def strings(text: str) -> list[str] | None:
    """A list of texts: JSON (also inside an object, a fence, or other text), cut off or not, or a
    numbered list. A string that was cut off is left out. None where there is no list."""
    body = passage(text)
    if body is None:
        return None
    found = _json_list(body)
    if found is None:
        found = _cut_off_list(body)
    if found is None:
        found = [item["text"].strip().strip('"') for item in _ITEM.finditer(body)]
    kept = list(dict.fromkeys(item.strip() for item in found if item.strip()))
    return kept or None


def _unfenced(text: str) -> str:
    """The content of the first ``` fence, closed or not; the text itself where there is none."""
    fence = re.search(r"```[a-zA-Z]*\n?(.*?)(?:```|\Z)", text, re.DOTALL)
    return fence[1] if fence else text


def _json_list(text: str) -> list[str] | None:
    """The strings of the first JSON list, or of the first list in the first JSON object."""
    decoder = json.JSONDecoder(strict=False)  # line breaks inside strings are a model's habit
    for start in (match.start() for match in _START.finditer(text)):
        try:
            value, _ = decoder.raw_decode(text, start)
        except (json.JSONDecodeError, RecursionError):
            continue
        if isinstance(value, dict):
            value = next((inner for inner in value.values() if isinstance(inner, list)), None)
        items = [item for item in map(_text, value or ()) if item is not None]
        if items:
            return items
    return None


def _text(item: object) -> str | None:
    """A list's item as a text; of an object, its texts together ({"query": ..., "passage": ...})."""
    if isinstance(item, str):
        return item
    if isinstance(item, dict):
        return " ".join(value for value in item.values() if isinstance(value, str)) or None
    return None


def _cut_off_list(text: str) -> list[str] | None:
    """The whole strings behind the first `["`, where the list does not end or is not quite JSON."""
    start = re.search(r'\[\s*(?=")', text)
    if start is None:
        return None
    items = [_unescaped(match[1]) for match in _STRING.finditer(text, start.end())]
    return items or None


def _unescaped(text: str) -> str:
    try:
        return json.loads(f'"{text}"', strict=False)
    except json.JSONDecodeError:
        return text

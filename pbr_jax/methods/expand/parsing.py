"""Reading what a language model wrote: tolerant of its habits, never guessing.

Models put JSON into fences, explain it, number lists by hand, or are cut off by the token limit. What can
be read is read; otherwise the answer is None, and the caller falls back to the query.
"""

import ast
import json
import re
import warnings
from collections.abc import Sequence

from pbr_jax.base.words import words
from pbr_jax.models.thinking import after_thinking

_START = re.compile(r'\[\s*(?=["{])|\{\s*(?=")')  # of a list of texts, or of an object
_OPENING = re.compile(r"\[\s*(?=[\"'])")  # of a list of texts alone, as JSON or Python write it
# A text that ends where a list goes on, so that an apostrophe inside single quotes does not end it.
_STRING = re.compile(
    r"""(?P<quote>["'])(?P<text>(?:\\.|[^\\])*?)(?P=quote)(?=\s*(?:[,\]}"']|\Z))""", re.DOTALL
)
_ITEM = re.compile(r"^\s*(?:\d{1,2}[.):]|[-*•])\s+(?P<text>\S.*)$", re.MULTILINE)
_ENDED = re.compile(r"[.!?…][\"'”’)\]]*$")
_COPIED = 0.8  # share of an item's runs of words that stand in one document, from which on it is a copy of it
_RUN = 4  # words


def passage(text: str) -> str | None:
    """What was written, without the thinking before it; None where nothing is left."""
    return _unfenced(after_thinking(text) or "").strip() or None


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


def strings(text: str, *, cut: bool = False) -> list[str] | None:
    """A list of texts: JSON or Python (also inside an object, a fence, or other text), cut off or not, or a
    numbered or bulleted list. None where there is no list.

    A text that was cut off is left out: a string without its end, and the last item of a numbered list if the
    answer was `cut` by the limit of tokens and the item does not end as sentences do.
    """
    body = passage(text)
    if body is None:
        return None
    found = _json_list(body) or _python_list(body) or _cut_off_list(body)
    if found is None:
        found = [item["text"].strip().strip('"') for item in _ITEM.finditer(body)]
        if cut and found and body.endswith(found[-1]) and not _ENDED.search(found[-1]):
            del found[-1]
    kept = list(dict.fromkeys(item.strip() for item in found if item.strip()))
    return kept or None


def is_copy(item: str, documents: Sequence[str]) -> bool:
    """Whether at least 80 % of the item's runs of four words stand in one of the documents, in any case.

    An item of fewer words is one run. An item without words says nothing that is its own.
    """
    own = _runs(item, min(_RUN, len(words(item))))
    if not own:
        return True
    length = len(own[0])
    return any(
        sum(run in known for run in own) >= _COPIED * len(own)
        for known in (set(_runs(document, length)) for document in documents)
    )


def _runs(text: str, length: int) -> list[tuple[str, ...]]:
    """All runs of so many words, in order; none of length 0."""
    found = words(text)
    return [tuple(found[i : i + length]) for i in range(len(found) - length + 1)] if length else []


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


def _python_list(text: str) -> list[str] | None:
    """The strings of the first list as Python writes it, `["it's", 'so']`."""
    for start in (match.start() for match in _OPENING.finditer(text)):
        for end in (match.end() for match in re.finditer(r"\]", text[start:])):
            try:
                with warnings.catch_warnings(action="error"):  # of escapes that Python does not know
                    value = ast.literal_eval(text[start : start + end])
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                continue
            return [item for item in value if isinstance(item, str)] or None
    return None


def _cut_off_list(text: str) -> list[str] | None:
    """The whole strings behind the first `["` or `['`, where the list does not end or is not quite a list."""
    start = _OPENING.search(text)
    if start is None:
        return None
    items = [_unescaped(match["text"], match["quote"]) for match in _STRING.finditer(text, start.end())]
    return items or None


def _unescaped(text: str, quote: str) -> str:
    text = text.replace("\\'", "'")
    inner = text if quote == '"' else text.replace('"', '\\"')
    try:
        return json.loads(f'"{inner}"', strict=False)
    except json.JSONDecodeError:
        return text

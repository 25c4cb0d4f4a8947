"""Stop strings: texts before which an answer ends, wherever its tokens begin and end."""

from collections.abc import Sequence

_UNSETTLED = 4  # last characters of a text that its next token may change: parts of one, spaces before marks


def cut(text: str, stop: Sequence[str]) -> str:
    """The text before the stop string that begins first; all of it where there is none.

    >>> cut("a plum cake. Question: what else?", ["Answer:", " Question:"])
    'a plum cake.'
    """
    return text[: _first(text, stop)]


def settled(text: str, stop: Sequence[str]) -> str:
    """The beginning of this text that `cut` keeps, whatever the text goes on with."""
    return cut(text, stop)[: max(0, len(text) - _UNSETTLED - max(map(len, stop), default=0))]


def is_settled(text: str, stop: Sequence[str]) -> bool:
    """Whether `cut` keeps the same of this text and of all that go on from it.

    So it waits, where one has begun, until a longer one that begins before could have ended.
    """
    first = _first(text, stop)
    return first is not None and len(text) >= first + max(map(len, stop)) + _UNSETTLED


def _first(text: str, stop: Sequence[str]) -> int | None:
    return min((place for one in stop if (place := text.find(one)) >= 0), default=None)

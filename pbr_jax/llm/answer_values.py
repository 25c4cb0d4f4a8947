"""The answers that a cache may hold: their kinds, what is refused, and the checksum of a row.

What a backend refuses to return is refused here too, whether a backend, an import or the database gives it.
"""

import hashlib
import math
from typing import Any, NamedTuple

from pbr_jax.llm.protocol import Score

_ROUNDING = 1e-4  # nats a token by which sums of log-probabilities may be over 0
_LOWEST = -1e300  # of a log-probability: 100,000 of them still have a sum
_WANTED = (
    "want a text, a score [total, tokens] of log-probabilities up to 0, a row of such, rows of attention, "
    "or tokens"
)


class Stored(NamedTuple):
    """An answer in the database; `value` is JSON."""

    key: str
    kind: str
    value: str
    checksum: str


def stored(key: str, kind: str, value: str) -> Stored:
    """An answer as the database has it."""
    return Stored(key, kind, value, checksum(key, kind, value))


def checksum(key: Any, kind: Any, value: Any) -> str:
    """Sixteen hex digits of what a row says; "" where that is no text."""
    if not all(isinstance(part, str) for part in (key, kind, value)):
        return ""
    text = "\n".join((key, kind, value))
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def answer(kind: Any, value: Any) -> Any:
    """An answer in its one form, from what a backend or JSON gives; ValueError for anything else.

    Kinds: a `text`; a `score` of log-probabilities in nats and the `row` of each token's; `rows` of
    attention, which is never negative; the `tokens` of an answer.
    """
    match kind, value:
        case "text", str():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise ValueError(f"half of a surrogate pair in {value!a:.50}, want a text") from None
            return value
        case "score", [total, int(tokens)] if _is_count(tokens) and _is_log_prob(total, tokens):
            return Score(float(total), tokens)
        case "row", list() if all(_is_log_prob(one) for one in value):
            return list(map(float, value))
        case "rows", list() if all(isinstance(row, list) and all(map(_is_mass, row)) for row in value):
            return [list(map(float, row)) for row in value]
        case "tokens", list() if all(map(_is_count, value)):
            return value
    raise ValueError(f"kind {kind!r:.40} with value {value!r:.60}, {_WANTED}")


def _is_log_prob(value: Any, tokens: int = 1) -> bool:
    """Whether it is the sum of so many log-probabilities; that of none is 0."""
    lowest, highest = (_LOWEST, _ROUNDING * tokens) if tokens else (0.0, 0.0)
    return _is_number(value) and lowest <= value <= highest


def _is_mass(value: Any) -> bool:
    return _is_number(value) and 0 <= value < math.inf


def _is_number(value: Any) -> bool:
    return type(value) is float or (type(value) is int and value.bit_length() < 1000)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63

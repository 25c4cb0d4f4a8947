"""How many requests servers answered, and the tokens that they count for them.

`server_calls` counts all answers that came, `server_calls_without_usage` those that stated no tokens. Cached
answers are not counted.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

_meter: ContextVar[Counter[str] | None] = ContextVar("meter", default=None)
_looked: ContextVar[Counter[str] | None] = ContextVar("looked", default=None)
_apart: ContextVar[str] = ContextVar("apart", default="")


@contextmanager
def bound(variable: ContextVar[Any], value: T) -> Iterator[T]:
    """Inside, the variable has this value."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


@contextmanager
def metered() -> Iterator[Counter[str]]:
    """Counts the requests inside; an outer one counts them too."""
    outer = _meter.get()
    with bound(_meter, Counter[str]()) as counts:
        try:
            yield counts
        finally:
            if outer is not None:
                outer.update(counts)


def apart(part: str) -> AbstractContextManager[str]:
    """Requests inside are also counted as this part's, such as `select_server_calls`."""
    return bound(_apart, part)


def count(spent: Mapping[str, int]) -> None:
    """Adds to the meter around the caller, if there is one."""
    meter, part = _meter.get(), _apart.get()
    if meter is not None:
        meter.update(spent)
        if part:
            meter.update({f"{part}_{name}": value for name, value in spent.items()})


def looked_up() -> AbstractContextManager[Counter[str]]:
    """Counts the answers that are asked for inside: those `known`, in the cache, and those `made`."""
    return bound(_looked, Counter[str]())


def look_up(*, known: int, made: int) -> None:
    """Adds to `looked_up` around the caller, if there is one."""
    if (counts := _looked.get()) is not None:
        counts.update(known=known, made=made)


class Usage(NamedTuple):
    """What one answer took, as the server counts; None where it does not say, as with 0 for a prompt."""

    prompt: int | None
    completion: int | None
    thought: int = 0  # tokens of the completion that are not in the answer
    cached: int = 0  # tokens of the prompt that the server knew; some servers leave them out of `prompt`

    @property
    def counts(self) -> dict[str, int]:
        """For `count`."""
        tokens = {"server_prompt_tokens": self.prompt or 0, "server_completion_tokens": self.completion or 0}
        unknown = {"server_calls_without_usage": 1} if self.prompt is None and self.completion is None else {}
        return {"server_calls": 1, **tokens, **unknown}


def usage_of(answer: Mapping[str, Any]) -> Usage:
    """The `usage` of an answer in OpenAI's protocol, or the `meta_info` of one in SGLang's."""
    usage = answer.get("usage") or answer.get("meta_info")
    if not isinstance(usage, dict):
        return Usage(None, None)
    details: dict[str, Any] = {}
    for name in ("prompt_tokens_details", "completion_tokens_details"):
        details |= usage[name] if isinstance(usage.get(name), dict) else {}
    thought = _number(details.get("reasoning_tokens")) or _number(usage.get("reasoning_tokens")) or 0
    prompt, completion = _number(usage.get("prompt_tokens")), _number(usage.get("completion_tokens"))
    cached = _number(details.get("cached_tokens")) or 0
    return Usage(prompt or None, completion if prompt else completion or None, thought, cached)


def cost(counts: Mapping[str, int | float], prompt: float | None, completion: float | None) -> float | None:
    """The price of what was counted, from prices of a million tokens; None where none is known."""
    if prompt is None and completion is None:
        return None
    read, written = (counts.get(f"server_{name}_tokens", 0) for name in ("prompt", "completion"))
    return (read * (prompt or 0.0) + written * (completion or 0.0)) / 1e6


def _number(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 53 else None

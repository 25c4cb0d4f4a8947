"""What is read from a server's answer: one text, and whether it is the whole answer to what was asked."""

from collections.abc import Callable, Mapping
from typing import Any

from pbr_jax.llm.http_client import message_of
from pbr_jax.llm.usage import usage_of
from pbr_jax.types import UserError

# OpenAI's two, and what other servers call the first. None: not told, as older servers do.
_ENDS = frozenset({None, "", "stop", "length", "eos", "eos_token", "stop_sequence", "end_turn"})
_FILTERED = frozenset({"content_filter", "safety"})
_BYTES = 128  # the most that one token stands for: runs of spaces in the vocabularies of OpenAI and Llama 3
_MORE = 16  # tokens over the limit that a server may count: those that end a turn


def text_of(
    answer: Mapping[str, Any],
    address: str,
    *,
    is_text: bool,
    limit: int,
    beams: int = 1,
    count: Callable[[str], int] | None = None,
) -> str:
    """The text of the first choice, which is a message's or, with `is_text`, a continuation's.

    An answer that ended at the limit of tokens (`finish_reason` length) is whole if so many were really made:
    the model in this process stops there too. What was made is what `usage` says, less what went into
    thinking. Where it says nothing the text must be long enough: at least half of the limit as `count`
    counts, or else a byte for each token.

    Args:
      limit: the most tokens of the answer.
      beams: how many choices there may be; `usage` counts the tokens of all, so it decides nothing.
      count: of tokens, where the tokenizer is known.

    Raises:
      UserError: no text; one that was withheld, or cut off elsewhere; one longer than was asked for.
    """
    first = choice(answer, address, beams)
    given = first.get("text") if is_text else first.get("message")
    text, reason = _text(given, address), first.get("finish_reason")
    if not isinstance(reason, str | None) or reason not in _ENDS:
        raise UserError(f"{address}: {_unfinished(reason)}")
    usage = usage_of(answer)
    made = None if beams > 1 or usage.completion is None else usage.completion - usage.thought
    thinks = usage.thought or (isinstance(given, dict) and any(map(given.get, _THOUGHTS)))
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > _BYTES * limit or (made is not None and made > limit + _MORE and not thinks):
        told = "" if made is None else f" and {made} tokens"
        raise UserError(
            f"{address}: an answer has {size} bytes{told}, and at most {limit} tokens were asked for; "
            "the server keeps no limit: see its log, or raise generate.max_new_tokens"
        )
    if reason == "length":
        _check_length(text, size, made, limit, count, address)
    return text


_THOUGHTS = ("reasoning_content", "reasoning")


def _check_length(
    text: str, size: int, made: int | None, limit: int, count: Callable[[str], int] | None, address: str
) -> None:
    """Raises UserError where an answer that was cut off is shorter than was asked for."""
    if made is None:
        enough = bool(text) and limit <= (2 * count(text) if count else size)
    else:
        enough = bool(text) and made >= limit
    if not enough:
        told = f"{size} bytes" if made is None else f"{made} tokens"
        raise UserError(
            f"{address}: an answer was cut off (finish_reason length) after {told}, and {limit} tokens were "
            "asked for; turn the model's thinking off (llm.extra_body), lower prompt.max_tokens, or serve it "
            "with a longer context"
        )


def _unfinished(reason: Any) -> str:
    if isinstance(reason, str) and reason in _FILTERED:
        return (
            f"an answer was withheld by a filter (finish_reason {reason}), so it is not kept; change the "
            "filter or the prompt, or leave the question out"
        )
    return f"an answer has finish_reason {reason!r:.60}, want stop or length; see the server's log"


def choice(answer: Mapping[str, Any], address: str, most: int = 1) -> Mapping[str, Any]:
    """The first of at most so many choices: with beams, the best."""
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        said = message_of(answer)
        raise UserError(
            f"{address}: the answer has no choices"
            + (f" but an error ({' '.join(said.split())[:300]})" if said else "")
            + "; check that llm.url is the address of a server that speaks OpenAI's protocol"
        )
    if len(choices) > most:
        raise UserError(
            f"{address}: the answer has {len(choices)} choices, want {most}; see the server's log"
        )
    return choices[0]


def _text(given: Any, address: str) -> str:
    """A choice's `text`, or its `message`'s content, refusal, or nothing."""
    text = given
    if isinstance(given, dict):
        text = given.get("content")
        if text is None:
            text = given.get("refusal") or ""
    if not isinstance(text, str):
        raise UserError(f"{address}: a choice has no text but {type(text).__name__}; see the server's log")
    return text

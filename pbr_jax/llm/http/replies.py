"""What is read from a server's answer: one text, and whether it is the whole answer to what was asked.

Servers that speak OpenAI's protocol differ in words; all of their words are read here.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from pbr_jax.llm.protocol import BadAnswer
from pbr_jax.llm.usage import usage_of
from pbr_jax.models.thinking import after_thinking

_STOPPED = {
    "stop", "stopped", "stop_sequence", "stop_token", "stop_words", "stop_str", "eos", "eos_token",
    "end_id", "end_turn", "end", "endoftext", "end_of_text", "complete", "completed", "finish",
    "finished", "done", "end_of_sequence", "eos_found", "eos_token_id", "word", "null", "none", "unspecified",
}  # fmt: skip
_CUT = {
    "length", "max_tokens", "max_new_tokens", "max_length", "max_output_tokens",
    "max_completion_tokens", "limit", "token_limit", "model_length", "context_length",
    "model_context_window_exceeded", "context_window_exceeded", "length_limit", "max_length_exceeded",
    "token_limit_reached", "max_tokens_reached",
}  # fmt: skip
_FILTERED = {
    "content_filter", "content_filtered", "filtered", "safety", "sensitive", "blocked", "blocklist",
    "recitation", "spii", "prohibited_content", "error_toxic", "guardrail_intervened", "refusal",
}  # fmt: skip
FILTERS = "change the filter or the prompt, or raise llm.max_failed to go on without it"
_PASSING = re.compile("rate.?limit|overloaded|unavailable|timeout|server.?error", re.IGNORECASE)
_THOUGHTS = (
    "reasoning_content", "reasoning", "reasoning_details", "reasoning_text", "thinking", "thinking_blocks",
    "thought", "thoughts",
)  # fmt: skip
_INSTEAD = (*_THOUGHTS, "tool_calls", "function_call")
_BYTES = 128  # the most that one token stands for: runs of spaces in the vocabularies of OpenAI and Llama 3
_MORE = 16  # tokens over the limit that a server may count: those that end a turn
UNCOUNTED = 32  # tokens: no context is so short, so a server with smaller counts leaves out what it cached
_TEMPLATE = 32  # tokens by which a server's chat template may be shorter than the tokenizer's


def check_read(answer: Mapping[str, Any], sent: int, *, exact: bool) -> None:
    """Raises BadAnswer where the server counts far fewer tokens of the prompt than were sent, for it has read
    a part of it: fewer by a tenth, or a third of an estimate that is not `exact`."""
    usage = usage_of(answer)
    read = None if usage.prompt is None else usage.prompt + usage.cached
    least = sent - max(_TEMPLATE, sent // 10) if exact else sent / 3
    if read is not None and UNCOUNTED <= read < least:
        raise BadAnswer(
            "prompt_cut",
            f"the server read {read} of {'' if exact else 'about '}{sent} tokens of a prompt, so the "
            "answer is not kept; serve the model with a longer context (Ollama: OLLAMA_CONTEXT_LENGTH or "
            "num_ctx), lower prompt.max_tokens, or set llm.check_prompts false if its counts mean something "
            "else",
        )


def text_of(
    answer: Mapping[str, Any],
    *,
    is_text: bool,
    limit: int,
    beams: int = 1,
    count: Callable[[str], int] | None = None,
    may_be_empty: bool = False,
) -> str:
    """The text of the first choice, which is a message's or, with `is_text`, a continuation's.

    An answer that ended at the limit of tokens (`finish_reason` length) is whole if so many were made: as
    `usage` counts, less thinking; where it says nothing, or 0 beside a text, the text must have at least half
    of the limit as `count` counts, or else a byte for each token. An answer that ended by itself may be empty
    if the server counts no more than the token that ends it. Half a character, at which a limit can end an
    answer, becomes a question mark.

    Args:
      limit: the most tokens of the answer.
      beams: how many choices there may be; `usage` counts the tokens of all, so it decides nothing.
      count: of tokens, where the tokenizer is known.
      may_be_empty: whether the server may have taken all tokens off, as it does with a stop string.

    Raises BadAnswer: no text; one that was withheld, or cut off elsewhere; one longer than was asked for.
    """
    first = choice(answer, beams)
    given = first.get("text") if is_text else first.get("message")
    fields = given if isinstance(given, dict) else {"content": given}
    text, instead = _text(fields), next(filter(fields.get, _INSTEAD), "")
    cut = _is_cut(first.get("finish_reason"))
    usage = usage_of(answer)
    made = None if beams > 1 or usage.completion is None else usage.completion - usage.thought
    if text and made is not None and made <= 0:
        made = None  # it does not count, or counts thinking apart
    size = len(text.encode())
    thinks = usage.thought or instead in _THOUGHTS
    if size > _BYTES * limit or (made is not None and made > limit + _MORE and not thinks):
        counted = "" if made is None else f" and {made} tokens"
        raise BadAnswer(
            "no_limit",
            f"an answer has {size} bytes{counted}, and at most {limit} tokens were asked for; "
            "the server keeps no limit: see its log, or raise generate.max_new_tokens",
        )
    blank = not text.strip()
    lost = size == 0 if made is None else made > size + 1  # more than the text's and the one that ends it
    if cut:
        whole = "" if blank and thinks else text
        known = made if made is not None else 2 * count(whole) if count else size
        if not whole or known < limit:
            length = f"{size} bytes" if made is None else f"{made} tokens"
            raise BadAnswer(
                "cut_off",
                f"an answer was cut off (finish_reason length) after {length}, and {limit} tokens "
                "were asked for; turn the model's thinking off (llm.extra_body), lower prompt.max_tokens, or "
                "serve it with a longer context",
            )
    elif blank and (thinks or instead or (not may_be_empty and lost)):
        raise BadAnswer("no_text", f"{_without_text(instead, usage.completion)}")
    return text


def _without_text(instead: str, made: int | None) -> str:
    """What is wrong with an answer that ended by itself and has no text, and what to do."""
    details = (f" but {instead}" if instead else "") + (f", after {made} tokens" if made else "")
    advice = (
        "start the server without a parser of tool calls"
        if instead and instead not in _THOUGHTS
        else "turn the model's thinking off (llm.extra_body), start the server without its reasoning parser, "
        "or raise generate.max_new_tokens"
    )
    return f"an answer has no text{details}, so it is not kept; {advice}"


def _is_cut(reason: Any) -> bool:
    """Whether the limit of tokens ended an answer; False if it ended by itself, or nothing is stated.
    Raises BadAnswer for any other reason."""
    if isinstance(reason, dict):
        reason = reason.get("type", reason)  # SGLang: {"type": "stop", "matched": 2}
    stated = reason or "null"
    word = _squeezed(stated).removeprefix("finishreason") if isinstance(stated, str) else ""  # Google's
    if word in map(_squeezed, _FILTERED):
        line = f"an answer was withheld by a filter (finish_reason {reason}), so it is not kept; {FILTERS}"
        raise BadAnswer("filter", line)
    cut = word in map(_squeezed, _CUT)
    if not cut and word not in map(_squeezed, _STOPPED):
        raise BadAnswer(
            "other_end",
            f"an answer has finish_reason {reason!r:.60}, want stop or length; see the server's log",
        )
    return cut


def _squeezed(word: str) -> str:
    """Lower-cased letters and digits: "max_tokens", "MAX-TOKENS" and "maxTokens" are one word."""
    return "".join(filter(str.isalnum, word.lower()))


def choice(answer: Mapping[str, Any], most: int = 1) -> Mapping[str, Any]:
    """The first of at most so many choices: with beams, the best."""
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        message = message_of(answer)
        raise BadAnswer(
            "no_choices",
            "the answer has no choices"
            + (f" but an error ({' '.join(message.split())[:300]})" if message else "")
            + "; check that llm.url is the address of a server that speaks OpenAI's protocol",
        )
    if len(choices) > most:
        raise BadAnswer(
            "choices", f"the answer has {len(choices)} choices, want {most}; see the server's log"
        )
    if error_status(choices[0]):
        raise BadAnswer(
            "broken_off",
            f"an answer was broken off by an error "
            f"({' '.join(str(message_of(choices[0])).split())[:300]}); run again, or see the server's log",
        )
    return choices[0]


def _text(fields: Mapping[str, Any]) -> str:
    """A message's content, or what follows a closing mark in its thoughts where it is blank."""
    text = _joined(fields.get("content"))
    if text.strip():
        return text
    if said := _joined(fields.get("refusal")).strip():
        raise _refused(said)
    thoughts = [_whole_characters(value) for value in map(fields.get, _THOUGHTS) if isinstance(value, str)]
    answers = [answer for value in thoughts if (answer := after_thinking(value)) and answer != value]
    return next(filter(str.strip, answers), text)


def _joined(content: Any) -> str:
    """A text, or the texts of a part or a list of parts without those that are thoughts."""
    if content is None or isinstance(content, str):
        return _whole_characters(content or "")
    if not isinstance(content, list | dict):
        found = type(content).__name__
        raise BadAnswer("no_text", f"a choice has no text but {found}; see the server's log")
    texts = []
    for part in content if isinstance(content, list) else [content]:
        fields = part if isinstance(part, dict) else {"text": part}
        kind = str(fields.get("type", "text"))
        if any(name in kind for name in ("think", "thought", "reason")) or fields.get("thought"):
            continue
        if kind == "refusal":
            raise _refused(fields.get("refusal"))
        text = fields.get("text", part)
        if text is None:
            continue
        if not isinstance(text, str):
            raise BadAnswer(
                "no_text", f"an answer has a part of type {kind!r:.40}, want texts; see the server's log"
            )
        texts.append(_whole_characters(text))
    return "".join(texts)


def _refused(said: Any) -> BadAnswer:
    return BadAnswer("refusal", f"the model refuses to answer ({said!a:.200}); {FILTERS}")


def _whole_characters(text: str) -> str:
    """The text with a question mark for each half of a character, which JSON can hold and UTF-8 cannot."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def message_of(body: Any) -> str | None:
    """The message of an error as OpenAI (`error.message`), vLLM (`message`) or FastAPI (`detail`) give it."""
    for name in ("error", "message", "detail"):
        if isinstance(body, dict) and body.get(name):
            inner = body[name]
            return message_of(inner) or (inner if isinstance(inner, str) else json.dumps(inner))
    return None


def error_status(answer: Mapping[str, Any]) -> int:
    """What an error in an answer of status 200 would have for a status, 200 if it does not say, 0 if there is
    no error: routers report the faults of other servers that way."""
    error = answer.get("error")
    fields = error if isinstance(error, dict) else {"message": error}
    if not any(fields.values()):
        return 0
    code = str(fields.get("code") or fields.get("status"))
    if re.fullmatch("[45][0-9]{2}", code):
        return int(code)
    return 503 if _PASSING.search(f"{code} {fields.get('type')}") else 200

"""Prompts for a server that tokenises them itself: control tokens spelled so that they stay text.

A server reads `<|im_end|>` in a message as the end of the turn. So the first character of what is, or looks
like, a control token becomes a similar one that no Unicode normalisation turns back.
"""

import re
import unicodedata

from pbr_jax.base.types import UserError
from pbr_jax.llm.protocol import Prompt, check_prompt
from pbr_jax.llm.tokens.codec import Codec

_WORDS = (
    "s|bos|eos|pad|unk|mask|cls|sep|sys|inst|im_(?:start|end)|(?:start|end)_of_(?:turn|text|image|utterance)"
    r"|endoftext|seed:(?:bos|eos|pad|think|tool_call)|(?:extra_id_|reserved_|unused)\d{1,9}"
)
_CONTROL = re.compile(
    rf"<\|[^<>|\n]{{1,60}}\|>|<</?sys>>|</?(?:{_WORDS})>"
    r"|\[/?(?:inst|sys|system_prompt|available_tools|tool_calls|tool_results|bos|eos|cls|sep|pad|mask|unk)\]"
    r"|\[\|(?:system|user|assistant|tool|endofturn)\|\]",
    re.IGNORECASE,
)
_INSTEAD = {"<": "\u2039", "[": "("}
_ROUNDS = 9  # what stands around a token that was broken up may make another


def escape_control_tokens(prompt: Prompt, codec: Codec | None = None) -> Prompt:
    """The prompt without control tokens in its texts: the codec's own, or without one those of many
    families. Raises UserError: a text that is none, see `protocol.check_prompt`; or one of which the
    tokenizer makes control tokens whatever is taken out."""
    check_prompt(prompt)
    if isinstance(prompt, str):
        return _escaped(prompt, codec)
    return [{name: _escaped(text, codec) for name, text in message.items()} for message in prompt]


def _escaped(text: str, codec: Codec | None) -> str:
    for again in range(_ROUNDS):
        spans = _spans(text) if codec is None else codec.controls(text)
        if not spans:
            return text
        pieces, end = [], 0
        for start in sorted({start for start, _ in spans}):
            pieces += [text[end:start], _instead(text[start : start + 1], again > 0)]
            end = start + 1
        text = "".join([*pieces, text[end:]])
    raise UserError(
        f"the tokenizer reads control tokens in a text whatever is taken out of it ({text[:40]!r}); leave "
        "the text out, or take the tokenizer as released"
    )


def _instead(first: str, again: bool) -> str:
    """What replaces the first character of a control token. An unusual one is followed by a character without
    width, and left out where a normaliser removed that before."""
    return _INSTEAD.get(_folded(first)) or ("" if again else f"{first}\u2060")


def _spans(text: str) -> list[tuple[int, int]]:
    return [match.span() for match in _CONTROL.finditer(_folded(text))]


def _folded(text: str) -> str:
    """As a tokenizer that normalises may see it, character for character."""
    if text.isascii():
        return text
    forms = ((c, unicodedata.normalize("NFKC", c)) for c in text)
    return "".join(form if len(form) == 1 else c for c, form in forms)

"""Prompts for a server that tokenises them itself: control tokens spelled so that they stay text.

A server reads `<|im_end|>` in a message as the end of the turn, whoever wrote it, and cannot be told
otherwise. So the first character of what is, or looks like, a control token becomes another that means the
same to a reader, and that no Unicode normalisation turns back.
"""

import re
import unicodedata

from pbr_jax.llm.chat import Codec, check_prompt
from pbr_jax.llm.protocol import Prompt

_WORDS = (
    "s|bos|eos|pad|unk|mask|cls|sep|sys|inst|im_(?:start|end)|(?:start|end)_of_(?:turn|text|image)|endoftext"
)
_CONTROL = re.compile(
    rf"<\|[^<>|\n]{{1,60}}\|>|<</?sys>>|</?(?:{_WORDS})>"
    r"|\[/?(?:inst|sys|system_prompt|available_tools|tool_calls|tool_results|cls|sep|pad|mask|unk)\]",
    re.IGNORECASE,
)
_INSTEAD = {"<": "\u2039", "[": "("}


def disarm(prompt: Prompt, codec: Codec | None = None) -> Prompt:
    """The prompt without control tokens in its texts: the codec's own, or without one those of many families.

    Raises:
      UserError: a text that is none; see `chat.check_prompt`.
    """
    check_prompt(prompt)
    if isinstance(prompt, str):
        return _disarmed(prompt, codec)
    return [{name: _disarmed(text, codec) for name, text in message.items()} for message in prompt]


def _disarmed(text: str, codec: Codec | None) -> str:
    while spans := _spans(text) if codec is None else codec.controls(text):
        for start, _ in reversed(spans):
            first = _folded(text[start])
            # What begins with another character is broken up behind it, by one that takes no width.
            instead = _INSTEAD.get(first, f"{text[start]}\u2060")
            text = f"{text[:start]}{instead}{text[start + 1 :]}"
    return text


def _spans(text: str) -> list[tuple[int, int]]:
    return [match.span() for match in _CONTROL.finditer(_folded(text))]


def _folded(text: str) -> str:
    """As a tokenizer that normalises may see it, character for character."""
    if text.isascii():
        return text
    forms = ((c, unicodedata.normalize("NFKC", c)) for c in text)
    return "".join(form if len(form) == 1 else c for c, form in forms)

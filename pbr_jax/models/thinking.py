"""Where a language model's thinking ends and its answer begins.

Models that reason write their thoughts before the answer, between marks of their family. Servers without a
reasoning parser, and models in this process, return thoughts and answer as one text.
"""

import re

_NAME = r"(?:think|thinking|thoughts?|reasoning|reflection|scratchpad)"
# <think> (DeepSeek, Qwen, GLM, Kimi K2), <thinking>, <thought> (EXAONE), <seed:think>, <longcat_think>, ...
_TAG = rf"(?:\w{{1,20}}[:_])?{_NAME}"
_OPENS = (
    rf"<{_TAG}(?: [^<>\n]{{0,60}})?>",
    r"(?-i:\[THINK\])",  # Magistral
    rf"<\|(?:(?:start|begin)_?(?:of_?)?)?{_NAME}(?:_start)?\|>",  # <|START_THINKING|> of Cohere, Sky-T1
    r"<\|inner_prefix\|>",  # Apertus
    r"◁think▷",  # Kimi
    r"<unused94>(?:thought\b)?",  # MedGemma
    r"<\|?channel\|?>\s*(?:analysis|commentary|thought)[^<\n]{0,60}(?:<\|message\|>)?",  # gpt-oss, Gemma 4
    r"\A(?-i:analysis(?=[A-Z]))",  # gpt-oss without its control tokens
    r"\A\s*here(?:'s| is) my thought process:",  # Granite 3.2
)
_CLOSES = (
    rf"</{_TAG}>",
    r"(?-i:\[/THINK\])",
    rf"<\|(?:(?:/|end_?(?:of_?)?){_NAME}|{_NAME}_end)\|>",
    r"<\|inner_suffix\|>",
    r"◁/think▷",
    r"<unused95>",
    r"<\|channel\|>\s*final\b[^<\n]{0,60}<\|message\|>|<channel\|>",
    r"(?P<weak>assistantfinal|here(?:'s| is) my response:)",  # words of a text too, so only behind an opening
)
_MARK = re.compile(
    rf"(?P<begins>^[ \t\ufeff]*)?(?:(?P<opens>{'|'.join(_OPENS)})|{'|'.join(_CLOSES)})(?P<ends>[ \t\r]*$)?",
    re.IGNORECASE | re.MULTILINE,
)
# What some families put around the answer behind their thoughts; <|return|> and <|end|> are gpt-oss's.
_ANSWER = r"(?:answer|response|output|solution)"
_WRAPPED = re.compile(
    rf"\s*(?:<{_ANSWER}>|<\|START_RESPONSE\|>|<\|begin_of_(?:solution|box)\|>)?(.*?)"
    rf"(?:</{_ANSWER}>|<\|END_RESPONSE\|>|<\|end_of_(?:solution|box)\|>|<\|(?:return|end)\|>|\Z)",
    re.IGNORECASE | re.DOTALL,
)
_PIECES = ("<|channel|>", "<|message|>", "<|channel>", "<channel|>")


def after_thinking(text: str) -> str | None:
    """The answer in what a model wrote: what follows its thinking; None where it was still thinking.

    A text without marks is the answer as it stands. Otherwise, stripped of whitespace:

    - The first closing mark ends the thinking, whether or not one opened it: templates open it for the model.
    - A later closing mark counts where it begins a line, or ends thinking that was opened again.
    - An opening mark counts at the begin or the end of a line. Inside a line it is a word of the text.
    - Tags around the answer behind the thinking (`<answer>`) are no part of it.
    """
    end, thinking = 0, False
    for mark in _MARK.finditer(text):
        begins, ends = mark["begins"] is not None, mark["ends"] is not None
        if mark["opens"]:
            thinking = thinking or begins or ends
        elif thinking or (not mark["weak"] and (begins or not end)):
            end, thinking = mark.end(), False
    if thinking:
        return None
    wrapped = _WRAPPED.match(text, end) if end else None
    return wrapped[1].strip() if wrapped else text


def is_mark(token: str) -> bool:
    """Whether a tokenizer's control token marks thinking, so that a decoded answer has to show it."""
    return token in _PIECES or _MARK.fullmatch(token) is not None

"""Where a language model's thinking ends and its answer begins.

Servers without a reasoning parser, and models in this process, return thoughts and answer as one text.
"""

import re

_NAME = r"(?:think|thinking|thoughts?|reasoning|reflection|scratchpad)"
# <think> (DeepSeek, Qwen, GLM, Kimi K2), <thinking>, <thought> (EXAONE), <seed:think>, <longcat_think>, ...
_TAG = rf"(?:\w{{1,20}}[:_])?{_NAME}"
_OPENS = (
    rf"<{_TAG}(?:\s\w{{1,20}}=[^<>\n]{{0,60}})?\s{{0,9}}(?<!/)>",
    r"(?-i:\[THINK\])",  # Magistral
    rf"<\|(?:(?:start|begin)_?(?:of_?)?)?{_NAME}(?:_start)?\|>",  # <|START_THINKING|> of Cohere, Sky-T1
    r"<\|inner_prefix\|>",  # Apertus
    r"◁think▷",  # Kimi
    r"<unused94>(?:thought\b)?",  # MedGemma
    r"<\|?channel\|?>\s*(?:analysis|commentary|thought)[^<\n]{0,60}(?:<\|message\|>)?",  # gpt-oss, Gemma 4
    r"\Aanalysis(?:(?-i:(?=[A-Z]))|(?=[\s\S]*assistantfinal))",  # gpt-oss without its control tokens
    r"\A\s*here (?:is|are) my (?:thought process|reasoning steps):",  # Granite 3.2, Apriel
    r"\A\s*here['’]s my thought process:",
)
_CLOSES = (
    rf"</{_TAG}\s{{0,9}}>|<{_TAG} ?/>",  # <think/>: nothing was thought
    r"(?-i:\[/THINK\])",
    rf"<\|(?:(?:/|end_?(?:of_?)?){_NAME}|{_NAME}_end)\|>",
    r"<\|inner_suffix\|>",
    r"◁/think▷",
    r"<unused95>",
    r"<\|channel\|>\s*final\b[^<\n]{0,60}(?:<\|constrain\|>[^<\n]{0,60})?<\|message\|>|<channel\|>",
    r"<\|(?:content|START_RESPONSE)\|>",  # Solar, Cohere
    r"(?-i:\[BEGIN FINAL RESPONSE\])",  # Apriel
    r"(?P<weak>assistantfinal|here(?:['’]s| is) my response:)",  # words too: only behind an opening
)
_MARK = re.compile(
    rf"(?P<begins>^[ \t\ufeff]*)?(?:(?P<opens>{'|'.join(_OPENS)})|{'|'.join(_CLOSES)})(?P<ends>[ \t\r]*$)?",
    re.IGNORECASE | re.MULTILINE,
)
# What some families put around the answer behind their thoughts; <|return|> and <|end|> are gpt-oss's.
_ANSWER = r"(?:(?:final_)?answer|response|output|solution)"
_WRAPPED = re.compile(
    rf"\s*(?:<{_ANSWER}>|<\|START_RESPONSE\|>|<\|begin_of_(?:solution|box)\|>)?(.*?)"
    rf"(?:</{_ANSWER}>|<\|END_RESPONSE\|>|\[END FINAL RESPONSE\]|<\|end_of_(?:solution|box)\|>"
    r"|<\|(?:return|end)\|>|\Z)",
    re.IGNORECASE | re.DOTALL,
)
_PIECES = ("<|channel|>", "<|message|>", "<|channel>", "<channel|>")


def after_thinking(text: str) -> str | None:
    """The answer in what a model wrote: what follows its thinking; None where it was still thinking.

    A text without marks is the answer as it stands. Otherwise, stripped of whitespace:

    - The first closing mark ends the thinking, whether or not one opened it: templates open it for the model.
    - A later closing mark counts where it begins a line, or ends thinking that was opened again.
    - An opening mark counts at the begin or the end of a line. Inside a line it is a word of the text.
    - Of marks inside one another, thinking ends at as many closing marks as opened it, or at the last one.
    - Tags around the answer behind the thinking (`<answer>`) are no part of it.
    """
    end, depth, closed = 0, 0, True
    for mark in _MARK.finditer(text):
        begins, ends = mark["begins"] is not None, mark["ends"] is not None
        if mark["opens"]:
            if closed and (begins or ends):
                depth, closed = 1, False
            else:
                depth += depth > 0
        elif depth or (not mark["weak"] and (begins or not end)):
            end, depth, closed = mark.end(), max(0, depth - 1), True
    if not closed:
        return None
    wrapped = _WRAPPED.match(text, end) if end else None
    return wrapped[1].strip() if wrapped else text


_ENDS = (  # how a mark that opens becomes the one that closes
    ("<", "</"), ("<|", "<|/"), ("[", "[/"), ("◁", "◁/"), ("START", "END"), ("start", "end"),
    ("begin", "end"), ("prefix", "suffix"), ("94>thought", "95>"), ("94", "95"),
)  # fmt: skip


def closing(text: str) -> str | None:
    """What ends the thinking that the end of a prompt leaves open, as Qwen3's template writes it: "" where
    none is open, None where no mark is known that ends it."""
    if after_thinking(text) is not None:
        return ""
    opening = [mark["opens"] for mark in _MARK.finditer(text) if mark["opens"]][-1]
    marks = (opening.replace(start, end, 1) for start, end in _ENDS)
    mark = next((mark for mark in marks if after_thinking(f"{opening}\n{mark}\nb") == "b"), None)
    return mark and f"{'' if text.endswith(chr(10)) else chr(10)}\n{mark}\n\n"


def is_mark(token: str) -> bool:
    """Whether a tokenizer's control token marks thinking, so that a decoded answer has to show it."""
    return token in _PIECES or _MARK.fullmatch(token) is not None

"""Texts within a budget of tokens: shares of it, and what is left of a text that is too long."""

import re
from collections.abc import Callable, Sequence

_GAP = " ... "  # for the middle of a text


def water_fill(sizes: Sequence[int], budget: int) -> list[int]:
    """Divide `budget` equally among items that need `sizes`; what a small item leaves goes to larger
    ones. No share exceeds its size, and the shares add up to min(sum(sizes), budget)."""
    shares = [0] * len(sizes)
    left = max(budget, 0)
    for position, index in enumerate(sorted(range(len(sizes)), key=sizes.__getitem__)):
        shares[index] = min(sizes[index], left // (len(sizes) - position))
        left -= shares[index]
    return shares


def shorten(
    text: str, tokens: int, *, count: Callable[[str], int], truncate: Callable[[str, int], str]
) -> str:
    """The text in at most `tokens` tokens: whole, or its head and its end with `...` between them."""
    if count(text) <= tokens:
        return text
    inner = tokens - count(_GAP)
    if inner < 2:
        return fit(text, tokens, count, truncate)
    head = fit(text, inner - inner // 2, count, truncate)
    return f"{head.rstrip()}{_GAP}{tail(text, inner // 2, count).lstrip()}"


def fit(text: str, tokens: int, count: Callable[[str], int], truncate: Callable[[str, int], str]) -> str:
    """The longest beginning that counts at most `tokens`; cutting may split a character, which is dropped."""
    if count(text) <= tokens:
        return text
    for most in range(tokens, 0, -1):
        head = truncate(text, most).rstrip("\ufffd")
        if count(head) <= tokens:
            return head
    return ""


def tail(text: str, tokens: int, count: Callable[[str], int]) -> str:
    """The longest end of the text that counts at most `tokens`, at a word's start where there is one."""
    low, high = 0, len(text)  # text[high:] fits
    while low < high:
        middle = (low + high) // 2
        if count(text[middle:]) <= tokens:
            high = middle
        else:
            low = middle + 1
    if high == 0:
        return text
    word = re.search(r"\s\S", text[max(high - 1, 0) :])
    return text[max(high - 1, 0) + word.start() :] if word else text[high:]

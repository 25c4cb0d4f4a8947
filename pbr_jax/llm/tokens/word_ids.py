"""Token ids of texts from those of their words, each encoded once: documents come again in many prompts.

A word is what stands between two spaces, with the space before it. Byte-level BPE cuts a text into pieces
by a regular expression and encodes each piece by itself. In the expressions of `gguf_tokenizer.SPLITS` no
match holds a space behind a character that is no white space, none looks behind itself, and only white
space looks ahead, as far as the end of its run. So a text may be cut before such a space: its tokens are
those of the parts, to the last id. Texts of other tokenizers are encoded as a whole.
"""

import bisect
import functools
import itertools
import re
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pbr_jax.base.files import parse_json
from pbr_jax.models import gguf_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_MOST = 65_536  # words that are remembered
_LONGEST = 64  # characters of one: longer ones are rare, or texts of a script without spaces
_tables: "weakref.WeakValueDictionary[int, WordIds]" = weakref.WeakValueDictionary()
_BLANK = re.compile(r"\s ")
_CUT = re.compile(r"(?<!\s) ")


class WordIds(dict[str, tuple[int, ...]]):
    """The tokens of words with a space before them, as one tokenizer has them: without special tokens that it
    would add."""

    def __init__(self, tokenizer: "Tokenizer") -> None:
        self._tokenizer, self._separable = tokenizer, is_separable(tokenizer)
        _tables[id(self)] = self

    def __missing__(self, word: str) -> tuple[int, ...]:
        ids = self._encoded(f" {word}")
        if len(word) <= _LONGEST:
            if len(self) >= _MOST:
                self.clear()
            self[word] = ids
        return ids

    def encode(self, text: str) -> list[int]:
        """The token ids of a text."""
        first, *words = self._words(text)
        return [*self._encoded(first), *itertools.chain.from_iterable(map(self.__getitem__, words))]

    def count(self, text: str) -> int:
        """How many they are."""
        first, *words = self._words(text)
        return len(self._encoded(first)) + sum(map(len, map(self.__getitem__, words)))

    def beginning(self, text: str, tokens: int) -> str:
        """The text up to the end of the token with this number, counted from 1; all of it where there are no
        more."""
        first, *words = self._words(text)
        counts = [len(self._encoded(first)), *map(len, map(self.__getitem__, words))]
        ends = [*itertools.accumulate(counts)]
        place = bisect.bisect_left(ends, tokens)  # of the part that holds the token
        if place == len(ends):
            return text
        # With the part before it: where a text's first token begins and ends is another matter.
        before = max(place - 1, 0)
        parts = [first, *(f" {word}" for word in words[:place])]
        around = self._tokenizer.encode("".join(parts[before:]), add_special_tokens=False)
        known = ends[before - 1] if before else 0
        return text[: sum(map(len, parts[:before])) + around.offsets[tokens - 1 - known][1]]

    def _encoded(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _words(self, text: str) -> Sequence[str]:
        """What stands before the first space where the text may be cut, and the words behind it."""
        if not self._separable:
            return [text]
        return _CUT.split(text) if _BLANK.search(text) else text.split(" ")


def clear() -> None:
    """Forgets all words of all tokenizers of this process, as when a user's texts are deleted."""
    for table in [*_tables.values()]:
        table.clear()


def is_separable(tokenizer: "Tokenizer") -> bool:
    """Whether a text's tokens are those of its words: of byte-level BPE with an expression that is known,
    whose added tokens take no space and do not look beside them. NFC changes nothing across a space."""
    state = parse_json(tokenizer.to_str())
    model, normalizer = state["model"], state.get("normalizer")
    return (
        model.get("type") == "BPE"
        and not model.get("dropout")
        and not (state.get("truncation") or state.get("padding"))
        and (normalizer is None or normalizer == {"type": "NFC"})
        and _bare(state.get("pre_tokenizer")) in _known()
        and not any(
            token["single_word"] or token["rstrip"] or re.search(r"\s", token["content"])
            for token in state["added_tokens"]
        )
    )


@functools.cache
def _known() -> list[Any]:
    """The pre-tokenizers of `gguf_tokenizer`, as `tokenizer.json` has them."""
    from tokenizers import Tokenizer, models

    states = []
    for made in gguf_tokenizer.SPLITS.values():
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = made()
        states.append(_bare(parse_json(tokenizer.to_str())["pre_tokenizer"]))
    return states


def _bare(part: Any) -> Any:
    """Without what moves offsets alone."""
    if isinstance(part, dict):
        return {key: _bare(value) for key, value in part.items() if key != "trim_offsets"}
    return [_bare(inner) for inner in part] if isinstance(part, list) else part

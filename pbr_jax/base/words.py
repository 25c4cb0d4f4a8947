"""Words of a text in any script, for matching: in BM25, in scores of answers, in overlaps of texts.

A word is a run of letters, digits and the marks that belong to them, such as vowel signs, points and
accents. `\\w` of Python's `re` knows no marks, and cuts words of most Indic scripts, of Thai and of pointed
Hebrew and Arabic. Scripts without spaces are not cut into words.
"""

import re
import unicodedata

import regex

_ASCII = {False: re.compile("[a-z0-9]+"), True: re.compile("[a-z0-9_]+")}
_WORD = {
    False: regex.compile(r"[\p{L}\p{N}][\p{L}\p{N}\p{M}]*"),
    True: regex.compile(r"[\p{L}\p{N}_][\p{L}\p{N}\p{M}_]*"),
}
_INVISIBLE = regex.compile(r"\p{Default_Ignorable_Code_Point}+")
_EDGE = r"[\s\p{Cc}\p{Default_Ignorable_Code_Point}]+"
_EDGES = regex.compile(rf"\A{_EDGE}|{_EDGE}\Z")


def composed(text: str) -> str:
    """The text in NFC: one spelling of what Unicode holds for equal, such as "é" and "e" with an accent."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def person(name: str) -> str:
    """A user's name in NFC, without blanks and invisible characters at its ends.

    >>> person("\\ufeffZoe\\u0308 ") == "Zo\\xeb"
    True
    """
    return composed(_EDGES.sub("", name))


def words(text: str, *, underscore: bool = False) -> list[str]:
    """The lower-cased words of a text, in their order and in NFC.

    Characters without a shape, such as soft hyphens and zero-width joiners, neither cut a word nor change it.
    `underscore`: whether "_" is a letter.

    >>> words("Tea, at 5?"), words("हिन्दी में") == ["हिन्दी", "में"]
    (['tea', 'at', '5'], True)
    """
    lower = text.lower()
    if lower.isascii():
        return _ASCII[underscore].findall(lower)
    return _WORD[underscore].findall(composed(_INVISIBLE.sub("", lower)))

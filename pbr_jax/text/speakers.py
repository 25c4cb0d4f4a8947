"""The names of a conversation's speakers in questions about it.

A question names the speaker whom it is about ("What did Ann's sister buy?"). The vector of such a question is
near all texts in which this name occurs, whatever they say. The speaker's own words say "my sister".
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Literal

import regex

from pbr_jax.base.types import SPEAKERS
from pbr_jax.base.words import composed, person, words
from pbr_jax.text.bm25 import QUESTION_WORDS

Names = Literal["keep", "out", "i"]

_LETTER, _HYPHEN = r"[\p{L}\p{N}\p{M}_]", r"[-\u2010\u2011]"


def speakers(fields: Iterable[Mapping[str, str]]) -> tuple[str, ...]:
    """The speakers that documents with these fields name, sorted."""
    listed = {found[SPEAKERS] for found in fields if SPEAKERS in found}
    names = {" ".join(person(name).split()) for names in listed for name in names.split(",")}
    return tuple(sorted(filter(None, names)))


def without(question: str, speakers: tuple[str, ...], names: Names) -> str:
    """A question without the full and first names of speakers, in any case.

    `out` deletes them, unless no word would be left; `i` says "I" and "my" in their place. A question that
    names nobody stays as it is, and so does a name that is a question's word as well, such as Will.

    >>> without("What did ANN's sister give Bob Lee in Annecy?", ("Ann Day", "Bob Lee"), "i")
    'What did my sister give I in Annecy?'
    """
    if names == "keep" or not speakers:
        return question

    def said(match: regex.Match[str]) -> str:
        return "" if names == "out" else "my" if match["of"] else "I"

    edited, count = _pattern(speakers).subn(said, composed(question))
    return " ".join(edited.split()) if count and words(edited) else question


@lru_cache(maxsize=64)
def _pattern(speakers: tuple[str, ...]) -> regex.Pattern[str]:
    """Any of the names as a word of its own, with the sign of a possessive: Ann's, James's or James'. A
    part of a word with hyphens is none: Mary-Ann is not Ann."""
    known = {name for speaker in speakers for name in (speaker, speaker.split()[0])}
    told = sorted((name for name in known if name.lower() not in QUESTION_WORDS), key=len, reverse=True)
    escaped = (regex.escape(name).replace(r"\ ", r"\s+") for name in told)
    names = "|".join(regex.sub(rf"\\?{_HYPHEN}", lambda _: _HYPHEN, name) for name in escaped) or "(?!)"
    possessive = rf"['’]s(?!{_LETTER})|(?<=s)['’](?=\s)"
    alone = rf"(?<!{_LETTER}{_HYPHEN}?)(?:{names})(?!{_HYPHEN}?{_LETTER})"
    return regex.compile(rf"{alone}(?P<of>{possessive})?", regex.IGNORECASE)

"""Words of any script stay whole; invisible characters and the form of Unicode change nothing."""

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbr_jax.base.words import words


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("हिन्दी में दिल।", ["हिन्दी", "में", "दिल"]),
        ("สวัสดี วันนี้", ["สวัสดี", "วันนี้"]),
        ("שָׁלוֹם, עוֹלָם", ["שָׁלוֹם", "עוֹלָם"]),
        ("مَرْحَبًا بك", ["مَرْحَبًا", "بك"]),
        ("தமிழ் மொழி", ["தமிழ்", "மொழி"]),
        ("İstanbul'da ½ l", ["i̇stanbul", "da", "½", "l"]),
        ("می\u200cخواهم co\u00adop ❤\ufe0f", ["میخواهم", "coop"]),
        ("\u0301 !", []),
        ("snake_case Don't", ["snake", "case", "don", "t"]),
    ],
)
def test_words_stay_whole(text: str, wanted: list[str]) -> None:
    found = [words(unicodedata.normalize(form, text)) for form in ("NFC", "NFD")]
    assert found == [[unicodedata.normalize("NFC", word) for word in wanted]] * 2


@given(st.text())
def test_the_form_of_unicode_changes_no_word(text: str) -> None:
    assert words(unicodedata.normalize("NFC", text)) == words(unicodedata.normalize("NFD", text))


@given(st.text(st.characters(max_codepoint=0x24F, exclude_characters="İ")))  # lowered, it has a mark
def test_words_without_marks_are_those_of_the_standard_library(text: str) -> None:
    text = unicodedata.normalize("NFC", text.lower()).replace("\xad", "")
    assert words(text) == re.findall(r"[^\W_]+", text)

"""Names of speakers in questions: which words are names, against questions that are put together of words."""

import random
import unicodedata
from typing import Any, get_args

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pbr_jax.base.types import SPEAKERS
from pbr_jax.base.words import words
from pbr_jax.text.bm25 import QUESTION_WORDS
from pbr_jax.text.speakers import Names, speakers, without

HOW: tuple[Names, ...] = get_args(Names)  # keep, out, i

_ONE_CASE_EACH = "abdeyzéñöжяαβ"  # letters whose upper and lower case are one character each
_WORD = st.text(_ONE_CASE_EACH, min_size=2, max_size=4) | st.sampled_from(["कमला", "हिन्दी", "عائشة"])
_NAME = st.lists(_WORD | st.tuples(_WORD, _WORD).map("-".join), min_size=1, max_size=2).map(tuple)
_FORMS = (
    str,
    str.upper,
    str.title,
    lambda name: unicodedata.normalize("NFD", name),
    lambda name: name.replace("-", "\u2011"),
)


@st.composite
def questions(draw: Any) -> tuple[tuple[str, ...], list[tuple[str, str, str]]]:
    """Speakers, and the words of a question, each with what `out` and `i` make of it."""
    people = draw(st.lists(_NAME, min_size=1, max_size=3, unique=True))
    every = {word for person in people for word in person}
    assume(len(every) == sum(map(len, people)))  # no name is a part of another one
    named = [" ".join(person) for person in people] + [person[0] for person in people]
    other = draw(st.lists(_WORD.filter(lambda word: word not in every), max_size=4))
    told = [(word, word, word) for word in other]
    for name in draw(st.lists(st.sampled_from(named), max_size=3)):
        form = draw(st.sampled_from(_FORMS))(name)
        joined = form.replace(" ", "")  # a word that holds a name is none
        told += [
            (form, "", "I"),
            (f"{form}'s", "", "my"),
            (f"{form}’s", "", "my"),
            (f"({form})?", "()?", "(I)?"),
            *(
                (inside, inside, inside)
                for inside in (
                    f"{joined}n",
                    f"x{joined}",
                    f"{joined}_",
                    f"1{joined}",
                    f"{joined}-n",
                    f"x-{joined}",
                    f"x\u2011{joined}'s",
                )
            ),
        ]
    told = [one for one in told if unicodedata.normalize("NFC", one[0].lower()) not in every or one[2] == "I"]
    random.Random(draw(st.integers(0, 99))).shuffle(told)
    return tuple(map(" ".join, people)), told


@given(questions())
def test_names_are_words_of_their_own_in_any_case_and_spelling(made):
    people, told = made
    question = " ".join(word for word, _, _ in told)
    composed = unicodedata.normalize("NFC", question)
    for place, how in enumerate(HOW):
        wanted = " ".join(filter(None, (unicodedata.normalize("NFC", word[place]) for word in told)))
        wanted = wanted if words(wanted) else ""
        named = how != "keep" and wanted != composed
        assert without(question, people, how) == (wanted or question if named else question)


@given(st.text(), st.lists(st.text("bcdfgé ", min_size=1), max_size=3))
def test_a_question_that_names_nobody_stays_as_it_is(question: str, names: list[str]):
    known = speakers([{SPEAKERS: ", ".join(names)}])
    plain = unicodedata.normalize("NFC", question).casefold()
    assume(not any(name.split()[0].casefold() in plain for name in known))
    for how in HOW:
        assert without(question, known, how) == question


@pytest.mark.parametrize(
    ("question", "out", "i"),
    [
        ("What did Jon's sister tell JAMES?", "What did sister tell ?", "What did my sister tell I?"),
        ("Is James' cat James’s?", "Is cat ?", "Is my cat my?"),
        ("Jonathan met bob lee and Bob.", "Jonathan met and .", "Jonathan met I and I."),
        ("Who is 'James'? Lee", "Who is ''? Lee", "Who is 'I'? Lee"),
        ("Bob \n Lee", "Bob \n Lee", "I"),
        ("Jon", "Jon", "I"),
        ("Jon, James?", "Jon, James?", "I, I?"),
    ],
)
def test_possessives_and_questions_of_a_name_alone(question: str, out: str, i: str):
    people = ("Bob Lee", "James", "Jon")
    assert (without(question, people, "out"), without(question, people, "i")) == (out, i)


def test_speakers_are_those_that_documents_name():
    fields = [{SPEAKERS: "Zoe\u0308,  Bob  Lee"}, {"date": "x"}, {SPEAKERS: "Bob Lee, "}, {SPEAKERS: ""}]
    fields += [{SPEAKERS: "\u200eBob Lee\u200b,\u200f"}]  # as chats write marks of direction
    assert speakers(fields) == ("Bob Lee", "Zo\u00eb")


@given(st.lists(st.sampled_from(sorted(QUESTION_WORDS)), min_size=1))
def test_a_name_that_is_a_word_of_questions_stays(asked: list[str]):
    alone, full = tuple(sorted(set(asked))), tuple(sorted({f"{word.title()} Zoltan" for word in asked}))
    question = " ".join(asked)
    for how in HOW:
        assert without(question, (*alone, *full), how) == question
    assert without(f"{question} zoltan", full, "i") == " ".join([*asked[:-1], "I"])

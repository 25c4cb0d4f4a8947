"""Documents cut into passages: windows by hand, and what holds for any text."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbr_jax.base.types import Document, UserError
from pbr_jax.options import Corpus
from pbr_jax.text.passages import passages, spans_of

TEXTS = st.text(st.sampled_from("ab .!?\n\t。é"), max_size=120)


def cut(text: str, chunk: str = "words", turns: tuple[int, ...] = (), **options: int) -> list[str]:
    corpus = Corpus(chunk=chunk, **options)  # type: ignore[arg-type]
    return [text[a:b].strip() for a, b in spans_of(text, corpus, turns)]


@pytest.mark.parametrize(("count", "windows"), [
    (0, 1), (1, 1), (4, 1), (5, 2), (6, 2), (7, 3), (8, 3), (9, 4),
])  # fmt: skip
def test_windows_of_words_end_with_the_last_word(count: int, windows: int):
    words = [f"w{i}" for i in range(count)]
    found = cut(" ".join(words), words=4, stride=2)
    assert len(found) == windows
    starts = [2 * i for i in range(windows)]
    assert found == [" ".join(words[i : i + 4]) for i in starts]
    assert not any(a in b for a, b in itertools.permutations(found, 2))


@settings(deadline=None)
@given(TEXTS, st.sampled_from(["words", "sentences", "turns"]), st.integers(1, 5), st.integers(1, 5),
       st.lists(st.integers(0, 120), max_size=5))  # fmt: skip
def test_passages_cover_the_text_and_hold_few_words(text, chunk, words, stride, places):
    corpus = Corpus(chunk=chunk, words=max(words, stride), stride=stride)
    spans = spans_of(text, corpus, tuple(sorted({place for place in places if place < len(text)})))
    rebuilt, end = "", 0
    for start, stop in spans:
        assert start <= end
        rebuilt, end = rebuilt + text[end:stop], stop
    assert rebuilt == text
    assert all(len(text[a:b].split()) <= corpus.words for a, b in spans)
    assert all(a < c and b < d for (a, b), (c, d) in itertools.pairwise(spans))
    if text.split():
        assert all(text[a:b].strip() for a, b in spans)


def test_sentences_stay_together_as_long_as_they_fit():
    text = 'One two. Three four five! "Six?" she said. ' + "long " * 7 + "end.\nLast"
    assert cut(text, "sentences", words=5, stride=3) == [
        "One two. Three four five!", '"Six?" she said.', "long long long long long",
        "long long long long end.", "Last",
    ]  # fmt: skip


def test_turns_are_passages_of_their_own_and_long_ones_are_cut():
    turns = ["Ann: hi", "Bob: " + "word " * 5 + "end", "Ann: bye"]
    text, starts = "\n".join(turns), (0, 8, 8 + len(turns[1]) + 1)
    assert cut(text, "turns", starts, words=4, stride=4) == [
        "Ann: hi", "Bob: word word word", "word word end", "Ann: bye"
    ]  # fmt: skip
    assert cut(text, "turns", words=4, stride=4) == cut(text, words=4, stride=4)


def test_a_passage_has_the_fields_of_its_document_and_of_long_ones_what_lies_in_it():
    document = Document("d", "u", "a title a b c d e", {"title": "a  title", "text": "a b c d e"}, 1e9)
    first, last = passages(document, Corpus(chunk="words", words=4, stride=3, front="title"))
    assert (first.text, last.text) == ("a title\na title a b", "a title\nb c d e")
    assert first.fields == {"title": "a  title", "text": "a b"}
    assert last.fields == {"title": "a  title", "text": "b c d e"}
    assert (first.part_of, last.whole, first.id, last.span) == ("d", "d", "d[0:11]", (10, 17))
    assert document.text[slice(*first.span)] == "a title a b"
    assert last.time == 1e9
    asked = {"text": "q a b c d e", "input": "q", "output": "a b c d e"}  # as `pbr-jax data import` has it
    first, *_, last = passages(
        Document("d", "u", "q a b c d e", asked), Corpus(chunk="words", words=2, stride=1)
    )
    assert first.fields == {"text": "q a", "input": "q", "output": "a"}
    assert last.fields == {"text": "d e", "input": "q", "output": "d e"}
    nowhere = Document("d", "u", "a b c", {"raw": '["a", "b", "c"]', "tag": "t"})
    first, _ = passages(nowhere, Corpus(chunk="words", words=2, stride=1))
    assert first.fields == {"raw": "a b", "tag": "t"}
    dated = passages(document, Corpus(chunk="words", words=9, stride=9, front="date"))
    assert [one.text for one in dated] == ["2001-09-09\na title a b c d e"]
    assert passages(document, Corpus(chunk="words", words=9, stride=9)) == [document]


def test_a_stride_past_the_window_is_refused():
    with pytest.raises(UserError, match=r"corpus\.stride is 61, want a number from 1 to 60"):
        Corpus(stride=61)

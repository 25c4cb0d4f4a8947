"""BM25 against rank_bm25, and against bm25s's own scoring."""

import re
import subprocess
import sys
import unicodedata

import numpy as np
import pytest
import rank_bm25
import Stemmer
from hypothesis import example as case
from hypothesis import given, settings
from hypothesis import strategies as st

from pbr_jax.base.types import UserError
from pbr_jax.methods import retrieve, select
from pbr_jax.options import key_of
from pbr_jax.text.bm25 import BM25, QUESTION_WORDS, terms

PROFILE = [
    "the cat sat on the mat",
    "The dog sat on the log",
    "a bird in the hand",
    "cats and dogs",
    "the the the the",
    "one lonely document about jax",
]


words = st.lists(st.sampled_from(["a", "b", "c", "d", "E", "e,"]), max_size=7).map(" ".join)
profiles = st.lists(words, min_size=1, max_size=8).filter(lambda texts: any(texts))


@settings(deadline=None)  # the first example imports bm25s
@given(profiles, words, st.floats(0.01, 3), st.floats(0, 0.99), st.floats(0, 1))
@case(["a b"], "a", 1.5, 0.75, 0.25)  # a negative floor
@case(["a b c", "", "d"], "a d d unknown", 1.5, 0.75, 0.25)
def test_scores_are_those_of_rank_bm25(texts, query, k1, b, epsilon):
    theirs = rank_bm25.BM25Okapi([text.split() for text in texts], k1=k1, b=b, epsilon=epsilon)
    scores = BM25(texts, k1=k1, b=b, epsilon=epsilon).scores(query)
    np.testing.assert_allclose(scores, theirs.get_scores(query.split()), rtol=1e-9, atol=1e-9)
    default = rank_bm25.BM25Okapi([text.split() for text in texts]).get_scores(query.split())
    np.testing.assert_allclose(BM25(texts).scores(query), default, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("texts", [[], [""], ["", "  \n"]])
def test_nothing_to_index_scores_zero(texts):
    index = BM25(texts)
    assert index.scores("a query").tolist() == [0] * len(texts) == [0] * len(index)


def test_an_empty_text_scores_zero_where_lengths_count_in_full():
    assert BM25(["a b c", "", "d"], b=1.0).scores("a d")[1] == 0


def test_words_ignore_case_and_punctuation_and_whitespace_does_not():
    assert terms("whitespace")("Tea, please: It's 5 o'clock—naïve TEA") == [
        "Tea,",
        "please:",
        "It's",
        "5",
        "o'clock—naïve",
        "TEA",
    ]
    assert terms("words")("Tea, TEA naïve_5") == ["tea", "tea", "naïve_5"]
    assert BM25(["Tea, tea", "coffee", "milk"]).scores("TEA").tolist() == [0, 0, 0]
    plain = BM25(["tea tea", "coffee", "milk"]).scores("tea")
    np.testing.assert_array_equal(
        BM25(["Tea, tea", "coffee", "milk"], split=terms("words")).scores("TEA!"), plain
    )


def test_scores_are_equal_to_the_bit_in_another_process():
    code = (
        "from pbr_jax.text.bm25 import BM25\n"
        f"print(BM25({PROFILE!r}).scores('the cat on a mat with dogs').tobytes().hex())"
    )
    command = [sys.executable, "-c", code]  # strings hash by another seed there
    run = subprocess.run(command, env={"PYTHONHASHSEED": "1"}, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == BM25(PROFILE).scores("the cat on a mat with dogs").tobytes().hex()


def test_wrong_settings_are_refused():
    with pytest.raises(UserError, match="k1 is -1"):
        BM25(["a"], k1=-1.0)
    with pytest.raises(UserError, match=r"b is 1\.5"):
        BM25(["a"], b=1.5)
    with pytest.raises(UserError, match="one string"):
        BM25("a b")
    with pytest.raises(Exception, match=r"analyser|type"):  # the type checker of the tests may come first
        terms("stemmed")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("analyser", ["whitespace", "words"])
@pytest.mark.parametrize("query", ["दिल", "দিল", "พี่", "café"])
def test_a_word_is_found_in_any_script_and_spelling(query, analyser):
    other = unicodedata.normalize("NFD", query)
    texts = [f"x {other[0]} y", "z", "w", f"so {other} it", "v"]
    for spelled in (query, other):
        assert BM25(texts, split=terms(analyser)).scores(spelled).nonzero()[0].tolist() == [3]


@given(st.text())
def test_terms_of_text_in_ascii_are_as_they_were(text):
    text = text.encode("ascii", "replace").decode()
    assert terms("whitespace")(text) == text.split()
    assert terms("words")(text) == re.findall(r"\w+", text.lower())


@given(profiles, words)
def test_lucenes_idf_scores_as_in_bm25s(texts, query):
    import bm25s

    theirs = bm25s.BM25(k1=1.5, b=0.75, method="atire", idf_method="lucene", dtype="float64")
    split = [text.split() for text in texts]
    theirs.index(split, show_progress=False)
    asked = [word for word in query.split() if any(word in text for text in split)]
    expected = theirs.get_scores(asked) if asked else np.zeros(len(texts))
    np.testing.assert_allclose(BM25(texts, idf="lucene").scores(query), expected, rtol=1e-9)
    for options in (retrieve.BM25(analyser="whitespace"), select.BM25(analyser="whitespace")):
        np.testing.assert_allclose(options.index(texts).scores(query), expected, rtol=1e-9)


@given(profiles, words)
@case(["printer toner", "lunch noon"], "toner")  # in half of the texts
@case(["note printer", "note printer", "note printer", "note heating"], "printer")  # in most of them
@case(["tea"], "tea")
def test_a_text_with_a_word_of_the_query_is_above_those_without(texts, query):
    asked = set(terms("words")(query))
    for options in (retrieve.BM25(), select.BM25()):
        scores = options.index(texts).scores(query)
        assert [score > 0 for score in scores] == [bool(asked & set(terms("words")(text))) for text in texts]


def test_stems_match_other_forms_of_a_word():
    texts = ["She walked the Dogs.", "a cat", "the tea", "no"]
    assert terms("stem")("Walking, walked: DOGS") == ["walk", "walk", "dog"]
    assert BM25(texts, split=terms("stem")).scores("walks dog")[0] > 0
    assert not BM25(texts, split=terms("words")).scores("walks dog").any()
    assert terms("stem", "german")("Häuser Hauses") == ["haus", "haus"]


@given(st.text(), st.sampled_from(["words", "stem", "whitespace"]))
def test_without_question_words_all_other_terms_stay_as_they_are(text, analyser):
    rest = [t for t in terms("whitespace" if analyser == "whitespace" else "words")(text)
            if t.lower() not in QUESTION_WORDS]  # fmt: skip
    wanted = Stemmer.Stemmer("english").stemWords(rest) if analyser == "stem" else rest
    assert terms(analyser, question_words=False)(text) == wanted


def test_question_words_are_left_out_where_options_say_so():
    texts, asked = ["What did she do?", "a blue kite", "the kite of Ann"], "What did Ann do?"
    for options in (retrieve.BM25, select.BM25):
        assert options().index(texts).scores(asked).argmax() == 0
        assert options(question_words="out").index(texts).scores(asked).tolist()[:2] == [0, 0]
        assert "question_words" not in key_of(options())
        assert key_of(options(question_words="out"))["question_words"] == "out"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("我喜欢喝绿茶。", ["我喜", "喜欢", "欢喝", "喝绿", "绿茶"]),
        ("茶", ["茶"]),
        ("GPT模型 5杯", ["gpt", "模型", "5", "杯"]),
        ("コーヒーを飲む", ["コー", "ーヒ", "ヒー", "ーを", "を飲", "飲む"]),
        ("น้ำชา", ["น้ำช", "ชา"]),
        ("차를 마신다 naïve", ["차를", "마신다", "naïve"]),
    ],
)
def test_scripts_without_spaces_become_pairs_of_characters(text, wanted):
    assert terms("words")(text) == wanted


def test_a_question_in_chinese_finds_its_document():
    texts = ["昨天我去了图书馆。", "我最喜欢的饮料是绿茶。", "他在学校教数学。"]
    assert BM25(texts, split=terms("words")).scores("你喜欢什么饮料?").argmax() == 1
    assert not BM25(texts).scores("你喜欢什么饮料?").any()


def test_stems_without_pystemmer_and_of_unknown_languages_are_refused_in_a_line(monkeypatch):
    with pytest.raises(
        UserError, match=r"language is 'klingon', want .*: arabic, .*english.*; set retrieve.language"
    ):
        terms("stem", "klingon")
    monkeypatch.setitem(sys.modules, "Stemmer", None)
    with pytest.raises(UserError, match=r"pip install 'pbr-jax\[stem\]'"):
        terms("stem")

"""Words that texts share: ROUGE against rouge-score, METEOR by hand, and what answers copy."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rouge_score import rouge_scorer
from run_folders import change
from test_report import answers

from pbr_jax.eval.overlap import copied, copies, meteor, rouge, tokens
from pbr_jax.eval.report import report

NAMES = ("rouge1", "rougeL")
TEXTS = st.text(alphabet="abAB 1,.é_İ\n", max_size=30)


@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=8))
def test_rouge_is_that_of_rouge_score(pairs):
    scorer = rouge_scorer.RougeScorer(list(NAMES), use_stemmer=False)
    scores = [scorer.score(target, prediction) for prediction, target in pairs]
    for name in NAMES:
        values = rouge([one for one, _ in pairs], [other for _, other in pairs], name)
        assert values[:, 0].tolist() == [score[name].fmeasure for score in scores]


def test_lengths_that_differ_are_an_error():
    with pytest.raises(ValueError, match="zip"):
        rouge(["a"], [], "rouge1")


@pytest.mark.parametrize(
    ("prediction", "target", "expected"),
    [
        # P = R = 1, one chunk of two stems: 1 - .5 (1/2)^3
        ("cats sleeping", "Cat sleeps", 0.9375),
        # P = 2/3, R = 2/5, F = (4/15) / (.9 * 2/3 + .1 * 2/5) = .41667; one chunk of two
        ("the cat sleeps", "a cat sleeping here now", 0.41666666666666663 * 0.9375),
        # all words, two chunks: 1 - .5 (2/2)^3
        ("cat dog", "dog cat", 0.5),
        # a synonym is no match without WordNet
        ("car", "automobile", 0.0),
        ("", "something", 0.0),
        ("something", "", 0.0),
    ],
)
def test_values_by_hand(prediction, target, expected):
    assert meteor([prediction], [target]) == [pytest.approx(expected)]


def test_sentences_and_contractions_are_split_without_data():
    assert tokens("I don't. Really?  (Yes!)") == [
        "I", "do", "n't", ".", "Really", "?", "(", "Yes", "!", ")",
    ]  # fmt: skip
    assert tokens(" \n ") == []


@pytest.mark.parametrize("unit", ["y", "a", ".", "!", "'", "] ", "yes", ". ", " "])
def test_long_repetitions_are_scored_quickly(unit):
    start = time.monotonic()
    (score,) = meteor([unit * 5_000], ["yellow day"])
    assert score == 0.0
    assert time.monotonic() - start < 10


@pytest.mark.parametrize(
    ("answer", "sources", "share"),
    [
        ("the cat sat on the mat", ["The cat sat on the mat!"], 1.0),
        ("so the cat sat on it", ["the cat sat on the mat"], 1 / 3),  # one run of three
        ("the cat sat on the mat", ["the cat sat", "on the mat"], 0.0),  # no run goes over two texts
        ("a b c d e", ["a b c d", "b c d e"], 1.0),
        ("hello", ["well, hello there"], 1.0),  # one word is a run of one
        ("hello you", ["you, hello"], 0.0),
        ("", ["anything"], 0.0),
        ("!?", ["!?"], 0.0),
        ("a b c d", [], 0.0),
        ("Äpfel und Birnen essen", ["wir äpfel und birnen essen"], 1.0),
    ],
)
def test_runs_of_four_words_that_stand_in_a_source(answer, sources, share):
    assert copied(answer, sources) == pytest.approx(share)


def test_means_are_over_the_questions_that_have_the_share():
    found = copies([{"question": 1.0, "target_question": 0.5}, {"question": 0.0}])
    assert found == {"question": 0.5, "target_question": 0.5}
    assert copies([]) == {}


def test_a_report_shows_them_beside_the_targets(tmp_path, write, tables):
    runs = [write(tmp_path / name, name, answers(seed, 0.6)) for seed, name in enumerate("ab")]
    told = {"question": 0.25, "documents": 0.5, "target_question": 0.125, "target_documents": 0.0}
    change(runs[0], copied=told)
    found = next(table for table in tables(report(runs)) if table[0][1] == "answer: in the question")
    assert found[1:] == [["a", "25.0%", "50.0%", "12.5%", "0.0%"], ["b", "–", "–", "–", "–"]]

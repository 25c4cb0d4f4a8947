"""METEOR by hand: matches, chunks and the penalty; texts that trip stemmers and tokenizers."""

import time

import pytest

from pbr_jax.eval.overlap import meteor, tokens


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

"""The fast ROUGE against rouge-score."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rouge_score import rouge_scorer

from pbr_jax.eval.overlap import rouge

NAMES = ("rouge1", "rougeL")
TEXTS = st.text(alphabet="abAB 1,.é_İ\n", max_size=30)


def reference(predictions, targets):
    scorer = rouge_scorer.RougeScorer(list(NAMES), use_stemmer=False)
    scores = [scorer.score(target, prediction) for prediction, target in zip(predictions, targets)]
    return {name: np.array([score[name].fmeasure for score in scores]) for name in NAMES}


@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=8))
def test_any_texts(pairs):
    predictions, targets = [p for p, _ in pairs], [t for _, t in pairs]
    for name, wanted in reference(predictions, targets).items():
        np.testing.assert_allclose(rouge(predictions, targets, name), wanted, atol=1e-12)


def test_real_tweets(real_data):
    questions = json.loads((real_data / "LaMP_7/dev_questions.json").read_text())
    texts = [document["text"] for question in questions[:40] for document in question["profile"][:8]]
    predictions, targets = texts, texts[3:] + texts[:3]
    for name, wanted in reference(predictions, targets).items():
        found = rouge(predictions, targets, name)
        assert (found > 0).any()
        np.testing.assert_allclose(found, wanted, atol=1e-12)


def test_lengths_that_differ_are_an_error():
    with pytest.raises(ValueError, match="zip"):
        rouge(["a"], [], "rouge1")

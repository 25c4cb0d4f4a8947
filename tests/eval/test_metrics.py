"""Metrics of answers against scikit-learn and values worked out by hand."""

import unicodedata
from collections.abc import Sequence

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score

from pbr_jax.base.types import UserError
from pbr_jax.eval.metrics import (
    plain_mean,
    rating_error,
    squad_normalised,
    text_metric,
    unreadable,
    within_range,
)
from pbr_jax.tasks import METRICS

LABELS = tuple("abcd")


def value(name: str, predictions: Sequence[str], targets: Sequence[str], labels: Sequence[str] = ()) -> float:
    metric = text_metric(name, labels)
    return float(metric.finish(metric.statistics(predictions, targets).mean(0)))


@pytest.fixture
def answers() -> tuple[list[str], list[str]]:
    """Predictions with unknown and padded labels; label d is never wanted, e is no label."""
    key = np.random.default_rng(0)
    targets = key.choice(["a", "b", "c"], 80, p=[0.6, 0.3, 0.1]).tolist()
    predictions = [t if key.random() < 0.5 else key.choice(["a", "b", "d", "e", "A"]) for t in targets]
    return [f" {p}\n" for p in predictions], targets


def test_accuracy_and_macro_f1_equal_sklearn_on_label_indices(answers):
    predictions, targets = answers
    index = {label: i for i, label in enumerate(LABELS)}
    found = [index.get(p.strip(), -1) for p in predictions]
    wanted = [index[t] for t in targets]
    assert -1 in found
    assert value("accuracy", predictions, targets, LABELS) == pytest.approx(accuracy_score(wanted, found))
    expected = f1_score(wanted, found, labels=range(4), average="macro", zero_division=0)  # pyright: ignore
    assert value("f1_macro", predictions, targets, LABELS) == pytest.approx(expected, abs=1e-12)


def test_macro_f1_finishes_a_batch_of_means_row_by_row(answers):
    predictions, targets = answers
    metric = text_metric("f1_macro", LABELS)
    rows = metric.statistics(predictions, targets)
    batch = metric.finish(np.stack([rows[:30].mean(0), rows[30:].mean(0)]))
    expected = [value("f1_macro", predictions[s], targets[s], LABELS) for s in (slice(30), slice(30, None))]
    np.testing.assert_allclose(batch, expected)


def test_labels_keep_their_case_and_unknown_targets_are_refused():
    assert value("accuracy", ["A", "b"], ["a", "b"], LABELS) == 0.5
    with pytest.raises(UserError, match=r"'z' is none of the task's labels: a, b"):
        value("accuracy", ["a", "a"], ["a", "z"], LABELS)


@pytest.mark.parametrize(
    ("prediction", "target", "error"),
    [("4", "5", -1), (" 2.5\n", "1", 1.5), ("five", "2", 3), ("", "4", -3), ("nice", "3", 2), ("x", "1", 4),
     ("x", "5", -4), ("9", "5", 4), ("nan", "5", -4), ("inf", "1", 4), ("5" * 200, "1", 4)],
)  # fmt: skip
def test_ratings_charge_the_farther_end_for_what_is_no_number(prediction, target, error):
    assert rating_error(prediction, target) == error


def test_correlation_is_pearsons_and_of_constants_0():
    targets, metric = ["1", "5", "4", "4", "2"], text_metric("correlation")
    found = metric.statistics(["2.5", "4.5", "3", "x", "1"], targets)
    wanted = np.corrcoef([2.5, 4.5, 3, 1, 1], list(map(float, targets)))[0, 1]  # "x": the farther end
    assert metric.finish(found.mean(0)) == pytest.approx(wanted)
    assert metric.finish(metric.statistics(["3.1"] * 5, targets).mean(0)) == 0
    assert metric.finish(metric.statistics(targets, targets)[None].mean(1)) == pytest.approx([1])
    assert within_range("expected_correlation", (-2.0, 2.0)) == (-1.0, 1.0)


def test_mae_and_rmse():
    predictions, targets = ["1", "4", "what"], ["2", "4", "3"]  # errors 1, 0, 2
    assert value("mae", predictions, targets) == pytest.approx(1.0)
    assert value("rmse", predictions, targets) == pytest.approx((5 / 3) ** 0.5)
    with pytest.raises(UserError, match="'bad' of a rating task is not a number"):
        rating_error("1", "bad")


def test_rouge_by_hand():
    # "the cat sat" in "the sat cat on": 3 common words, longest common subsequence 2.
    assert value("rouge1", ["The cat, sat!"], ["the sat cat on"]) == pytest.approx(2 * 3 / (3 + 4))
    assert value("rougeL", ["The cat, sat!"], ["the sat cat on"]) == pytest.approx(2 * 2 / (3 + 4))
    assert value("rouge1", ["cats", ""], ["cat", ""]) == 0  # no stems


def test_token_f1_compares_sets_of_lower_cased_words():
    assert value("token_f1", ["The cat_sat, THE 2 cats"], ["2 cats the CAT sat"]) == 1
    assert value("token_f1", ["red Red blue"], ["Blue, green; white"]) == pytest.approx(2 * 1 / (2 + 3))
    assert value("token_f1", ["", "!", "x"], ["x", "?", ""]) == pytest.approx(1 / 3)


def test_exact_match_ignores_case_articles_and_punctuation():
    assert squad_normalised("The  Beatles' an-thology, a.") == "beatles anthology"
    assert squad_normalised("½a ²an the² a Ⓐ") == "½a ²an the² ⓐ"  # as Python's \\b has it
    assert value("exact_match", ["the Beatles.", "Beatle"], ["Beatles", "Beatles"]) == 0.5


VOCABULARY = ["The", "the", "a", "An", "cat", "cat's", "Cat.", "theme", "sat", "(2)", "!", "über"]


def random_texts(seed: int, count: int = 300) -> list[str]:
    key = np.random.default_rng(seed)
    return [" ".join(key.choice(VOCABULARY, key.integers(0, 6))) for _ in range(count)]


def bag(text: str) -> list[str]:
    """SQuAD's words, character by character and word by word instead of by its expressions."""
    kept = "".join(c for c in text.lower() if not (c.isascii() and not c.isalnum() and not c.isspace()))
    return [word for word in kept.split() if word not in ("a", "an", "the")]


def bag_f1(prediction: str, target: str) -> float:
    """Precision and recall of words that are crossed off one by one."""
    found, left, common = bag(prediction), bag(target), 0
    if not found or not left:
        return float(found == left)
    wanted = len(left)
    for word in found:
        if word in left:
            left.remove(word)
            common += 1
    precision, recall = common / len(found), common / wanted
    return 2 * precision * recall / (precision + recall) if common else 0.0


def test_squad_f1_counts_every_word_as_often_as_it_stands_there():
    assert value("squad_f1", ["red Red blue"], ["The red, red sea"]) == pytest.approx(2 * 2 / (3 + 3))
    assert value("squad_f1", ["", "the", "x", ""], ["a", "!", "", "x"]) == pytest.approx(2 / 4)
    pairs = list(zip(random_texts(0), random_texts(1)))
    expected = [bag_f1(*pair) for pair in pairs]
    assert len({round(f1, 6) for f1 in expected}) > 8
    found = text_metric("squad_f1").statistics(*zip(*pairs))[:, 0]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_subspan_em_finds_the_answer_anywhere_in_the_prediction():
    found = ["It was the Red-Dog, I think.", "Dogs", "cat", "a", "anything"]
    wanted = ["a reddog", "dog", "dogs", "The", "the"]
    assert text_metric("subspan_em").statistics(found, wanted)[:, 0].tolist() == [1, 1, 0, 1, 0]
    pairs = list(zip(random_texts(2), random_texts(3)))
    joined = [(" ".join(bag(a)), " ".join(bag(b))) for a, b in pairs]
    spans = [any(a[i : i + len(b)] == b for i in range(len(a))) if b else not a for a, b in joined]
    assert 0.02 < np.mean(spans) < 0.98
    assert text_metric("subspan_em").statistics(*zip(*pairs))[:, 0].tolist() == spans


def test_an_article_before_the_answer_costs_no_squad_f1():
    answers = ["Bob", "red cat", "1999", "Gulf of Guinea", "Theatre"]
    articled = [f"the {answer}" for answer in answers]
    assert value("squad_f1", articled, answers) == value("subspan_em", articled, answers) == 1.0
    assert value("token_f1", articled, answers) < 0.8


SCRIPTS = ["हिन्दी दिल", "สวัสดี วันนี้", "שָׁלוֹם עוֹלָם", "كِتَاب جديد", "தமிழ் மொழி", "Việt café", "नमक। चाय"]


@pytest.mark.parametrize("name", ["token_f1", "squad_f1", "exact_match", "subspan_em", "meteor"])
def test_one_spelling_of_a_word_is_as_good_as_another(name):
    spelled = {form: [unicodedata.normalize(form, text) for text in SCRIPTS] for form in ("NFC", "NFD")}
    one, other = (value(name, spelled[form], spelled["NFC"]) for form in ("NFC", "NFD"))
    assert one == other > 0.9


@pytest.mark.parametrize("name", ["token_f1", "squad_f1", "exact_match"])
@pytest.mark.parametrize(
    "pair", [("दाल", "दिल"), ("กา", "กี"), ("பா", "பி"), ("a\u0331", "an\u0331"), ("שָׁל", "שֶׁל")]
)
def test_words_that_differ_in_a_mark_differ(name, pair):
    assert value(name, [pair[0]], [pair[1]]) == 0


def test_what_is_unreadable_names_no_label_or_is_no_number():
    assert [unreadable(text, ("[1]", "[2]")) for text in ("[1]", " [2]\n", "[3]", "", "the first")] == [
        False, False, True, True, True,
    ]  # fmt: skip
    assert [unreadable(text, ()) for text in ("4", " 2.5\n", "9", "five", "", "nan", "5" * 200)] == [
        False, False, False, True, True, True, True,
    ]  # fmt: skip


def test_plain_means_are_told_from_the_others_and_directions_are_known():
    metrics = {name: text_metric(name, LABELS) for name in ("accuracy", "f1_macro", "mae", "rmse", "meteor")}
    assert {name for name, m in metrics.items() if m.finish is plain_mean} == {"accuracy", "mae", "meteor"}
    assert {name for name, m in metrics.items() if not m.higher_is_better} == {"mae", "rmse"}


def test_every_answer_metric_of_the_tasks_exists():
    for kind, names in METRICS.items():
        for name in names if kind != "retrieval" else ():
            assert text_metric(name, LABELS).name == name


def test_unknown_names_and_missing_labels_are_refused():
    with pytest.raises(UserError, match=r"named 'bleu'; there are accuracy, "):
        text_metric("bleu")
    with pytest.raises(UserError, match="'f1_macro' needs the labels"):
        text_metric("f1_macro")

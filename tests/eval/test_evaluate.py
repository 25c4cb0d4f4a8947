"""Evaluation of whole runs: what is scored, what is not, and what is said about it."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import accuracy_score, f1_score

from pbr_jax.base.types import UserError
from pbr_jax.eval.evaluate import evaluate
from pbr_jax.eval.metrics import text_metric
from pbr_jax.eval.significance import Column, estimates
from pbr_jax.tasks import ANSWER_METRICS, released

RANKED = replace(released("longmemeval"), name="ranked", metrics=("recall@1", "recall@3", "ndcg@3"))


def test_classification_values_intervals_and_examples():
    task = released("lamp_1")
    key = np.random.default_rng(0)
    targets, predictions = (key.choice(["[1]", "[2]"], 40).tolist() for _ in range(2))
    users = [f"u{i // 2}" for i in range(40)]
    found = evaluate(
        task, ids=[str(i) for i in range(40)], users=users, predictions=predictions, targets=targets, seed=3
    )
    assert found.metrics == pytest.approx(
        {"accuracy": accuracy_score(targets, predictions),
         "f1_macro": f1_score(targets, predictions, average="macro")}
    )  # fmt: skip
    for name in task.metrics:
        metric = text_metric(name, task.labels)
        column = Column(metric.finish, [metric.statistics(predictions, targets)])
        (alone,) = estimates([column], users, seed=3)
        assert found.intervals[name] == pytest.approx((alone.low, alone.high))
    # One example has an accuracy, but no macro F1.
    assert found.per_example == [{"accuracy": float(p == t)} for p, t in zip(predictions, targets)]
    most = max(targets.count(label) for label in task.labels) / 40
    assert (found.n, found.variants) == (40, {})
    assert [note.split("right in ")[1] for note in found.notes] == [f"{most:.1%}"]  # 20 users: no excuse


def test_intervals_of_few_users_end_where_the_scale_does():
    """Student's t over three users' means .75, 1, 1 reaches beyond 1; over errors 0, 0, 1 below 0."""
    users = [f"u{i // 4}" for i in range(12)]
    options = dict(ids=[str(i) for i in range(12)], users=users)
    found = evaluate(released("lamp_1"), predictions=["[1]"] * 12, targets=["[2]", *["[1]"] * 11], **options)  # type: ignore[arg-type]
    low, _ = stats.t.interval(0.95, 2, 11 / 12, stats.sem([0.75, 1, 1]))
    assert found.intervals["accuracy"] == pytest.approx((low, 1.0))
    off = evaluate(released("lamp_3"), predictions=["1"] * 12, targets=["5", *["1"] * 11], **options)  # type: ignore[arg-type]
    _, high = stats.t.interval(0.95, 2, 1 / 3, stats.sem([1, 0, 0]))
    assert off.intervals["mae"] == pytest.approx((0.0, high))
    assert high > 1  # an error has no such end


def test_generation_names_the_variant_of_meteor():
    found = evaluate(
        released("lamp_4"), ids=["a", "b"], users=["u", "v"], predictions=["a b", "c"], targets=["a b", "d"]
    )
    assert list(found.metrics) == ["rouge1", "rougeL", "meteor"]
    assert found.metrics["rouge1"] == 0.5
    assert found.variants == {"meteor": "exact+stem, no WordNet"}
    told = "2 users: intervals are Student's t, each user left out in turn, and differences have no p"
    assert found.notes == [told]


def test_retrieval_leaves_out_unscored_questions_and_splits_by_category():
    found = evaluate(
        RANKED,
        ids=["q1", "q2", "q3"],
        users=["u", "u", "u"],
        rankings=[["x", "a"], ["b"], []],
        relevant=[[["a"]], [["b"], ["c"]], []],
        scored=[True, True, False],
        categories=["one", "two", "two"],
    )
    assert found.n == 2
    assert found.metrics["recall@1"] == pytest.approx((0 + 0.5) / 2)
    assert found.metrics["recall@3"] == pytest.approx((1 + 0.5) / 2)
    assert found.per_example[2] == {}
    assert found.per_example[1]["recall@3"] == 0.5
    assert found.by_category["one"]["recall@3"] == 1.0
    assert found.by_category["two"] == {"n": 1.0, **found.per_example[1]}
    assert found.intervals["recall@3"] == (0.75, 0.75)  # one user: no width, and it is said
    assert found.by_category_intervals["two"]["recall@3"] == (0.5, 0.5)
    assert found.notes == ["one user: how sure the numbers are cannot be known, so intervals have no width"]


def test_categories_have_intervals_over_their_own_users():
    """Both have as many questions of each user, so the means of users are a plain sample of t."""
    key = np.random.default_rng(1)
    targets, predictions = (key.choice(["[1]", "[2]"], 48).tolist() for _ in range(2))
    users = [f"u{i // 8}" for i in range(48)]
    categories = ["odd" if i % 2 else "even" for i in range(36)] + ["rare"] * 12
    found = evaluate(
        released("lamp_1"), ids=[str(i) for i in range(48)], users=users, predictions=predictions,
        targets=targets, categories=categories, confidence=0.9,
    )  # fmt: skip
    right = np.array([p == t for p, t in zip(predictions, targets)], float)
    means = right[1:32:2].reshape(4, 4).mean(1)  # of the four users who have whole shares of "odd"
    assert found.by_category["odd"]["n"] == 18
    assert found.by_category_users == {"even": 5, "odd": 5, "rare": 2}
    assert found.by_category_intervals["rare"].keys() == found.metrics.keys()
    whole = evaluate(
        released("lamp_1"), ids=list("abcdefghijklmnop"), users=users[1:32:2],
        predictions=predictions[1:32:2],
        targets=targets[1:32:2], categories=["odd"] * 16, confidence=0.9,
    )  # fmt: skip
    expected = stats.t.interval(0.9, 3, means.mean(), stats.sem(means))
    assert whole.by_category_intervals["odd"]["accuracy"] == pytest.approx(expected)
    assert whole.by_category_intervals["odd"] == whole.intervals


def test_answers_on_a_retrieval_benchmark_are_scored_when_given():
    options = dict(ids=["q"], users=["u"], rankings=[["a"]], relevant=[[["a"]]])
    found = evaluate(RANKED, **options, predictions=["Red cat"], targets=["the red dog"])  # pyright: ignore
    assert list(found.metrics) == ["recall@1", "recall@3", "ndcg@3", *ANSWER_METRICS]
    assert found.metrics["squad_f1"] == pytest.approx(2 * 1 / (2 + 2))
    assert found.metrics["token_f1"] == pytest.approx(2 * 1 / (2 + 3))
    assert "exact_match" not in evaluate(RANKED, **options, targets=["t"]).metrics  # pyright: ignore


def test_a_question_with_several_right_answers_gets_the_best_of_them():
    answers = dict(predictions=["the Bob", "red cat", "x", "y"], targets=["Ann", "blue cow", "x", "z"])
    further = [["Bob", "Eve"], ["a red dog", "cat"], [], ["w"]]
    asked = dict(ids=list("abcd"), users=list("abcd"), **answers)
    found = evaluate(released("open_qa"), **asked, alternatives=further)  # pyright: ignore
    assert [example["exact_match"] for example in found.per_example] == [1.0, 0.0, 1.0, 0.0]
    best = [2 / 3, 2 / 3, 1.0, 0.0]  # over sets of words: {the, bob} and {bob}; {red, cat} and {cat}
    assert [example["token_f1"] for example in found.per_example] == pytest.approx(best)
    squad = [1.0, 2 / 3, 1.0, 0.0]
    assert [example["squad_f1"] for example in found.per_example] == pytest.approx(squad)
    assert [example["subspan_em"] for example in found.per_example] == [1.0, 1.0, 1.0, 0.0]
    assert found.metrics == pytest.approx(
        {"exact_match": 0.5, "token_f1": sum(best) / 4, "squad_f1": sum(squad) / 4, "subspan_em": 0.75}
    )
    alone = evaluate(released("open_qa"), **asked)  # pyright: ignore
    assert alone.metrics["exact_match"] == 0.25


def test_alternatives_of_unscored_examples_count_for_nobody():
    found = evaluate(
        released("open_qa"), ids=["a", "b"], users=["a", "b"], predictions=["x", "y"], targets=["z", "z"],
        alternatives=[["x", "y"], []], scored=[False, True],
    )  # fmt: skip
    assert (found.n, found.metrics["exact_match"]) == (1, 0.0)


@pytest.mark.parametrize("targets", [None, [None, None]])
def test_withheld_targets_are_no_error(targets):
    found = evaluate(
        released("lamp_3"), ids=["a", "b"], users=["u", "v"], predictions=["1", "2"], targets=targets
    )
    assert (found.metrics, found.intervals, found.n, found.per_example) == ({}, {}, 0, [{}, {}])
    assert found.notes == ["all targets are withheld, so answers are not scored"]


def test_nothing_generated_or_nothing_scored_is_said():
    found = evaluate(released("lamp_3"), ids=["a"], users=["u"], targets=["3"])
    assert (found.n, found.notes) == (
        0,
        ["no answers were generated; only likelihoods of the targets and retrieval are measured"],
    )
    empty = evaluate(RANKED, ids=["q"], users=["u"], rankings=[["a"]], relevant=[[]], scored=[False])
    assert (empty.n, empty.metrics, empty.notes) == (0, {}, ["no example is scored"])


@pytest.mark.parametrize(
    ("name", "predictions", "unread"),
    [
        ("lamp_1", ["[1]", "[3]", "neither"], 2), ("lamp_2", ["comedy", "Comedy", ""], 2),
        ("lamp_3", ["4", "four", "11"], 1), ("lamp_4", ["", "x", " "], 2),
    ],
)  # fmt: skip
def test_answers_that_cannot_be_read_are_counted(name, predictions, unread):
    right = (*released(name).labels[:1], "1")[0]
    asked = dict(ids=list("abc"), users=list("abc"), predictions=predictions)
    assert evaluate(released(name), **asked, targets=[right] * 3).unreadable == unread  # pyright: ignore
    assert evaluate(released(name), **asked).unreadable == unread  # pyright: ignore  # nor do they need targets
    assert evaluate(released(name), ids=["a"], users=["u"], targets=[right]).unreadable is None


def test_questions_without_a_target_are_noted():
    """One of two targets is missing: of a retrieval task that question is in the ranking's metrics alone."""
    known = [{"total": -2.0, "tokens": 2, "bytes": 4}, {"total": None, "tokens": None, "bytes": None}]
    found = evaluate(
        RANKED, ids=["a", "b"], users=["u", "v"], predictions=["1", "2"], targets=["1", None],
        rankings=[["d"], ["d"]], relevant=[[("d",)], [("d",)]], likelihoods=known,
    )  # fmt: skip
    names = [*ANSWER_METRICS, "target_nll", "target_bpb"]
    assert list(found.metrics) == [*RANKED.metrics, *names]
    assert found.metrics["target_nll"] == 1.0
    assert [set(one) for one in found.per_example] == [{*RANKED.metrics, *names}, {*RANKED.metrics}]
    assert found.notes[0] == f"1 of 2 questions have no target, so they are left out of {', '.join(names)}"


def test_a_category_without_targets_has_no_metrics_of_targets():
    """Nothing was answered, so likelihoods are all that is measured, and they are of one category."""
    known = [{"total": -2.0, "tokens": 2, "bytes": 4}, {"total": None, "tokens": None, "bytes": None}]
    found = evaluate(
        released("lamp_4"), ids=["a", "b"], users=["u", "v"], targets=["1", None], likelihoods=known,
        categories=["told", "untold"], subsets={"rest": [False, True]},
    )  # fmt: skip
    assert found.by_category["untold"] == {"n": 1.0}
    assert found.by_category_intervals["untold"] == found.over["rest"]["intervals"] == {}
    assert set(found.by_category_intervals["told"]) == {"target_nll", "target_bpb"}


def test_user_errors_name_the_example():
    with pytest.raises(UserError, match=r"lamp_3: 1 of 2 targets are missing, the first of example 'b'"):
        evaluate(
            released("lamp_3"), ids=["a", "b"], users=["u", "v"], predictions=["1", "2"], targets=["1", None]
        )
    with pytest.raises(UserError, match=r"ranked, question 'q': the ground truth has no relevant document"):
        evaluate(RANKED, ids=["q"], users=["u"], rankings=[["a"]], relevant=[[]])


def test_lengths_must_agree():
    with pytest.raises(ValueError, match="predictions has 1 items for 2 examples"):
        evaluate(released("lamp_3"), ids=["a", "b"], users=["u", "v"], predictions=["1"], targets=["1", "2"])


ANSWERS = ["สวัสดี วันนี้", "玛丽居里发现了镭", "पूर्व प्रधानमन्त्री", "देर 2023 में", "A plain one", "naïve café", "!"]


def test_where_rouge_sees_no_word_the_notes_say_how_often():
    def notes(targets: list[str]) -> list[str]:
        names = [str(i) for i in range(len(targets))]
        found = evaluate(released("lamp_7"), ids=names, users=names, predictions=targets, targets=targets)
        return [note for note in found.notes if "rouge" in note]

    (note,) = notes(ANSWERS)
    assert "rouge1 and rougeL" in note
    assert "sees no word in 4 of 7 targets" in note
    assert "less than half of the words in 1 more" in note
    (note,) = notes(ANSWERS[:1] + ANSWERS[4:6])
    assert "sees no word in 1 of 3 targets" in note
    assert "less than half" not in note
    assert notes(ANSWERS[4:6]) == []


def test_blocks_of_a_stream_add_up():
    ids = [f"q{i}" for i in range(7)]
    predictions, targets = list("1231512"), list("1135552")
    scored = [True] * 6 + [False]
    found = evaluate(released("lamp_3"), ids=ids, users=ids, predictions=predictions, targets=targets,
                     scored=scored, blocks=[0, 0, 0, 1, 1, 1, 2], resamples=10)  # fmt: skip
    errors = np.abs(np.array(predictions[:6], int) - np.array(targets[:6], int))
    assert [(one["block"], one["n"]) for one in found.by_block] == [(0, 3), (1, 3)]  # nothing scored in 2
    assert [one["metrics"]["mae"] for one in found.by_block] == [errors[:3].mean(), errors[3:].mean()]
    assert found.by_block[0]["running"] == found.by_block[0]["metrics"]
    assert found.by_block[-1]["running"] == found.metrics  # rmse too, which is no mean of the blocks'
    assert found.metrics["rmse"] == pytest.approx(np.sqrt((errors**2).mean()))


def test_units_take_the_place_of_users():
    """Every question is a user by itself, three questions are of an article: t over articles' means."""
    right = np.random.default_rng(3).integers(0, 2, 36)
    options = dict(ids=[str(i) for i in range(36)], users=[f"u{i}" for i in range(36)],
                   predictions=[f"[{1 + r}]" for r in right], targets=["[2]"] * 36)  # fmt: skip
    articles = [f"article {i // 3}" for i in range(36)]
    found = evaluate(released("lamp_1"), units=articles, **options)  # type: ignore[arg-type]
    means = right.reshape(12, 3).mean(1)
    expected = stats.t.interval(0.95, 11, means.mean(), stats.sem(means))
    assert found.intervals["accuracy"] == pytest.approx(expected)
    assert (found.clusters, found.notes[-1]) == (
        "units", "12 units: intervals are Student's t, each unit left out in turn")  # fmt: skip
    some = evaluate(released("lamp_1"), units=[*articles[:18], *[""] * 18], **options)  # type: ignore[arg-type]
    assert (some.clusters, some.n, len(some.notes)) == ("units", 36, 1)  # 6 articles and 18 users: no excuse
    none = evaluate(released("lamp_1"), units=[""] * 36, **options)  # type: ignore[arg-type]
    assert none == evaluate(released("lamp_1"), **options)  # type: ignore[arg-type]
    assert none.clusters == "users"

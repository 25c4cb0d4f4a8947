"""The habits of the synthetic world are where it says they are.

The statistics read the files and the latent truth with plain counting; no method of the package takes part.
"""

import itertools
import json
from collections import Counter
from pathlib import Path

import pytest

from pbr_jax.base.words import words
from pbr_jax.data.synthetic import generate
from pbr_jax.eval.overlap import copied


def load(folder: Path, name: str):
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Path:
    """Enough users for statistics."""
    folder = tmp_path_factory.mktemp("large")
    generate(folder, seed=7, users=400, cohorts=8)
    return folder


def majority(tags: list[str]) -> str:
    return Counter(tags).most_common(1)[0][0] if tags else ""


def rates(folder: Path) -> dict[tuple[str, str], float]:
    """How often a rule names the tag of the answer, by kind of user."""
    users = {user["user_id"]: user for user in load(folder, "truth")["users"]}
    truth = {name: entry for user in users.values() for name, entry in user["documents"].items()}
    asked = {gold["id"] for gold in load(folder, "dev_outputs")["golds"]}
    hits: dict[tuple[str, str], list[bool]] = {}
    for question in load(folder, "dev_questions"):
        user, wanted = users[question["user_id"]], truth[question["id"]]
        own = [truth[document["id"]] for document in question["profile"]]
        told: dict[bool, list[str]] = {True: [], False: []}
        for other in users.values():
            if other is not user:
                told[other["cohort"] == user["cohort"]] += [
                    entry["tag"]
                    for name, entry in other["documents"].items()
                    if entry["topic"] == wanted["topic"] and name not in asked
                ]
        rules = {
            "own": majority([entry["tag"] for entry in own if entry["topic"] == wanted["topic"]]),
            "latest": own[-1]["tag"] if own else "",
            "cohort": majority(told[True]),
            "elsewhere": majority(told[False]),
        }
        for rule, tag in rules.items():
            hits.setdefault((user["kind"], rule), []).append(tag == wanted["tag"])
    return {key: sum(values) / len(values) for key, values in hits.items()}


def test_long_histories_answer_for_themselves_and_short_ones_through_their_cohort(large):
    rate = rates(large)
    assert rate["regular", "own"] > 0.75
    assert rate["regular", "own"] > rate["regular", "cohort"] + 0.15  # own habits differ from the cohort's
    assert rate["regular", "own"] > rate["regular", "latest"] + 0.3  # the topic matters, not the date
    assert rate["newcomer", "own"] == rate["cold", "own"] == 0
    for kind in ("newcomer", "cold"):
        assert rate[kind, "cohort"] > 0.6
        assert rate[kind, "elsewhere"] < 0.3
        assert rate[kind, "latest"] < 0.15
    assert rate["regular", "own"] < 0.98  # habits are noisy
    assert rate["newcomer", "cohort"] < 0.95


def test_tags_alone_are_near_chance(large):
    """No tag is common enough to be guessed: the most frequent answer is rarely right."""
    tags = load(large, "truth")["world"]["tags"]
    answers = [gold["output"] for gold in load(large, "dev_outputs")["golds"]]
    named = [next(tag for tag in tags if tag in answer) for answer in answers]
    assert Counter(named).most_common(1)[0][1] / len(named) < 0.15


def test_the_truth_agrees_with_the_answers(large):
    """The tag that the truth names stands in the answer, and the topic is the text's."""
    truth = {n: e for user in load(large, "truth")["users"] for n, e in user["documents"].items()}
    by_topic: dict[str, Counter] = {}
    documents = {d["id"]: d for question in load(large, "dev_questions") for d in question["profile"]}
    for name, document in documents.items():
        assert truth[name]["tag"] in document["title"]
        by_topic.setdefault(truth[name]["topic"], Counter()).update(set(document["text"].lower().split()))
    assert len(by_topic) == 12
    for topic, counter in by_topic.items():  # each topic has words that no other topic comes near to
        others = [other for name, other in by_topic.items() if name != topic]
        own = [w for w, n in counter.items() if n >= 20 and all(other[w] <= n / 10 for other in others)]
        assert len(own) >= 15, topic


def test_answers_copy_nothing_of_their_questions_and_hold_words_that_no_question_has(large):
    answers = {gold["id"]: gold["output"] for gold in load(large, "dev_outputs")["golds"]}
    questions = load(large, "dev_questions")
    copies = [copied(answers[question["id"]], [question["input"]]) for question in questions]
    assert sum(copies) / len(copies) < 0.02
    asked = set(words(" ".join(question["input"] for question in questions)))
    new = [len(set(words(answer)) - asked) for answer in answers.values()]
    assert min(new) >= 3


@pytest.mark.parametrize("habit", ["greeting", "sign_off"])
def test_a_users_style_is_in_the_history_and_in_the_answer(large, habit):
    """Who has written before has mostly written so; of the others some are so by chance."""
    styles = {user["user_id"]: user["style"][habit] for user in load(large, "truth")["users"]}
    answers = {gold["id"]: gold["output"] for gold in load(large, "dev_outputs")["golds"]}
    questions = load(large, "dev_questions")
    own = [styles[question["user_id"]] in answers[question["id"]] for question in questions]
    before = [
        styles[question["user_id"]] in document["title"]
        for question in questions
        for document in question["profile"]
    ]
    others = [
        styles[question["user_id"]] in answers[other["id"]]
        for question, other in itertools.pairwise(questions)
        if question["user_id"] != other["user_id"]
    ]
    for share in (own, before):
        assert sum(share) / len(share) > 0.8
    assert sum(others) / len(others) < 0.4


def test_a_cohort_shares_its_topics_and_users_mostly_its_habits(large):
    truth = load(large, "truth")
    cohorts = truth["world"]["cohorts"]
    on_topic = [
        entry["topic"] in cohorts[user["cohort"]]["topics"]
        for user in truth["users"]
        for entry in user["documents"].values()
    ]
    assert 0.85 < sum(on_topic) / len(on_topic) < 0.99
    kept: dict[str, list[bool]] = {}
    for user in truth["users"]:
        for topic, tag in user["tags"].items():
            kept.setdefault(user["kind"], []).append(cohorts[user["cohort"]]["tags"][topic] == tag)
    assert 0.55 < sum(kept["regular"]) / len(kept["regular"]) < 0.75
    assert 0.85 < sum(kept["newcomer"]) / len(kept["newcomer"]) < 0.97

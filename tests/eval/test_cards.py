"""Cards of finished runs, and which questions are picked to look at."""

from pathlib import Path

import numpy as np
import pytest
from run_folders import change, with_texts

from pbr_jax.base.types import UserError
from pbr_jax.eval.cards import Shown, cards, gains, picked
from pbr_jax.eval.runs import read_run

N = 24
TARGETS = [str(1 + i % 5) for i in range(N)]
SHIFTED = [str(1 + (i + i // 7) % 5) for i in range(N)]


@pytest.fixture
def run(tmp_path, write) -> Path:
    return with_texts(write(tmp_path / "a", "dense", TARGETS))


def test_a_card_has_all_that_the_folder_holds_of_a_question(run):
    (card,) = cards(run, ["q3"])
    assert (card.id, card.user_id, card.category, card.history) == ("q3", "u1", "c1", 3)
    assert (card.query, card.input, card.target, card.prediction) == ("query 3", "input 3", "4", "4")
    assert card.metrics == {"mae": 0.0}
    first = Shown("d3", "u1", 2.5, {"bm25": 1.0, "dense": 0.5}, None, "text of d3", 86400.0, True)
    assert card.documents == (first, Shown("e3", "u1", 1.5, {}, (3, 9), "text of e3", None, False))
    assert [one.id for one in cards(run)] == [f"q{i}" for i in range(N)]


def test_without_texts_a_card_has_scores_alone(run):
    (run / "texts.jsonl").unlink()
    (card,) = cards(run, ["q3"])
    assert (card.input, card.documents[0].text, card.documents[0].score) == ("", "", 2.5)


def test_gains_are_turned_so_that_more_is_better(run, tmp_path, write):
    other = read_run(write(tmp_path / "b", "none", SHIFTED))
    found = gains(read_run(run), other, "mae")
    assert found == {f"q{i}": abs(int(a) - int(b)) for i, (a, b) in enumerate(zip(SHIFTED, TARGETS))}
    assert gains(other, read_run(run), "mae") == {id: -value for id, value in found.items()}
    assert gains(read_run(run), other, "f1") == {}


def test_the_largest_gains_and_losses_come_first_and_the_rest_is_drawn_with_the_seed():
    values = dict(zip(map(str, range(100)), np.random.default_rng(0).normal(size=100).tolist()))
    ids = list(values)
    found = picked(values, ids, 20, seed=3)
    order = sorted(values, key=values.__getitem__)
    assert len(found) == len({pick.id for pick in found}) == 20
    assert {pick.id for pick in found} >= {*order[:5], *order[-5:]}
    sizes = [abs(pick.gain or 0.0) for pick in found]
    assert sizes == sorted(sizes, reverse=True)
    assert found == picked(values, ids[::-1], 20, seed=3) != picked(values, ids, 20, seed=4)
    assert sorted(p.id for p in picked({}, ids, 200)) == sorted(ids)
    assert picked({"a": 0.0, "b": 1.0}, ["a", "b"], 1)[0].id in "ab"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "predictions.jsonl").unlink(), "has no predictions.jsonl"),
        (lambda folder: (folder / "texts.jsonl").write_text('{"id": "q0'), "line 1: not valid JSON"),
    ],
)  # fmt: skip
def test_folders_that_do_not_fit_are_one_line(run, damage, message):
    damage(run)
    change(run)
    with pytest.raises(UserError, match=message) as found:
        list(cards(run))
    assert "\n" not in str(found.value)


def test_a_question_that_is_not_there_is_named(run):
    with pytest.raises(UserError, match="has no question 'q99'"):
        list(cards(run, ["q1", "q99"]))

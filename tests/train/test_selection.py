"""Which questions choose the step; how far heads moved, and how alike scores are."""

import numpy as np
import pytest
import scipy.stats

from pbr_jax.base.types import Feedback
from pbr_jax.train.selection import FEWEST, correlation, diagnostics, divided, warnings


def question(*values: float) -> Feedback:
    return Feedback(np.arange(len(values)), np.array(values, np.float32))


FLAT, GRADED, ALONE = question(0.5, 0.52, 0.5), question(0.2, 0.9, 0.4), question(0.7)


@pytest.mark.parametrize(("share", "wanted"), [(0.1, 8), (0.2, 10), (0.3, 15)])
def test_informative_questions_are_held_out_and_at_least_eight(share: float, wanted: int):
    feedback = [FLAT, GRADED, ALONE] * 50
    learned, held, informative = divided(feedback, None, share=share, least=0.05, seed=3)
    assert (informative, len(held)) == (50, wanted)
    assert (held % 3 == 1).all()
    assert sorted([*learned, *held]) == [i for i in range(150) if i % 3 < 2]
    other = divided(feedback, None, share=share, least=0.05, seed=4)
    assert not np.array_equal(held, other.held)  # drawn by the seed
    np.testing.assert_array_equal(held, divided(feedback, None, share=share, least=0.05, seed=3).held)
    assert divided(feedback, None, share=share, least=0.0, seed=3).informative == 100


@pytest.mark.parametrize("share", [0.0, 0.2, 0.9])
def test_where_few_are_informative_none_is_held_out(share: float):
    feedback = [GRADED] * (2 * FEWEST - 1) + [FLAT] * 40
    learned, held, _ = divided(feedback, None, share=share, least=0.05, seed=0)
    assert (len(learned), len(held)) == (55, 0)
    one_more = divided([*feedback, GRADED], None, share=share, least=0.05, seed=0)
    assert len(one_more.held) == (FEWEST if share == 0.2 else 0)


def test_no_user_is_on_both_sides():
    feedback = [GRADED, FLAT, GRADED, GRADED] * 15
    owners = [f"u{i // 4}" for i in range(60)]
    learned, held, _ = divided(feedback, owners, share=0.2, least=0.05, seed=0)
    assert len(held) == 9  # three users with three informative questions each
    chosen = {owners[i] for i in held}
    assert chosen.isdisjoint(owners[i] for i in learned)
    assert len(learned) == 60 - 4 * len(chosen)
    assert not len(divided(feedback, ["u"] * 60, share=0.2, least=0.05, seed=0).held)


def test_a_movement_is_relative_to_the_norm_of_all_weights_of_a_head():
    start = {"user": {"kernel": np.array([[3.0, 0.0]]), "bias": np.array([4.0])}}
    now = {"user": {"kernel": np.array([[3.0, 0.3]]), "bias": np.array([4.4])}, "tower": {}}
    assert diagnostics(start, now) == pytest.approx({"user": 0.1})


def test_correlation_is_spearmans_inside_questions():
    random = np.random.default_rng(0)
    before = [random.integers(0, 4, n).astype(float) for n in (3, 5, 9, 30)]
    after = [one + random.normal(size=len(one)).round(1) for one in before]
    wanted = np.mean([float(np.asarray(scipy.stats.spearmanr(*pair))[0]) for pair in zip(before, after)])
    assert correlation(before, after) == pytest.approx(wanted)
    flat = [np.ones(4)]
    assert correlation([*before, *flat], [*after, np.arange(4.0)]) == pytest.approx(wanted)
    assert correlation(flat, flat) is None


def test_doubts_name_heads_that_stand_still_and_scores_that_stay():
    assert warnings({"user": 0.02, "score": 0.3}, 0.9) == []
    found = warnings({"user": 0.009, "score": 0.3}, 0.99)
    assert len(found) == 2
    assert found[0].startswith("the head 'user' moved 0.9 % of its initial norm")
    assert "Spearman 0.990" in found[1]

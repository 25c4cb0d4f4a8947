"""How far heads moved, and how alike scores are."""

import numpy as np
import pytest
import scipy.stats

from pbr_jax.train.diagnostics import correlation, diagnostics, warnings


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

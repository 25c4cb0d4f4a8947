"""What chooses the step of a training: its own objective, or the order of held-out candidates."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from planted_sets import WIDTH, World
from scipy.stats import spearmanr
from test_purple import options, policy

from pbr_jax.base.types import UserError
from pbr_jax.methods.retrieve import Luf
from pbr_jax.methods.select import purple_training as purple
from pbr_jax.models.set_policy import from_arrays, set_policy
from pbr_jax.options import Optimizer, Training, TunedGenerator, UserEncoder, key_of
from pbr_jax.train.loop import fit
from pbr_jax.train.selection import by_users, rank_correlation

RANKS = Training(select_by="rank_correlation")


def _spearman(one: np.ndarray, other: np.ndarray) -> float:
    found: Any = spearmanr(one, other)
    return float(found.statistic)


def test_rank_correlation_is_spearmans_with_ties():
    draw = np.random.default_rng(0)
    values = [draw.integers(0, 4, n).astype(np.float32) for n in (2, 5, 9, 30)]
    values[0][:] = (0, 1)
    scores = [draw.integers(0, 5, len(each)).astype(np.float32) for each in values]
    scores[0][:] = (1, 0)
    wanted = np.mean([_spearman(one, other) for one, other in zip(values, scores)])
    assert rank_correlation(values, scores) == pytest.approx(wanted)


def test_alike_values_do_not_count_and_alike_scores_say_nothing():
    rising, even = np.arange(3.0), np.ones(3)
    assert rank_correlation([rising, even, rising], [rising, rising, even]) == 0.5
    assert rank_correlation([even], [rising]) == 0.0
    assert rank_correlation([], []) == 0.0


@pytest.mark.long
def test_purple_takes_the_step_whose_scores_order_held_out_candidates_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Against scipy on the parameters of every evaluation."""
    world = World(40, 1)
    told = options(num_layers=0, rollouts=2)
    training = dataclasses.replace(
        told.training, select_by="rank_correlation", epochs=3, optimizer=Optimizer(learning_rate=0.03)
    )
    told = dataclasses.replace(told, training=training)
    owners = [f"u{i // 2}" for i in range(len(world))]
    _, held = by_users(owners, training.selection, 0)
    seen, asked = [], set()

    def noted(task, *given, **named):
        def evaluate(params):
            seen.append((task.evaluate(params), jax.device_get(params)))
            return seen[-1][0]

        return fit(task._replace(evaluate=evaluate), *given, **named)

    def reward(profiles):
        asked.update(profiles)
        return world.reward(profiles)

    monkeypatch.setattr(purple, "fit", noted)
    found = purple.train(policy(world, told), reward, world.sizes.tolist(), owners, told, tmp_path, seed=0)
    score = jax.jit(from_arrays(set_policy(told.sizes(WIDTH))))
    assert len(seen) == 4
    for value, params in seen:
        logits = np.asarray(score(params, world.arrays(held)))
        each = []
        for row, question in zip(logits, held.tolist()):
            size = world.sizes[question]
            alone = world.reward([(question, (place,)) for place in range(size)])
            each.append(_spearman(alone, row[:size]))
        assert value == pytest.approx(np.mean(each), abs=1e-5)
    best = int(np.argmax([value for value, _ in seen]))
    assert found.step == best * 2  # two batches an epoch
    assert {profile for profile in asked if profile[0] in held} == {
        (question, (place,)) for question in held.tolist() for place in range(world.sizes[question])
    }


def test_trainings_without_values_of_candidates_refuse():
    for made in (
        lambda: UserEncoder(training=RANKS),
        lambda: TunedGenerator(training=RANKS),
        lambda: Luf(update=RANKS),
    ):
        with pytest.raises(UserError, match=r"select_by is rank_correlation.*set it to reward"):
            made()


def test_the_default_is_in_no_key():
    assert "select_by" not in key_of(Training())
    assert key_of(RANKS)["select_by"] == "rank_correlation"

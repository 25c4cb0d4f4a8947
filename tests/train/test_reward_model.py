"""Guessed rewards: exact where the world is as the model says, and from nothing but what was known."""

from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from pbr_jax.methods.select.purple_training import Drawn, Profile, predicted

WORTH, PAIRS = np.array([3.0, -1.0, 0.5, 2.0, 0.0]), np.zeros((5, 5))
PAIRS[0, 3], PAIRS[1, 2] = -4.0, 3.0


def truth(profile: Profile, pairs: bool) -> float:
    found = WORTH[list(profile)].sum()
    return found + sum(PAIRS[min(p), max(p)] for p in permutations(profile, 2) if p[0] < p[1]) * pairs


@pytest.mark.parametrize("pairs", [False, True])
def test_it_is_ridge_regression_on_records_and_pairs(pairs: bool):
    """Against numpy's least squares with the penalty written as further rows."""
    rng = np.random.default_rng(0)
    every = list(permutations(range(5), 3))
    some = [every[i] for i in rng.choice(len(every), 12, replace=False)]
    columns = [(i,) for i in range(5)] + [(i, j) for i in range(5) for j in range(i) if pairs]

    def design(profiles):
        return np.array([[float(set(column) <= set(profile)) for column in columns] for profile in profiles])

    known = {profile: truth(profile, pairs) for profile in some}
    values = np.array(list(known.values()))
    rows = np.concatenate([design(some), np.eye(len(columns))])
    wanted = np.linalg.lstsq(rows, np.append(values - values.mean(), np.zeros(len(columns))), rcond=None)[0]
    found = predicted(known, np.array(every), "pairwise" if pairs else "additive")
    np.testing.assert_allclose(found, design(every) @ wanted, atol=1e-5)


def test_pairs_tell_what_records_alone_cannot():
    every = list(permutations(range(5), 3))
    known = {profile: truth(profile, True) for profile in every}
    errors = [
        np.std(predicted(known, np.array(every), kind) - np.array(list(known.values())))
        for kind in ("additive", "pairwise")
    ]
    assert errors[1] < 0.3 * errors[0]


def test_sizes_and_empty_places_and_nothing_known():
    """What a size is worth says nothing of its records; a place of -1 holds none."""
    assert predicted({}, np.array([[0, 1], [1, -1]]), "additive").tolist() == [0, 0]
    known = {(0,): 1.0, (1,): 1.0, (0, 1): 9.0, (0, 2): 9.0}
    np.testing.assert_allclose(
        predicted(known, np.array([[0, 1], [1, -1], [7, -1]]), "pairwise"), 0, atol=1e-6
    )


def test_a_step_guesses_from_earlier_ones_also_after_a_kill(tmp_path: Path):
    file = tmp_path / "drawn.jsonl"
    drawn = Drawn(file)
    assert not drawn.before(0)
    for step in (0, 1, 2):
        drawn.before(step)
        drawn.add(step, [(step % 2, (step, 4))], [float(step)])
    file.write_text(file.read_text() + '{"step": 1, "ques')  # torn by the kill
    again = Drawn(file)
    assert again.before(2) == {0: {(0, 4): 0.0}, 1: {(1, 4): 1.0}}
    again.add(2, [(0, (2, 4))], [2.0])
    again.add(2, [(0, (2, 4))], [2.0])
    assert len(file.read_text().splitlines()) == 3
    assert Drawn(file).before(3) == {0: {(0, 4): 0.0, (2, 4): 2.0}, 1: {(1, 4): 1.0}}

"""Which training questions choose the best step, and whether a training has changed anything.

A step is chosen by enough of those questions whose values differ between candidates. A head of random weights
that hardly moved scores at random; numbers that stand on it compare noise.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from pbr_jax.base.types import Feedback, Params
from pbr_jax.options import Training

FEWEST = 8  # informative questions that choose, and that are left to learn from
LEAST_MOVE = 0.01  # of a head's initial norm
MOST_ALIKE = 0.98  # Spearman's correlation of scores with their start


class HeldOut(NamedTuple):
    """Places of questions, sorted. `informative`: how many there are among all."""

    learned: np.ndarray  # int64
    held: np.ndarray  # int64; empty: none chooses, and the last step is taken
    informative: int


def divided(
    feedback: Sequence[Feedback], user_ids: Sequence[str] | None, *, share: float, least: float, seed: int
) -> HeldOut:
    """Holds questions out by users, drawn by the seed.

    A question is informative if its values range over more than `least`. At least `FEWEST` and `share` of
    these are held out, whole users at a time; none where fewer than `FEWEST` would be left. Questions
    with fewer than two candidates are in no part. `user_ids`: who asked each question; None: another user
    each. `share`: of the informative questions; 0: none is held out.
    """
    useful = np.array([i for i, each in enumerate(feedback) if len(each.rows) > 1], np.int64)
    informative = [i for i in useful.tolist() if np.ptp(feedback[i].values) > least]
    users = np.array([str(i) for i in range(len(feedback))] if user_ids is None else user_ids)
    wanted = max(FEWEST, math.ceil(share * len(informative)))
    drawn: set[str] = set()
    held: list[int] = []
    for user in np.random.default_rng([seed, 2]).permutation(np.unique(users[informative])).tolist():
        if share and len(held) < wanted:
            drawn.add(user)
            held += [i for i in informative if users[i] == user]
    if len(held) < wanted or len(informative) - len(held) < FEWEST:
        return HeldOut(useful, useful[:0], len(informative))
    learned = np.array([i for i in useful.tolist() if users[i] not in drawn], np.int64)
    return HeldOut(learned, np.sort(held), len(informative))


def by_users(user_ids: Sequence[str], share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Places of the questions to learn from, and of those of held-out users, who are drawn by the seed.

    A share of the users is held out, and more until they have asked `FEWEST` questions. Where fewer than
    `FEWEST` questions would be left to learn from, nobody is.
    """
    users, names = np.array(user_ids), np.unique(user_ids)
    drawn = np.random.default_rng([seed, 2]).permutation(names)
    questions = np.cumsum([int((users == user).sum()) for user in drawn.tolist()])
    count = max(math.ceil(share * len(names)), int(np.searchsorted(questions, FEWEST)) + 1)
    if not share or count >= len(names) or len(users) - questions[count - 1] < FEWEST:
        return np.arange(len(users)), np.zeros(0, np.int64)
    held = np.isin(users, drawn[:count])
    return np.flatnonzero(~held), np.flatnonzero(held)


def who_chose(config: Training, held: int, few: str) -> list[str]:
    """What to know of how the step was chosen, by `held` questions. `few`: why nobody could be held out,
    where a share was asked for."""
    if not config.epochs:
        return ["untrained, as training.epochs is 0"]
    if held:
        return []
    why = few if config.selection else "training.selection is 0"
    return [f"no questions chose the step ({why}); the last step was taken"]


def diagnostics(start: Params, now: Params) -> dict[str, float]:
    """How far the parts of `start` have moved: |now - start| / |start|, over all weights of a part."""

    def difference(a: Any, b: Any) -> np.ndarray:
        return np.asarray(a, np.float64) - np.asarray(b, np.float64)

    return {
        name: _norm(jax.tree.map(difference, now[name], part)) / max(_norm(part), 1e-12)
        for name, part in start.items()
    }


def _norm(tree: Any) -> float:
    return float(
        np.sqrt(sum(np.square(np.asarray(leaf, np.float64)).sum() for leaf in jax.tree.leaves(tree)))
    )


def correlation(before: Sequence[np.ndarray], after: Sequence[np.ndarray]) -> float | None:
    """Spearman's rank correlation inside each question, on average; None where no question has an order.

    Ties share the mean of their ranks. A question whose scores are all alike, before or after, has no order.
    """
    pairs = zip(before, after, strict=True)
    each = [_spearman(one, other) for one, other in pairs if np.ptp(one) > 0 and np.ptp(other) > 0]
    return float(np.mean(each)) if each else None


def rank_correlation(values: Sequence[np.ndarray], scores: Sequence[np.ndarray]) -> float:
    """Spearman's rank correlation of scores with candidates' values inside each question, on average.

    Of the questions whose values differ; scores that are all alike have 0 there. 0 where no values differ.
    """
    pairs = [(one, other) for one, other in zip(values, scores, strict=True) if np.ptp(one) > 0]
    each = [_spearman(one, other) if np.ptp(other) > 0 else 0.0 for one, other in pairs]
    return float(np.mean(each)) if each else 0.0


def _spearman(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.corrcoef(_ranks(one), _ranks(other))[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[places]


def warnings(moved: Mapping[str, float], alike: float | None) -> list[str]:
    """Warnings about a training that changed hardly anything."""
    warnings = [
        f"the head '{name}' moved {100 * share:.2g} % of its initial norm and is still almost random; raise "
        "training.optimizer.head_learning_rate or training.epochs"
        for name, share in moved.items()
        if share < LEAST_MOVE
    ]
    if alike is not None and alike > MOST_ALIKE:
        warnings.append(
            f"scores are almost those before training (Spearman {alike:.3f} inside questions); raise "
            "learning rates or training.epochs, or take the untuned method"
        )
    return warnings

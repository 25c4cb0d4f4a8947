"""Which training questions choose the best step: enough of those whose values differ between candidates."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pbr_jax.base.types import Feedback
from pbr_jax.options import Training

FEWEST = 8  # informative questions that choose, and that are left to learn from


class HeldOut(NamedTuple):
    """Places of questions, sorted. `informative`: how many there are among all."""

    learned: np.ndarray  # int64
    held: np.ndarray  # int64; empty: none chooses, and the last step is taken
    informative: int


def divided(
    feedback: Sequence[Feedback],
    user_ids: Sequence[str] | None,
    *,
    share: float,
    least: float,
    seed: int,
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

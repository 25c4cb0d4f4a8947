"""Confidence by a bootstrap over users: whole users are resampled, with all their examples.

Questions of one user are alike, so resampling single questions would claim more certainty than
there is. Users are drawn with replacement as often as there are users; a drawn user brings every
example along. The draws depend only on the seed and the set of users, so two runs over the same
users see the same draws: their difference is a paired one.

Field, Welsh, "Bootstrapping clustered data", https://doi.org/10.1111/j.1467-9868.2007.00593.x, 2007.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

Finish = Callable[[np.ndarray], np.ndarray]

_CELLS = 4_000_000  # drawn numbers held at a time, 32 MB


class Difference(NamedTuple):
    """First minus second: the value on the data, its interval, and a two-sided p-value."""

    value: float
    low: float
    high: float
    p_value: float


def resampled_means(
    statistics: Float[np.ndarray, "n s"], users: Sequence[str], *, resamples: int, seed: int
) -> Float[np.ndarray, "b s"]:
    """Means of the statistics in each of b resamples of the users, n >= 1.

    With `w[b, u]` the times that user u was drawn: `(w @ sums over u's examples) / (w @ counts)`.
    """
    names, owner = np.unique(np.asarray(users, dtype=str), return_inverse=True)
    sums = np.zeros((len(names), statistics.shape[1] + 1))
    np.add.at(sums, owner, np.column_stack([statistics, np.ones(len(owner))]))
    generator = np.random.default_rng(seed)
    share = np.full(len(names), 1 / len(names))
    chunk = max(1, _CELLS // len(names))
    sizes = [min(chunk, resamples - start) for start in range(0, resamples, chunk)]
    totals = np.concatenate(
        [generator.multinomial(len(names), share, size=b).astype(float) @ sums for b in sizes]
    )
    return totals[:, :-1] / totals[:, -1:]


def interval(values: Float[np.ndarray, " b"], confidence: float) -> tuple[float, float]:
    """Percentile interval: what lies outside is shared equally by both sides."""
    tail = (1 - confidence) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)


def bootstrap(
    statistics: Float[np.ndarray, "n s"],
    users: Sequence[str],
    finish: Finish,
    *,
    resamples: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
) -> tuple[float, float]:
    """Interval of the metric `finish(mean of statistics)`; of no width where there is one user."""
    return interval(finish(resampled_means(statistics, users, resamples=resamples, seed=seed)), confidence)


def difference(value: float, resampled: Float[np.ndarray, " b"], confidence: float) -> Difference:
    """A difference seen on the data, with its interval and p-value from its resampled values.

    p is twice the share of resamples on the rarer side of zero, zero itself counted to both sides
    and one resample added, so that it is never 0: `min(1, 2 (1 + min(#<=0, #>=0)) / (1 + b))`.
    """
    rarer = min(int(np.sum(resampled <= 0)), int(np.sum(resampled >= 0)))
    low, high = interval(resampled, confidence)
    return Difference(value, low, high, min(1.0, 2 * (1 + rarer) / (1 + len(resampled))))


def paired_difference(
    first: Float[np.ndarray, "n s"],
    second: Float[np.ndarray, "n s"],
    users: Sequence[str],
    finish: Finish,
    *,
    resamples: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Difference:
    """First run minus second, both over the same examples in the same order."""
    width = first.shape[1]
    both = np.concatenate([first, second], axis=1)
    means = resampled_means(both, users, resamples=resamples, seed=seed)
    value = float(finish(first.mean(0, keepdims=True))[0] - finish(second.mean(0, keepdims=True))[0])
    return difference(value, finish(means[:, :width]) - finish(means[:, width:]), confidence)

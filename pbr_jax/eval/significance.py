"""Statistical inference: confidence intervals over users, p-values of paired differences, and corrections.

Questions of one user are correlated, so resampling draws users with all of their examples. If examples have
units (articles, dialogues), these replace users. With 20 users or more, users are drawn with replacement
(bootstrap), and percentiles follow Student's t instead of the normal distribution. With fewer users,
resampling says too little about the tails. The interval is then Student's t around the value, with the
jackknife standard error (each user is left out in turn). Degrees of freedom are Kish's effective number of
users, `(Σ n)² / Σ n²` over their numbers of examples, minus one. If a run was repeated with several seeds,
seeds are left out in turn too. `benchmarks/coverage.py` measures the coverage of these intervals.

Field, Welsh, "Bootstrapping clustered data", https://doi.org/10.1111/j.1467-9868.2007.00593.x, 2007.
MacKinnon, Nielsen, Webb, "Fast and reliable jackknife and bootstrap methods for cluster-robust inference",
https://doi.org/10.1002/jae.2969, 2023. Hesterberg, "What teachers should know about the bootstrap",
https://doi.org/10.1080/00031305.2015.1089789, 2015: the percentiles of t.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from pbr_jax.options import Eval

Finish = Callable[[np.ndarray], np.ndarray]

FEW = 20
"""With fewer users, intervals are Student's t with a jackknife standard error."""
FEWEST = 10
"""With fewer users, no p-value is computed."""
POWER = 0.8
"""The power at which a difference is called detectable."""

_FREEDOM = 1.5  # degrees of freedom at least, of three users or more: with fewer, intervals cover too often
_ROUNDING = 1e-9  # what is smaller, relative to what it comes from, is nothing
_CELLS = 4_000_000  # drawn numbers held at a time, 32 MB


class Column(NamedTuple):
    """A metric of one row, or of one row minus another. Each run of a row (seed) has statistics `[n, s]`.

    An example that the metric is not of has NaN. `by_seed`: the runs at one place of both rows have the same
    seed, so their difference is one value.
    """

    finish: Finish
    first: Sequence[np.ndarray]
    second: Sequence[np.ndarray] = ()
    by_seed: bool = False

    @property
    def runs(self) -> list[np.ndarray]:
        return [*self.first, *self.second]

    def of(self, rows: np.ndarray) -> "Column":
        """The same metric of these examples."""
        first, second = ([run[rows] for run in runs] for runs in (self.first, self.second))
        return self._replace(first=first, second=second)

    def values(self, means: np.ndarray) -> np.ndarray:
        """`[b, s of all runs] -> [r, b]`: the metric of each run from the means of its statistics."""
        ends = np.cumsum([part.shape[1] for part in self.runs])[:-1]
        return np.stack([self.finish(part) for part in np.split(means, ends, axis=1)])

    def combined(self, values: np.ndarray) -> np.ndarray:
        """`[r, b] -> [b]`: the mean over the runs of the first row minus that of the second."""
        split = len(self.first)
        less = values[split:].mean(0) if len(self.second) else 0.0
        return values[:split].mean(0) - less


class Difference(NamedTuple):
    """A difference (first minus second) or the value of one row, with its confidence interval.

    `p_value` is two-sided; None: fewer than 10 users. `detectable` is the smallest difference that would be
    detected in 8 of 10 such samples at this confidence, before any correction. With one user, or if all users
    are equal, nothing can be inferred: the interval has zero width, and both are None.
    """

    value: float
    low: float
    high: float
    p_value: float | None
    detectable: float | None


def turned(difference: Difference, sign: float) -> Difference:
    """The difference with its sign changed if `sign` is negative, so that higher is better."""
    if sign > 0:
        return difference
    return difference._replace(value=-difference.value, low=-difference.high, high=-difference.low)


def by_bootstrap(columns: Sequence[Column], users: Sequence[str]) -> bool:
    """Whether intervals use the bootstrap: at least 20 users, and no row with several seeds."""
    seeds = max(max(len(column.first), len(column.second)) for column in columns)
    return len(set(users)) >= FEW and seeds == 1


def estimates(
    columns: Sequence[Column],
    users: Sequence[str],
    *,
    resamples: int = Eval.resamples,
    confidence: float = 0.95,
    seed: int = 0,
) -> list[Difference]:
    """The value and interval of each column. All columns of the same users use the same bootstrap draws.

    With a single user, intervals have zero width.
    """
    missing = (np.isnan(np.concatenate(column.runs, axis=1)) for column in columns)
    known = [np.asarray(~lacking.any(axis=1)) for lacking in missing]
    if not (columns and np.all(known)):
        kept = [[user for user, one in zip(users, rows, strict=True) if one] for rows in known]
        how = {"resamples": resamples, "confidence": confidence, "seed": seed}
        alone = zip(columns, known, kept, strict=True)
        return [estimates([one.of(rows)], those, **how)[0] for one, rows, those in alone]
    sums, counts = _by_user(np.concatenate([part for c in columns for part in c.runs], axis=1), users)
    drawn = None
    if by_bootstrap(columns, users):
        drawn = resampled_means(sums, counts, resamples=resamples, seed=seed)
    estimated, start = [], 0
    for column in columns:
        width = sum(part.shape[1] for part in column.runs)
        here = slice(start, start + width)
        draws = None if drawn is None else column.values(drawn[:, here])
        estimated.append(_estimate(column, sums[:, here], counts, draws, confidence))
        start += width
    return estimated


def paired_difference(
    first: Float[np.ndarray, "n s"],
    second: Float[np.ndarray, "n s"],
    users: Sequence[str],
    finish: Finish,
    **how: Any,
) -> Difference:
    """The difference of two runs, first minus second, over the same examples in the same order; `how` as in
    `estimates`."""
    return estimates([Column(finish, [first], [second])], users, **how)[0]


def _by_user(
    statistics: Float[np.ndarray, "n s"], users: Sequence[str]
) -> tuple[Float[np.ndarray, "u s"], Float[np.ndarray, " u"]]:
    """Sums of the statistics and numbers of examples, users in the order of their names."""
    names, owner = np.unique(np.asarray(users, dtype=str), return_inverse=True)
    sums = np.zeros((len(names), statistics.shape[1]))
    np.add.at(sums, owner, statistics)
    return sums, np.bincount(owner).astype(float)


def resampled_means(
    sums: Float[np.ndarray, "u s"], counts: Float[np.ndarray, " u"], *, resamples: int, seed: int
) -> Float[np.ndarray, "b s"]:
    """Means of the statistics in each of b resamples of u users, computed from sums over each user.

    Each resample draws u users with replacement. If `w[b, u]` is how often user u was drawn, the means are
    `(w @ sums) / (w @ counts)`. Draws depend only on the seed and the number of users.
    """
    generator = np.random.default_rng(seed)
    users = len(counts)
    both = np.column_stack([sums, counts])
    chunk = max(1, _CELLS // users)
    totals = np.empty((resamples, both.shape[1]))
    for start in range(0, resamples, chunk):
        here = totals[start : start + chunk]
        drawn = generator.integers(users, size=(len(here), users))
        drawn += users * np.arange(len(here))[:, None]
        times = np.bincount(drawn.ravel(), minlength=drawn.size).reshape(drawn.shape)
        here[:] = times.astype(float) @ both
    return totals[:, :-1] / totals[:, -1:]


def _estimate(
    column: Column,
    sums: Float[np.ndarray, "u s"],
    counts: Float[np.ndarray, " u"],
    draws: Float[np.ndarray, "r b"] | None,
    confidence: float,
) -> Difference:
    values = column.values(sums.sum(0, keepdims=True) / counts.sum())
    value = float(column.combined(values)[0])
    spread = _Spread([0.0], [1.0])
    if len(counts) > 1:
        others = sums.sum(0) - sums
        others[np.abs(others) < _ROUNDING * np.abs(sums).sum(0)] = 0.0
        without = column.values(others / (counts.sum() - counts)[:, None])
        spread = _spread(column, values, without, counts)
    reach = spread.reach((1 - confidence) / 2)
    if reach <= _ROUNDING * np.abs(values).max():
        return Difference(value, value, value, None, None)
    if draws is None:
        low, high = value - reach, value + reach
        p = spread.p_value(abs(value)) if len(counts) >= FEWEST else None
    else:
        low, high, p = _by_draws(value, column.combined(draws), spread.freedoms[0], confidence)
    return Difference(value, low, high, p, detectable=reach + spread.reach(1 - POWER))


class _Spread(NamedTuple):
    """The variance of a value, in parts that are known with different degrees of freedom."""

    variances: list[float]
    freedoms: list[float]

    def reach(self, tail: float) -> float:
        """How far the value lies off with this probability, up or down: `sqrt(Σ t(tail, freedom)² variance)`.

        Of a single part it is exact for normal values, of several never too short (as Cochran and Cox's).
        """
        from scipy import special

        return float(np.sqrt(np.square(special.stdtrit(self.freedoms, tail)) @ self.variances))

    def p_value(self, distance: float) -> float:
        """The p at which an interval of confidence 1 - p just ends at this distance, by bisection."""
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self.reach(middle / 2) > distance else (low, middle)
        return high


def _spread(
    column: Column,
    values: Float[np.ndarray, "r 1"],
    without: Float[np.ndarray, "r u"],
    counts: Float[np.ndarray, " u"],
) -> _Spread:
    """From r runs' values and their values without each user.

    Users: `Σ d² / (u (u - 1))` with `d = (u - 1) (value - value without the user)`. Each row of several seeds
    adds the variance of the mean over its seeds, less the share of it that is users' answering
    differently from seed to seed, which is among the users' variance already. Rows of equal seeds are one row
    of differences.
    """
    users = len(counts)
    influence = (users - 1) * (values - without)
    variances = [float((column.combined(influence) ** 2).sum() / (users * (users - 1)))]
    effective = float(counts.sum() ** 2 / (counts**2).sum())
    freedoms = [max(min(users - 1, _FREEDOM), effective - 1)]
    split = len(column.first)
    if column.by_seed:
        values, influence = values[:split] - values[split:], influence[:split] - influence[split:]
    for row in (slice(0, split), slice(split, None)):
        seeds = len(values[row])
        if seeds > 1:
            apart = influence[row] - influence[row].mean(0)
            shared = float((apart**2).sum()) / ((users - 1) * (seeds - 1) * users * seeds)
            own = float(values[row].var(ddof=1)) / seeds - shared
            variances += [own] if own > 0 else []
            freedoms += [seeds - 1] if own > 0 else []
    return _Spread(variances, freedoms)


def _by_draws(
    value: float, draws: Float[np.ndarray, " b"], freedom: float, confidence: float
) -> tuple[float, float, float | None]:
    """The interval between percentiles of the draws, and the p of their standard deviation.

    Draws spread less than the value does, by `sqrt(freedom / (freedom + 1))`, and how far is uncertain: the
    percentiles are those of the normal distribution at t's quantile, widened by as much. The share of draws
    beyond zero is no p to correct: it is never under 1 / b, and for many comparisons that is much. One draw
    has no deviation, and gives no p.
    """
    from scipy import special

    widening = ((freedom + 1) / freedom) ** 0.5
    tail = float(special.ndtr(-special.stdtrit(freedom, (1 + confidence) / 2) * widening))
    low, high = map(float, np.quantile(draws, [tail, 1 - tail]))
    error = float(draws.std()) * widening
    return low, high, 2 * float(special.stdtr(freedom, -abs(value) / error)) if error > 0 else None


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction of m p-values: the i-th smallest becomes `max_{j <= i} min(1, (m - j + 1) p_j)`.

    Holm, "A simple sequentially rejective multiple test procedure", 1979.
    """
    p = np.asarray(p_values, float)
    order = np.argsort(p)
    steps = np.minimum(1.0, p[order] * np.arange(len(p), 0, -1))
    corrected = np.empty(len(p))
    corrected[order] = np.maximum.accumulate(steps) if len(p) else steps
    return corrected.tolist()


def mcnemar(first: Float[np.ndarray, " n"], second: Float[np.ndarray, " n"]) -> tuple[int, int, float]:
    """McNemar's exact test: how many questions only the first and only the second answers correctly, and p.
    The values are 1 for right and 0 for wrong.

    Under the null hypothesis, each is right on half of the questions on which they differ:
    `p = min(1, 2 P(X <= smaller count))` for a binomial X. Questions are assumed to be independent.
    McNemar, "Note on the sampling error of the difference between correlated proportions or
    percentages", 1947.
    """
    from scipy import special

    gained, lost = int(np.sum(first > second)), int(np.sum(first < second))
    if gained + lost == 0:
        return 0, 0, 1.0
    return gained, lost, min(1.0, 2 * float(special.bdtr(min(gained, lost), gained + lost, 0.5)))

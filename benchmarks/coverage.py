"""How often the printed intervals hold the truth, and how often p finds what is not there.

    python benchmarks/coverage.py [--trials 500] [--users 3 6 10 20 40 200] [--sizes 5 40]

Users have from 5 to 40 questions each (log-uniform), and a user's questions are alike. Each cell is the share
of such samples whose 95 % interval holds the value that all users there could be would have; intervals are
those of `pbr_jax.eval.significance.estimates`, which evaluation and report print. In brackets: the share of
paired differences of equally good runs with p < .05, before any correction, where p is given.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from pbr_jax.eval.metrics import plain_mean, text_metric
from pbr_jax.eval.significance import Column, Difference, estimates

LABELS = ("a", "b", "c")
_MANY = 20_000  # users from whom the truth is computed where there is no closed form


class Sample(NamedTuple):
    columns: list[Column]
    users: list[str]


Draw = Callable[[np.random.Generator, np.ndarray], Sample]


def of(columns: list[Column], owner: np.ndarray) -> Sample:
    return Sample(columns, [f"u{user:06d}" for user in owner])


def latent(rng: np.random.Generator, owner: np.ndarray, between: float) -> np.ndarray:
    """Standard normal scores, correlated by `between` within a user."""
    users = rng.normal(size=owner.max() + 1)
    return np.sqrt(between) * users[owner] + np.sqrt(1 - between) * rng.normal(size=len(owner))


def right(scores: np.ndarray) -> np.ndarray:
    return (scores > 0).astype(float)[:, None]


def score(rng: np.random.Generator, owner: np.ndarray) -> Sample:
    """A score between 0 and 1, as ROUGE."""
    return of([Column(plain_mean, [1 / (1 + np.exp(-latent(rng, owner, 0.3)))[:, None]])], owner)


def accuracy(rng: np.random.Generator, owner: np.ndarray) -> Sample:
    return of([Column(plain_mean, [right(latent(rng, owner, 0.3))])], owner)


def rated(rng: np.random.Generator, owner: np.ndarray) -> tuple[list[str], list[str]]:
    """Ratings from 1 to 5 and guesses at them that are off by more for some users than for others."""
    targets = np.clip(np.round(4 + latent(rng, owner, 0.3)), 1, 5)
    spread = rng.uniform(0.5, 1.1, size=owner.max() + 1)[owner]
    guesses = np.clip(np.round(targets + spread * rng.normal(size=len(owner))), 1, 5)
    return [f"{guess:.0f}" for guess in guesses], [f"{target:.0f}" for target in targets]


def rmse(rng: np.random.Generator, owner: np.ndarray) -> Sample:
    metric = text_metric("rmse")
    return of([Column(metric.finish, [metric.statistics(*rated(rng, owner))])], owner)


def labelled(rng: np.random.Generator, owner: np.ndarray, runs: int) -> list[np.ndarray]:
    """Statistics of macro F1: users have favourites of three labels, and are easy or hard."""
    metric = text_metric("f1_macro", LABELS)
    favourite = rng.dirichlet([2.0] * 3, size=owner.max() + 1)
    targets = (rng.random(len(owner))[:, None] > favourite.cumsum(1)[owner]).sum(1).clip(max=2)
    easy = 0.5 + 0.7 * latent(rng, owner, 0.3)
    found = []
    for _ in range(runs):
        hit = easy + latent(rng, owner, 0.2) > 0
        guesses = np.where(hit, targets, rng.integers(0, 3, len(owner)))
        found.append(metric.statistics([LABELS[i] for i in guesses], [LABELS[i] for i in targets]))
    return found


def f1(rng: np.random.Generator, owner: np.ndarray) -> Sample:
    return of([Column(text_metric("f1_macro", LABELS).finish, labelled(rng, owner, 1))], owner)


def f1_difference(rng: np.random.Generator, owner: np.ndarray) -> Sample:
    first, second = labelled(rng, owner, 2)
    return of([Column(text_metric("f1_macro", LABELS).finish, [first], [second])], owner)


def accuracy_difference(rng: np.random.Generator, owner: np.ndarray, seeds: int, moved: float) -> Sample:
    """Two runs that some questions and users suit better than others; `moved`: what a seed moves at once."""
    shared = latent(rng, owner, 0.3)
    rows = []
    for repeats in (seeds, 1):
        suits = latent(rng, owner, 0.3)
        scale = np.sqrt(3 + moved**2) if repeats > 1 else np.sqrt(2)
        noise = [
            moved * rng.normal() + rng.normal(size=len(owner)) if repeats > 1 else 0.0 for _ in range(repeats)
        ]
        rows.append([right((shared + suits + off) / scale) for off in noise])
    return of([Column(plain_mean, rows[0], rows[1])], owner)


def gain(rng: np.random.Generator, owner: np.ndarray, draw: Callable[..., np.ndarray]) -> Sample:
    """A paired difference whose mean for a user is drawn, with mean 1; questions add noise as large."""
    users = draw(rng, owner.max() + 1)
    return of([Column(plain_mean, [(users[owner] + rng.normal(size=len(owner)))[:, None]])], owner)


def exponential(rng: np.random.Generator, users: int) -> np.ndarray:
    return rng.exponential(size=users)


def few(rng: np.random.Generator, users: int) -> np.ndarray:
    """One user in ten has all of it."""
    return np.where(rng.random(users) < 0.1, 10.0, 0.0)


SCENES: dict[str, tuple[Draw, float | None]] = {
    "mean, score in 0..1": (score, 0.5),
    "mean, accuracy": (accuracy, 0.5),
    "rmse of ratings": (rmse, None),
    "macro F1": (f1, None),
    "paired difference, accuracy": (partial(accuracy_difference, seeds=1, moved=0.0), 0.0),
    "paired difference, macro F1": (f1_difference, 0.0),
    "paired difference, accuracy, 3 seeds less 1": (partial(accuracy_difference, seeds=3, moved=0.3), 0.0),
    "paired difference, users' effects exponential": (partial(gain, draw=exponential), 1.0),
    "paired difference, one user in ten has all of it": (partial(gain, draw=few), 1.0),
}


def owners(rng: np.random.Generator, users: int, sizes: tuple[int, int]) -> np.ndarray:
    """Whose question each is: users have log-uniformly many."""
    low, high = np.log(sizes[0]), np.log(sizes[1] + 1)
    return np.repeat(np.arange(users), np.exp(rng.uniform(low, high, users)).astype(int))


def truth(draw: Draw, sizes: tuple[int, int]) -> float:
    """The value over very many users."""
    rng = np.random.default_rng(123)
    sample = draw(rng, owners(rng, _MANY, sizes))
    column = sample.columns[0]
    return float(column.finish(column.first[0].mean(0)))


def tried(
    name: str, users: int, trials: int, sizes: tuple[int, int], resamples: int = 1000
) -> tuple[float, float | None]:
    """Coverage of a scene's intervals, and the share of p under .05 where p is given."""
    draw, known = SCENES[name]
    wanted = truth(draw, sizes) if known is None else known
    rng = np.random.default_rng([users, trials])
    found: list[Difference] = []
    for trial in range(trials):
        sample = draw(rng, owners(rng, users, sizes))
        found += estimates(sample.columns, sample.users, resamples=resamples, seed=trial)
    covered = np.mean([one.low <= wanted <= one.high for one in found])
    p = [one.p_value for one in found if one.p_value is not None]
    return float(covered), float(np.mean(np.less(p, 0.05))) if p and "difference" in name else None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--users", type=int, nargs="+", default=[3, 6, 10, 20, 40, 200])
    parser.add_argument(
        "--sizes", type=int, nargs=2, default=(5, 40), help="fewest and most questions of a user"
    )
    options = parser.parse_args()
    start = time.perf_counter()
    print(f"| covered by 95 % intervals (p < .05) | {' | '.join(f'{n} users' for n in options.users)} |")
    print(f"|---|{'---|' * len(options.users)}", flush=True)
    for name in SCENES:
        cells = []
        for users in options.users:
            covered, false = tried(name, users, options.trials, tuple(options.sizes))
            cells.append(f"{covered:.3f}" + ("" if false is None else f" ({false:.3f})"))
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    print(f"\n{options.trials} trials, {options.sizes} questions, {time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()

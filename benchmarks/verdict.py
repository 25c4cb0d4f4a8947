"""How often `pbr-jax check` says "Yes" without a reason, and how often with one, by simulation.

    python benchmarks/verdict.py --repeats 2000

A question has two differences: own documents less none, which always help here, and own documents less one
other user's, which decide. Under a null the second has mean zero. The verdict comes from the package's own
functions: `significance.paired_difference`, `verdict.answer`, and `looks.Look` for checks that are repeated
on a growing sample until one says yes. The last columns give the share of "Yes" of one check, and of any of
five checks, with and without the correction for looks.

Nulls: normal differences; heavy tails (t with 3 degrees of freedom); users whose effects are skewed
(exponential); one user in ten with ten times the questions; 12 users alone. `power` has a mean of 0.25
standard deviations of a question.
"""

import argparse
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pbr_jax.checking.looks import Look
from pbr_jax.checking.verdict import answer
from pbr_jax.eval.metrics import plain_mean
from pbr_jax.eval.significance import Difference, paired_difference

USERS = (25, 50, 100, 200, 300)  # of the five looks
EACH = 3  # questions of a user, on average
ALWAYS = Difference(1.0, 0.9, 1.1, 0.0, 0.1)  # own documents less none

Draw = Callable[[np.random.Generator, int], np.ndarray]


class World(NamedTuple):
    """`effects` of users and `noise` of questions have mean 0; `sizes` are numbers of questions."""

    effects: Draw
    noise: Draw
    sizes: Draw = lambda generator, users: np.full(users, EACH)
    users: tuple[int, ...] = USERS
    mean: float = 0.0


def normal(generator: np.random.Generator, count: int) -> np.ndarray:
    return generator.normal(size=count)


def heavy(generator: np.random.Generator, count: int) -> np.ndarray:
    return generator.standard_t(3, size=count)


def skewed(generator: np.random.Generator, count: int) -> np.ndarray:
    return generator.exponential(size=count) - 1


def unequal(generator: np.random.Generator, users: int) -> np.ndarray:
    return np.where(generator.random(users) < 0.1, 10 * EACH, EACH)


def half(draw: Draw) -> Draw:
    return lambda generator, count: 0.5 * draw(generator, count)


WORLDS = {
    "normal": World(half(normal), normal),
    "heavy tails": World(half(heavy), heavy),
    "skewed users": World(skewed, normal),
    "unequal users": World(half(normal), normal, unequal),
    "12 users": World(half(normal), normal, users=(12,)),
    "power": World(half(normal), normal, mean=0.25),
    "power, 12 users": World(half(normal), normal, users=(12,), mean=0.25),
}


def yes(world: World, generator: np.random.Generator, resamples: int) -> tuple[list[bool], list[bool]]:
    """Whether each look says "Yes", with the correction for looks and without."""
    most = max(world.users)
    sizes = np.asarray(world.sizes(generator, most), int)
    owner = np.repeat(np.arange(most), sizes)
    values = world.mean + world.effects(generator, most)[owner] + world.noise(generator, len(owner))
    corrected, plain = [], []
    for number, users in enumerate(world.users, 1):
        asked = owner < users
        first, names = values[asked, None], [str(user) for user in owner[asked]]
        for found, look in ((corrected, Look(number)), (plain, Look())):
            confidence = look.confidence(0.95)
            beyond = paired_difference(first, np.zeros_like(first), names, plain_mean,
                                       resamples=resamples, confidence=confidence)  # fmt: skip
            found.append(answer(ALWAYS, beyond, users) == "helps")
    return corrected, plain


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2000)
    parser.add_argument("--resamples", type=int, default=2000)
    arguments = parser.parse_args()
    print(f"{'world':<16} {'first look':>10} {'last look':>10} {'any, corrected':>15} {'any, plain':>11}")
    for name, world in WORLDS.items():
        generator = np.random.default_rng(0)
        pairs = [yes(world, generator, arguments.resamples) for _ in range(arguments.repeats)]
        corrected, plain = (np.array(some) for some in zip(*pairs, strict=True))
        shares = plain[:, 0], plain[:, -1], corrected.any(1), plain.any(1)
        cells = [f"{100 * share.mean():.1f} %" for share in shares]
        print(f"{name:<16} {cells[0]:>10} {cells[1]:>10} {cells[2]:>15} {cells[3]:>11}", flush=True)


if __name__ == "__main__":
    main()

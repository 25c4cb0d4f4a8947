"""The runs of a check: a few systems on a sample of questions that doubles while the budget lasts."""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from pbr_jax import terminal
from pbr_jax.config import Config, Overrides, override
from pbr_jax.experiment import run

NOTHING, OTHERS = "zero_shot", "others_random"
_OTHERS: Overrides = {
    "collaboration": "text",
    "neighbours.method": "random",
    "neighbours.m": 8,
    "neighbours.own": False,
    "retrieve.method": "random",
    "retrieve.k": 1,
    "select.k": 4,
}
ROWS: dict[str, Overrides] = {
    NOTHING: {"retrieve.method": "none"},
    OTHERS: _OTHERS,
    **{name: {"retrieve.method": name} for name in ("random", "recency", "bm25", "dense")},
}
"""No documents; a control: other users' documents; and ways to choose four of the user's own."""

CHOSEN = "bm25"
"""The way to use the own history that is compared with both, fixed before anything is run."""

FIRST = 25  # questions of the first round
MOST = 400  # questions; more would tell little


class Round(NamedTuple):
    """The folders of the rows of one sample, by their names, and its size."""

    folders: Mapping[str, Path]
    questions: int


def rounds(
    base: Config, out: Path, total: int, seconds: float, clock: Callable[[], float] = time.monotonic
) -> Iterator[Round]:
    """Runs all rows on 25 questions, then on twice as many, as long as the next round should end in time.

    A larger sample holds the smaller one, whose language model's scores are in the cache, so that a round
    costs its new questions alone. `total`: questions that there are.
    """
    begin, size, rate = clock(), min(FIRST, total, MOST), 0.0
    done = 0
    while size > done and (not done or clock() - begin + rate * (size - done) <= seconds):
        start = clock()
        folders = {}
        for name, row in ROWS.items():
            config = override(base, {**row, "system": name, "limit": size})
            folders[name] = run(config, out / name, overwrite=True).path
        rate = (clock() - start) / (size - done)  # of the first round with loading: never too low
        done = size
        terminal.err(f"check: {done} of {total} questions, {clock() - begin:.0f} s")
        yield Round(folders, done)
        size = min(2 * size, total, MOST)

"""The runs of a check: a few systems on a sample of questions that grows while the budget lasts."""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from pbr_jax import terminal
from pbr_jax.config import Config, Overrides, override
from pbr_jax.experiment import run

NOTHING, OTHERS, ALIKE = "zero_shot", "others_random", "others_bm25"
_OTHERS: Overrides = {
    "collaboration": "text",
    "neighbours.method": "random",
    "neighbours.m": 8,
    "neighbours.own": False,
    "retrieve.k": 1,
    "select.k": 4,
}
ROWS: dict[str, Overrides] = {
    NOTHING: {"retrieve.method": "none"},
    OTHERS: {**_OTHERS, "retrieve.method": "random"},
    ALIKE: {**_OTHERS, "retrieve.method": "bm25"},
    **{name: {"retrieve.method": name} for name in ("random", "recency", "bm25", "dense", "fused")},
}
"""No documents; two controls, other users' documents at random and by words; and ways to choose four of the
user's own."""

NAMES = {
    NOTHING: "no documents",
    OTHERS: "other users', at random",
    ALIKE: "other users', by words (BM25)",
    "random": "own, at random",
    "recency": "own, the newest",
    "bm25": "own, by words (BM25)",
    "dense": "own, by meaning (dense)",
    "fused": "own, by both (fused)",
}
"""The rows as tables and messages name them."""

CHOSEN = "bm25"
"""The way to use the own history that is compared with these, fixed before anything is run."""

ANSWERED = {name: ROWS[name] for name in (NOTHING, ALIKE, CHOSEN)}
"""The rows that write answers too, where the task's metrics need them."""

FIRST = 25  # questions of the first round
FEWEST = 10  # of them where the machine is too slow: users that a verdict needs
MOST = 400  # questions; more would tell little
_LEAST = 10  # questions that a further round adds
_LATE = 2.0  # times the time that is left: what a first round may take, since loading is a part of it
_SURE = 0.8  # share of the time left that a round is planned for: a machine may become slower


class Round(NamedTuple):
    """The folders of the rows of one sample, by their names, and its size; `rate`: seconds a question."""

    folders: Mapping[str, Path]
    questions: int
    rate: float


def rounds(
    base: Config,
    rows: Mapping[str, Overrides],
    out: Path,
    total: int,
    end: float,
    *,
    first: int = FIRST,
    what: str = "likelihoods",
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Round]:
    """Runs all rows on the first questions, then on up to twice as many, as long as a round should end in
    time (`end`, by the clock).

    The first round is always run. Where its first row shows that it would take more than twice the time
    that is left, the round asks fewer questions, `FEWEST` at least. A larger sample holds the smaller one,
    whose language model's scores are in the cache, so that a round costs its new questions alone. `total`:
    questions that there are.
    """
    done, size = 0, min(first, total, MOST)
    terminal.err(f"check: {what} in {len(rows)} ways, {size} of {total} questions first")
    while not done or size >= min(done + _LEAST, total) > done:
        start, folders = clock(), {}
        for number, (name, row) in enumerate(rows.items(), 1):
            terminal.err(f"check: way {number} of {len(rows)}, {size} questions: {NAMES.get(name, name)}")
            folders[name] = _run(base, row, name, out, size)
            if number == 1 and not done and (fewer := _fewer(size, clock() - start, end - start, len(rows))):
                terminal.err(f"check: at this speed {size} would take too long, so {fewer} are asked first")
                size = fewer
                folders[name] = _run(base, row, name, out, size)
        rate = (clock() - start) / (size - done)  # of the first round with loading: never too low
        done = size
        terminal.err(f"check: {done} of {total} questions are done, {max(end - clock(), 0):.0f} s left")
        yield Round(folders, done, rate)
        size = min(2 * done, done + int(_SURE * max(end - clock(), 0.0) / rate), total, MOST)


def _run(base: Config, row: Overrides, name: str, out: Path, size: int) -> Path:
    config = override(base, {**row, "system": name, "limit": size})
    return run(config, out / name, overwrite=True).path


def _fewer(size: int, took: float, budget: float, ways: int) -> int | None:
    """Questions of a first round whose first way `took` so long, where the others would end too late."""
    share = _LATE * budget / (took * ways) if took else 1.0
    return max(FEWEST, int(size * share)) if share < 1 and size > FEWEST else None

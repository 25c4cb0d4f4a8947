"""The runs of a check: a few systems on a sample of questions that grows while the budget lasts."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from pbr_jax.base import terminal
from pbr_jax.config import Config, Overrides, override
from pbr_jax.experiment.run import run
from pbr_jax.llm import usage
from pbr_jax.methods import generate

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
    ALIKE: "other users', same search (BM25)",
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
FEWEST = 10  # of them where 25 would take too long: users that a verdict needs
MOST = 400  # questions; more would tell little
_LEAST = 10  # questions that a further round adds
_LATE = 1.5  # times the time that is left: a round that would take longer asks fewer questions
_SURE = 0.8  # share of the time left that a round is planned for: a machine may become slower


class Round(NamedTuple):
    """The folders of the rows of one sample, by their names, and its size; `rate`: seconds a question in all
    rows, 0 where all answers were in the cache."""

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

    The first round is always run. A round's first row shows documents (`CHOSEN`), and in the first round it
    is timed on `FEWEST` questions. Where, after any row, the round would take more than 1.5 times the time
    that it has, it goes on with as many questions as fit: at least `FEWEST`, and those of the last round. A
    larger sample holds the smaller one, whose language model's scores are in the cache, so that a round
    costs its new questions alone, and a smaller one next to nothing. What the cache answered before the
    check says nothing of the speed: as long as it answers all, a round begins with a few questions that are
    timed. `total`: questions that there are.
    """
    done, size, rate = 0, min(first, total, MOST), 0.0  # unknown
    ways = sorted(rows, key=lambda name: (name != CHOSEN, name == NOTHING))  # the shortest prompts last
    while not done or size >= min(done + _LEAST, total) > done:
        before = done
        terminal.err(f"check: {what} in {len(rows)} ways, {size} of {total} questions")
        asking = _Asking(base, rows, out, before, size, end, clock, bool(rate))
        folders = asking.all(ways)
        done = asking.size
        rate = len(ways) * asking.each or rate  # of the first round with loading: never too low
        terminal.err(f"check: {done} of {total} questions are done, {duration(end - clock())} left")
        yield Round({name: folders[name] for name in rows}, done, rate)
        if done == before:
            return
        size = min(2 * done, total, MOST)
        if rate:
            size = min(size, done + int(_SURE * max(end - clock(), 0.0) / rate))


@dataclass
class _Asking:
    """One round: `size` questions, `done` of which are in the cache, which shrink where time is short.

    `timed`: whether it is known what a question takes.
    """

    base: Config
    rows: Mapping[str, Overrides]
    out: Path
    done: int
    size: int
    end: float
    clock: Callable[[], float]
    timed: bool
    folders: dict[str, Path] = field(default_factory=dict)
    answered: float = 0.0  # questions that models answered
    spent: float = 0.0  # seconds of the runs that had some

    def __post_init__(self) -> None:
        self.start = self.clock()
        self.time = max(self.end - self.start, 0.0)

    def all(self, ways: Sequence[str]) -> Mapping[str, Path]:
        """The folders of all rows."""
        first, probe = 0, self.done + FEWEST
        if not self.timed and self.size > probe:
            terminal.err(f"check: timing {FEWEST} questions: {NAMES.get(ways[0], ways[0])}")
            self._run(ways[0], probe, FEWEST)
            first = FEWEST
            self._fit(len(ways), FEWEST)
        for number, name in enumerate(ways, 1):
            terminal.err(
                f"check: way {number} of {len(ways)}, {self.size} questions: {NAMES.get(name, name)}"
                + self._left(len(ways) - number + 1)
            )
            new = self.size - self.done - (first if number == 1 else 0)
            self.folders[name] = self._run(name, self.size, new)
            self._fit(len(ways) - number)
        return self.folders

    def _run(self, name: str, size: int, new: int = 0) -> Path:
        """The folder of a row's run, in which `new` questions are asked that the rounds have not asked."""
        config, start = override(self.base, {**self.rows[name], "system": name, "limit": size}), self.clock()
        with usage.looked_up() as looked:
            path = run(config, self.out / name, overwrite=True).path
        asks = self.base.eval.likelihood != "off" or not isinstance(self.base.generate, generate.Nothing)
        # A stage that is found whole looks nothing up.
        made = size * looked["made"] / max(looked.total(), 1) if asks else new
        if made and new > 0:
            self.answered += min(new, made)
            self.spent += self.clock() - start
        return path

    @property
    def each(self) -> float:
        """Seconds that a question took in one row, so far; 0 where the cache had all answers."""
        return self.spent / self.answered if self.answered else 0.0

    def _left(self, ways: int) -> str:
        seconds = ways * (self.size - self.done) * self.each
        return f" (about {duration(seconds)} for the rest of this round)" if seconds else ""

    def _fit(self, ways: int, ahead: int = 0) -> None:
        """Takes fewer questions where the remaining `ways` would end too late; `ahead`: done of them."""
        spent, each = self.clock() - self.start, self.each
        left = (ways * (self.size - self.done) - ahead) * each
        if spent + left <= _LATE * self.time or not ways or not each:
            return
        fitting = int((self.time - spent) / (ways * each))
        size = max(self.done + min(fitting, self.size), self.done or FEWEST)
        if size < self.size:
            terminal.err(f"check: {self.size} questions would take too long, so {size} are asked")
            self.size = size
            self.folders = {name: self._run(name, size) for name in self.folders}


def duration(seconds: float) -> str:
    """Seconds up to two minutes, then minutes."""
    return f"{max(seconds, 0.0):.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"

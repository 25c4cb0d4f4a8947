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

NOTHING, OTHER, SEVERAL = "zero_shot", "one_other_user", "other_users"
_OTHERS: Overrides = {
    "collaboration": "text",
    "neighbours.method": "random",
    "neighbours.own": False,
    "retrieve.method": "bm25",
    "select.k": 4,
}
ROWS: dict[str, Overrides] = {
    NOTHING: {"retrieve.method": "none"},
    OTHER: {**_OTHERS, "neighbours.m": 1, "neighbours.matched": True, "retrieve.k": 4},
    SEVERAL: {**_OTHERS, "neighbours.m": 8, "retrieve.k": 1},
    **{name: {"retrieve.method": name} for name in ("random", "recency", "bm25", "dense", "fused")},
}
"""No documents. The control: documents of one other user, found by the same search in a history that has as
many documents of about the same length. Collaboration: one document of each of eight other users. And ways to
choose four of the user's own documents."""

NAMES = {
    NOTHING: "no documents",
    OTHER: "one other user's, by words (BM25)",
    SEVERAL: "eight other users', by words (collaboration)",
    "random": "own, at random",
    "recency": "own, the newest",
    "bm25": "own, by words (BM25)",
    "dense": "own, by meaning (dense)",
    "fused": "own, by both (fused)",
}
"""The rows as tables and messages name them."""

CHOSEN = "bm25"
"""The way to use the own history that is compared with these, fixed before anything is run."""

ANSWERED = {name: ROWS[name] for name in (NOTHING, OTHER, CHOSEN)}
"""The rows that write answers too, where the task's metrics need them."""

FIRST = 25  # questions of the first round, which is always run
_PROBE = 10  # questions that are timed where the cache had all answers so far
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
    """Runs all rows on the first questions, then on up to twice as many, until the time is used (`end`, by
    the clock) or all questions are asked.

    The first round is always run. Where, after any row, a later round would take more than 1.5 times the
    time that it has, it goes on with as many questions as fit, at least those of the last round. A larger
    sample holds the smaller one, whose language model's scores are in the cache, so that a round costs its
    new questions alone. Answers from the cache say nothing about the speed: if all were cached so far, a
    round begins with a few questions that are timed. `total`: questions that there are.
    """
    done, size, rate = 0, min(first, total), 0.0  # unknown
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
        size = min(2 * done, total)
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
        first, probe = 0, self.done + _PROBE
        if self.done and not self.timed and self.size > probe:
            terminal.err(f"check: timing {_PROBE} questions: {NAMES.get(ways[0], ways[0])}")
            self._run(ways[0], probe, _PROBE)
            first = _PROBE
            self._fit(len(ways), _PROBE)
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
        if spent + left <= _LATE * self.time or not self.done or not ways or not each:
            return
        size = max(self.done + int((self.time - spent) / (ways * each)), self.done)
        if size < self.size:
            terminal.err(f"check: {self.size} questions would take too long, so {size} are asked")
            self.size = size
            self.folders = {name: self._run(name, size) for name in self.folders}


def duration(seconds: float) -> str:
    """Seconds up to two minutes, then minutes."""
    return f"{max(seconds, 0.0):.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"

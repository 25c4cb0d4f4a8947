"""Rankings: the first four slots of a pipeline over any range of a split's questions, kept on disk."""

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from pbr_jax.corpus.store import Store
from pbr_jax.files import write_text
from pbr_jax.graph import Slot, Stage
from pbr_jax.options import Retrieve
from pbr_jax.parts.run import (
    Run,
    chunks,
    enable_compilation_cache,
    line,
    metered,
    once,
    progress,
    read_tally,
    write_tally,
)
from pbr_jax.pipeline import Neighbour, Pipeline, Ranking, Tally, rank
from pbr_jax.types import Candidate, Example, UserError

RANKING_DEPTH = 10  # retrieval benchmarks report recall and ndcg down to here, whatever retrieve.k is
SLOTS = ("expand", "neighbours", "retrieve", "select")


@dataclass(frozen=True)
class Questions:
    """A range of questions: of the evaluated or the training split, from `start` to before `stop`.

    `sample`: so many of the split instead, drawn by the seed, in the split's order.
    """

    training: bool = False
    start: int = 0
    stop: int | None = None
    sample: int | None = None
    seed: int = 0

    def read(self, store: Store) -> Iterator[Example]:
        """The examples, without their profiles."""
        examples = store.examples(training=self.training)
        if self.sample is None:
            return islice(examples, self.start, self.stop)
        order = np.random.default_rng([self.seed, 3]).permutation(self._total(store))
        chosen = set(order[: self.sample].tolist())
        return (example for place, example in enumerate(examples) if place in chosen)

    def count(self, store: Store) -> int:
        """How many they are."""
        total = self._total(store)
        if self.sample is not None:
            return min(total, self.sample)
        return len(range(total)[self.start : self.stop])

    def _total(self, store: Store) -> int:
        return store.summary.training if self.training else store.summary.examples


EVALUATED = Questions()


class Rankings:
    """Ranked documents on disk, in the order of their questions."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def tally(self) -> Tally:
        """What the slots counted and timed when the rankings were made."""
        return read_tally(self._folder)

    def read(self, store: Store) -> Iterator[Ranking]:
        """Each question's documents, best first."""
        with (self._folder / "rankings.jsonl").open(encoding="utf-8") as file:
            for record in map(json.loads, file):
                documents = store.documents(record["rows"])
                triples = zip(documents, record["scores"], record["rows"], strict=True)
                yield [Candidate(*triple) for triple in triples]


@once
def rankings(
    run: Run,
    questions: Questions = EVALUATED,
    label: str = "rank",
    *,
    reported: bool | None = None,
    **methods: Any,
) -> Stage:
    """The rankings of some questions by the run's pipeline, or by one with other methods in some slots.

    `reported`: as deep as those of evaluated questions; None: where these are evaluated.
    """
    run = run.changed(**methods) if methods else run
    deep = not questions.training if reported is None else reported
    needs = {"store": run.data} | slots(run, reported=deep)
    options = (questions, run.config.collaboration)
    return Stage("rank", options, needs, _rank, Rankings, label=label, check=lambda: _check(run, questions))


def drop_leaks(store: Store, examples: Iterable[Example], ranked: Iterable[Ranking]) -> Iterator[Ranking]:
    """The candidates that do not hold the question's own target: those would teach to look for it."""
    for example, ranking in zip(examples, ranked, strict=True):
        told = store.leaks_target(example, np.array([candidate.row for candidate in ranking], np.int64))
        yield [candidate for candidate, leaks_target in zip(ranking, told, strict=True) if not leaks_target]


def at_depth(run: Run) -> Retrieve:
    """The run's way to retrieve, which on retrieval benchmarks has a least depth."""
    retrieve = run.config.retrieve
    if run.task.kind != "retrieval":
        return retrieve
    return dataclasses.replace(retrieve, k=max(retrieve.k, RANKING_DEPTH))


def slots(run: Run, *, reported: bool = True) -> dict[str, Slot]:
    """The first four slots of a run's pipeline, at the depth that is reported or as the config says."""
    retrieve = at_depth(run) if reported else run.config.retrieve
    methods = {name: getattr(run.config, name) for name in SLOTS} | {"retrieve": retrieve}
    return {name: Slot(method, run) for name, method in methods.items()}


def _check(run: Run, questions: Questions) -> None:
    if questions.training and "training" not in run.data.needs:
        raise UserError("the training split is asked for, and no method of the config says that it learns")


def _refuse_misplaced(store: Store, rankings: list[Ranking]) -> None:
    """Raises RuntimeError where a candidate's row, which is what is kept, is that of another document.

    Else a method that miscounts would pass on documents that `pipeline.rank` has never seen.
    """
    given = {c.row for ranking in rankings for c in ranking}
    rows = sorted(row for row in given if 0 <= row < store.summary.documents)
    there = dict(zip(rows, store.documents(rows), strict=True))
    for candidate in (c for ranking in rankings for c in ranking):
        document, at = candidate.document, there.get(candidate.row)
        if at is None or (at.user_id, at.shared, at.id) != (document.user_id, document.shared, document.id):
            raise RuntimeError(
                f"document {document.id} of user {document.user_id} is given as row {candidate.row}, where "
                "another stands; a candidate's row must be its own, and nothing was written"
            )


def _rank(
    folder: Path, questions: Questions, collaboration: str, *, store: Store, **makers: Callable[[Tally], Any]
) -> None:
    enable_compilation_cache()
    tally, lines = Tally(), []
    pipeline = Pipeline(**{name: make(tally) for name, make in makers.items()})
    examples = list(questions.read(store))
    # Of all at once: users are compared as they were at a few moments, and are read anew for each.
    users = pipeline.neighbours(examples)
    if store.has_shared:
        users = [[*of_example, Neighbour("")] for of_example in users]
    for some in chunks(progress(range(len(examples)), "rankings", len(examples))):
        chunk = [examples[i] for i in some]
        with metered(folder):
            ranked = rank(pipeline, chunk, collaboration, [users[i] for i in some])
        _refuse_misplaced(store, ranked)
        for example, ranking in zip(chunk, ranked, strict=True):
            rows, scores = [int(c.row) for c in ranking], [float(c.score) for c in ranking]
            if not np.isfinite(scores).all():
                raise UserError(
                    f"question {example.id}: a method gave the scores {scores}, want finite numbers"
                )
            lines.append(line({"id": example.id, "rows": rows, "scores": scores}))
    write_text(folder / "rankings.jsonl", "".join(lines))
    write_tally(tally, folder)

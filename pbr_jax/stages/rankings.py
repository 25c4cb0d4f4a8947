"""Rankings: the first four slots of a pipeline over any range of a split's questions, kept on disk."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pbr_jax.base import terminal
from pbr_jax.base.types import NO_ROW, Candidate, Document, Example, UserError
from pbr_jax.corpus.store import Store
from pbr_jax.graph import Node, Slot, Stage, Value, builds_nodes
from pbr_jax.options import Retrieve, added
from pbr_jax.pipeline import Neighbour, Pipeline, Ranking
from pbr_jax.stages import passages
from pbr_jax.stages.folds import every_fold
from pbr_jax.stages.records import Records
from pbr_jax.stages.run import Run, enable_compilation_cache, once
from pbr_jax.stages.together import by_questions
from pbr_jax.system import System

_OWN = ("id", "user_id", "text", "time", "until")  # what is kept of a document that no store holds
RANKING_DEPTH = 10  # where rankings alone are reported, down to here, whatever retrieve.k is


@dataclass(frozen=True)
class Questions:
    """A range of questions: of the evaluated or the training split, from `start` to before `stop`.

    `sample`: so many of the split instead, drawn by the seed, in the split's order. `answered`: only those
    with a target.
    """

    training: bool = False
    start: int = 0
    stop: int | None = None
    sample: int | None = None
    seed: int = 0
    answered: bool = field(default=False, metadata=added(False))

    def read(self, store: Store) -> Iterator[Example]:
        """The examples, without their profiles."""
        examples = store.examples(training=self.training)
        if self.sample is None:
            some = islice(examples, self.start, self.stop)
            return (example for example in some if not self.answered or example.target is not None)
        asked = store.asked(training=self.training)
        places = np.flatnonzero(asked).tolist()
        if self.answered:
            asked[places] = [one.target is not None for one in store.examples(training=self.training)]
        # Folds of a split draw in one order, so that most of what they learn from is the same.
        order = np.random.default_rng([self.seed, 3]).permutation(len(asked))
        chosen = set(order[asked[order]][: self.sample].tolist())
        return (example for place, example in zip(places, examples, strict=True) if place in chosen)

    def count(self, store: Store) -> int:
        """How many they are."""
        if self.answered:
            return sum(1 for _ in self.read(store))
        total = store.summary.training if self.training else store.summary.examples
        if self.sample is not None:
            return min(total, self.sample)
        return len(range(total)[self.start : self.stop])

    def check_known(self, store: Store, what: Literal["target", "relevant"], who: str) -> None:
        """Raises UserError where no question has a target, or none names relevant documents. A line says how
        many have no target. `who`: what learns from them."""
        if what == "target":
            told = {one.id: one.target is not None for one in store.examples(training=self.training)}
            missing = [id for id, has in told.items() if not has]
            if missing and len(missing) == len(told):
                raise UserError(
                    f"no training question has a target, and {who} learns from targets; complete the "
                    "questions or the outputs file, or take untuned methods"
                )
            if missing:
                terminal.err(
                    f"{who} learns nothing from {len(missing)} of {len(told)} training questions: "
                    f"they have no target, the first is {missing[0]!r}"
                )
        elif not any(example.relevant for example in self.read(store)):
            raise UserError(
                f"{who} learns from relevant documents, and no training question names any; name some, or "
                "take untuned methods"
            )


EVALUATED = Questions()


class Rankings(Records):
    """The documents of some questions."""

    file = "rankings.jsonl"

    def read(self, store: Store, examples: Iterable[Example]) -> Iterator[Ranking]:
        """Each question's documents, best first; errors as of `records`."""
        for record in self.records(examples):
            own = iter(record.get("own", ()))
            found = iter(store.documents([row for row in record["rows"] if row != NO_ROW]))
            parts = record.get("parts", [{}] * len(record["rows"]))
            ranking = []
            for row, score, scores in zip(record["rows"], record["scores"], parts, strict=True):
                told: dict[str, Any] = {} if row != NO_ROW else next(own)
                sources = tuple(told.pop("sources", ()))
                document = Document(**told) if told else next(found)
                ranking.append(Candidate(document, score, row, scores, sources))
            yield ranking


@once
def rankings(
    run: Run,
    questions: Questions = EVALUATED,
    label: str = "rank",
    *,
    reported: bool | None = None,
    **methods: Any,
) -> Node:
    """The rankings of some questions by the run's pipeline, or by one with other methods in some slots.

    Folds rank all training questions in one stage, of which each reads its own.

    `reported`: as deep as those of evaluated questions; None: where these are evaluated.
    """
    run = run.changed(**methods) if methods else run
    deep = not questions.training if reported is None else reported
    of_all = questions.training and questions.sample is None and _same_in_folds(run)
    ranking = run._replace(data=every_fold(run)) if of_all else run
    needs = {"store": ranking.data} | slots(ranking, reported=deep)
    options = (questions, run.config.collaboration)
    ranked = Stage(
        "rank",
        options,
        needs,
        _rank,
        Rankings,
        label=label,
        check=lambda: _check(run, questions),
        together=by_questions(Rankings, questions),
    )
    if not of_all:
        return ranked
    return Value("ranked_questions", (questions,), {"store": run.data, "ranked": ranked}, _of_questions)


@builds_nodes
def _same_in_folds(run: Run) -> bool:
    """Whether a question is ranked alike in all folds of a run, for nothing in the ranking is learned."""
    learning = [*(getattr(run.config, name) for name in Pipeline._fields), run.config.generator]
    return run.whole is not None and all(method.learns() == "unused" for method in learning)


def _of_questions(questions: Questions, *, store: Store, ranked: Rankings) -> Rankings:
    return ranked.of({example.id for example in questions.read(store)})


def drop_leaks(store: Store, examples: Iterable[Example], ranked: Iterable[Ranking]) -> Iterator[Ranking]:
    """The candidates that do not hold the question's own target: those would teach to look for it."""
    for example, ranking in zip(examples, ranked, strict=True):
        told = store.leaks_target(example, np.array([candidate.row for candidate in ranking], np.int64))
        yield [candidate for candidate, leaks_target in zip(ranking, told, strict=True) if not leaks_target]


@builds_nodes
def at_depth(run: Run) -> Retrieve:
    """The run's way to retrieve, which has a least depth where rankings are reported: on retrieval
    benchmarks, of questions with options, and of shared passages where short answers are asked for and
    nothing answers."""
    config, retrieve = run.config, run.config.retrieve
    ranks = run.task.short_answers and config.benchmark.shares and config.generate.resolved(run.task) is None
    if run.task.kind not in ("retrieval", "choice") and not ranks:
        return retrieve
    return dataclasses.replace(retrieve, k=max(retrieve.k, RANKING_DEPTH))


@builds_nodes
def slots(run: Run, *, reported: bool = True) -> dict[str, Slot]:
    """The first four slots of a run's pipeline, at the depth that is reported or as the config says."""
    retrieve = at_depth(run) if reported else run.config.retrieve
    methods = {name: getattr(run.config, name) for name in Pipeline._fields}
    methods["retrieve"] = passages.retriever(run, retrieve)
    if retrieve.own_texts and not run.config.select.by_text:
        raise UserError(
            f"retrieve.method {retrieve.method} finds texts that are no documents, and select.method "
            f"{run.config.select.method} needs documents; take select.method top_k"
        )
    return {name: Slot(method, run) for name, method in methods.items()}


def _kept(ranking: Ranking) -> dict[str, Any]:
    """A ranking as JSON; `parts` are the candidates' `scores`, and `own` the texts of those without a row,
    where there are any."""
    kept: dict[str, Any] = {
        "rows": [int(c.row) for c in ranking],
        "scores": [float(c.score) for c in ranking],
    }
    own = [
        {name: getattr(c.document, name) for name in _OWN} | {"sources": c.sources}
        for c in ranking
        if c.row == NO_ROW
    ]
    kept |= {"own": own} if own else {}
    if not any(candidate.scores for candidate in ranking):
        return kept
    return kept | {"parts": [{name: float(s) for name, s in c.scores.items()} for c in ranking]}


@builds_nodes
def _check(run: Run, questions: Questions) -> None:
    if questions.training and isinstance(run.data, Stage) and "training" not in run.data.needs:
        raise UserError("the training split is asked for, and no method of the config says that it learns")
    if not dataclasses.replace(questions, answered=False).count(run.data.value):
        split = run.config.benchmark.training if questions.training else run.config.benchmark.split
        raise UserError(f"found no question in the split {split}, wanted some; add questions to its file")


def _rank(folder: Path, questions: Questions, collaboration: str, **parts: Any) -> None:
    enable_compilation_cache()
    system = System(parts, collaboration=collaboration)
    keep_rankings(folder, list(questions.read(system.store)), system)


def keep_rankings(folder: Path, examples: list[Example], system: System) -> None:
    """Ranks documents for some questions, and keeps that in a folder for `Rankings`."""
    # Of all at once: users are compared as they were at a few moments, and are read anew for each.
    users = system.neighbours(examples)

    def work(advance: Callable[[int], Any], chunk: list[Example], of_chunk: list[list[Neighbour]]) -> Any:
        rankings = system.rank(chunk, of_chunk)
        advance(len(chunk))
        return map(_kept, rankings)

    Rankings.make(folder, work, system.tally, examples, users, label="rankings", total=len(examples))

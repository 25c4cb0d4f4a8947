"""Feedback: the value of each candidate document by itself for the language model.

CFRAG section 4.2.2, Eq. 6, and ROPG: a question is answered once with each of its candidates, and the metric
of the answer is the value of the candidate. Alternatively (ours), the value is the log-probability of the
target given the candidate, which differs even for equal metrics and needs no decoding. Each answer and score
is cached. So no computation is repeated after an interruption, or for candidates of an earlier round.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pbr_jax.base import draws
from pbr_jax.base.types import Example, Feedback, UserError
from pbr_jax.eval.metrics import plain_mean, rating_scale, text_metric
from pbr_jax.graph import Slot, Stage, builds_nodes
from pbr_jax.options import Expand, Generate, Retrieve, Select
from pbr_jax.pipeline import Ranking
from pbr_jax.stages import language_model
from pbr_jax.stages.generator import generator
from pbr_jax.stages.rankings import Questions, Rankings, drop_leaks, rankings
from pbr_jax.stages.records import Records
from pbr_jax.stages.run import Run, once
from pbr_jax.stages.together import by_questions
from pbr_jax.system import System
from pbr_jax.tasks import Task
from pbr_jax.tasks.scoring import check_target
from pbr_jax.text.answers import parse_answer
from pbr_jax.text.prompts import Written

_TOGETHER = 64  # questions whose candidates are answered together

LIKELIHOOD = "likelihood"
"""The name of the `feedback.metric` log p(target | prompt with one document), in nats per target token."""

Values = Callable[[Sequence[str], Sequence[str]], np.ndarray]
"""(answers, targets) -> values [n]. Higher is better."""

RewardFn = Callable[[Sequence[Example], Sequence[Ranking], Sequence[Written] | None], np.ndarray]
"""(examples, documents of each, prompts if known) -> values [n]. Higher is better."""


def metric_of(task: Task, name: str) -> str:
    """The metric with the name `feedback.metric`. "auto" is the first metric of the task."""
    return task.metrics[0] if name == "auto" else name


def metric(name: str, labels: Sequence[str], errors: str = "scaled") -> Values:
    """The value of an answer: a metric of single answers, from 0 to 1.

    For ratings, the value is 1 - |error| / (the largest error that is possible for this target), as in ROPG.
    With `errors` "negated" it is -|error|, as in CFRAG's code.

    Raises:
      UserError: the metric is not defined for single answers, such as f1_macro.
    """
    found = text_metric(name, labels)
    if name != "mae" and not (found.finish is plain_mean and found.higher_is_better):
        raise UserError(
            f"feedback.metric is {name}, which a single answer does not have; take another of the task's"
        )

    def values(answers: Sequence[str], targets: Sequence[str]) -> np.ndarray:
        scores = found.statistics(answers, targets)[:, 0]
        if name != "mae":
            return scores
        wanted, (low, high) = np.array(list(map(float, targets))), rating_scale(labels)
        worst = np.maximum(abs(wanted - low), abs(wanted - high))
        return -scores if errors == "negated" else np.maximum(1 - scores / worst, 0.0)

    return values


def by_answers(system: System, values: Values) -> RewardFn:
    """The value of documents is the metric of the answer that is generated with them (CFRAG Eq. 6)."""

    def reward(
        examples: Sequence[Example], rankings: Sequence[Ranking], written: Sequence[Written] | None
    ) -> np.ndarray:
        answers = system.answer(examples, rankings, written=written)
        predictions = [parse_answer(system.answer_format, answer.text) for answer in answers]
        return values(predictions, [str(example.target) for example in examples])

    return reward


def by_likelihood(system: System, *, total: bool = False) -> RewardFn:
    """The value of documents is log p(target | prompt with them), in nats per target token.

    With `total` it is the sum over target tokens, in nats, which is the reward of PURPLE, Eq. 4.
    """

    def reward(
        examples: Sequence[Example], rankings: Sequence[Ranking], written: Sequence[Written] | None
    ) -> np.ndarray:
        scores = [
            score for _, score in system.score(examples, rankings, written=written) if score is not None
        ]
        return np.array([score.total if total else score.mean for score in scores])

    return reward


def collect(reward: RewardFn, examples: Sequence[Example], rankings: Sequence[Ranking]) -> list[Feedback]:
    """Computes the value of every candidate of every example. Examples must have targets."""
    missing = next((example.id for example in examples if example.target is None), None)
    if missing is not None:
        raise UserError(f"training question {missing!r} has no target; feedback needs the outputs file")
    alone = [(e, [candidate]) for e, ranking in zip(examples, rankings) for candidate in ranking]
    judged = reward([example for example, _ in alone], [one for _, one in alone], None).astype(np.float32)
    parts = np.split(judged, np.cumsum([len(ranking) for ranking in rankings])[:-1])
    return [
        Feedback(np.array([c.row for c in ranking], np.int64), part)
        for ranking, part in zip(rankings, parts, strict=True)
    ]


def shuffled(example: Example, count: int, seed: int) -> np.ndarray:
    """A permutation of the values of a question's candidates, int [count], used as a control."""
    return draws.generator(seed, "shuffle", example.user_id, example.id).permutation(count)


# -- nodes -----------------------------------------------------------------------------------------


@builds_nodes
def questions(run: Run) -> Questions:
    """The training questions that are used: they have a target. Limited ones are drawn with the seed."""
    limit = run.config.feedback.limit
    return Questions(training=True, sample=limit, seed=0 if limit is None else run.config.seed, answered=True)


@builds_nodes
def least_range(run: Run) -> float:
    """A question is informative if the range of its candidates' values exceeds this number."""
    return 0.05 if run.config.feedback.metric == LIKELIHOOD else 0.0  # nats: less is noise


@builds_nodes
def shuffling(run: Run) -> list[int]:
    """The seed for shuffling values, in a list that is empty if they are not shuffled."""
    return [run.config.seed] if run.config.feedback.shuffle else []


@once
def feedback(
    run: Run, label: str, *, expand: Expand, retrieve: Retrieve, select: Select, generate: Generate
) -> Stage:
    """The node of the values of all candidates that these methods retrieve for the training questions.

    `generate` answers with the options of `feedback`; it is not used if values are likelihoods. Raises
    UserError if `collaboration` is none.
    """
    run.learns_from_others(label)
    options, asked = run.config.feedback, questions(run)
    retrieve = replace(retrieve, k=options.candidates or retrieve.k)
    needs = {
        "store": run.data,
        "ranked": rankings(run, asked, f"rank_for_{label}", expand=expand, retrieve=retrieve, select=select),
        "write": language_model.training_writer(run),
    }
    if options.metric == LIKELIHOOD:
        needs["llm"] = generator(run)
    else:
        limit = options.max_new_tokens or run.config.generate.max_new_tokens
        answers = replace(generate, num_beams=options.num_beams, max_new_tokens=limit)
        needs |= {"generate": Slot(answers, run), "answer_format": language_model.answer_format(run)}
    return Stage(
        "feedback",
        (asked, metric_of(run.task, options.metric), options.errors, *shuffling(run)),
        needs,
        _collect,
        Feedbacks,
        label=f"feedback_{label}",
        check=lambda: _check(run, asked, f"feedback for the {label}"),
        together=by_questions(Feedbacks, asked),
    )


@builds_nodes
def _check(run: Run, asked: Questions, who: str) -> None:
    """Raises UserError for a metric that single answers do not have, targets that it cannot score, and a
    model that cannot score."""
    name = run.config.feedback.metric
    if name != LIKELIHOOD and run.task.kind == "choice":
        raise UserError(
            f"feedback.metric is {name}, which is of decoded answers, and questions with options are "
            f"answered by what is probable; set feedback.metric to {LIKELIHOOD}"
        )
    if name != LIKELIHOOD:
        metric(metric_of(run.task, name), run.task.labels)
    elif not run.config.llm.can_score:
        raise UserError(
            f"feedback.metric is {LIKELIHOOD}, and the server's model cannot score; set llm.log_probs to the "
            "server's kind (vllm, echo or sglang) and llm.tokenizer, or feedback.metric to auto"
        )
    check_targets(run, asked, who, [] if name == LIKELIHOOD else [metric_of(run.task, name)])


@builds_nodes
def check_targets(run: Run, asked: Questions, who: str, metrics: Sequence[str]) -> None:
    """Raises UserError if no training question has a target, or one has a target that these metrics cannot
    score."""
    store = run.data.value
    asked.check_known(store, "target", who)
    for example in asked.read(store) if metrics else ():
        check_target(run.task, example, f"the split {run.config.benchmark.training}", metrics)


class Feedbacks(Records):
    """Feedback on several questions."""

    file = "feedback.jsonl"

    def read(self, examples: Iterable[Example]) -> list[Feedback]:
        """The feedback on each question. Raises the errors of `records`."""
        return [
            Feedback(np.array(record["rows"], np.int64), np.array(record["values"], np.float32))
            for record in self.records(examples)
        ]


def _collect(
    folder: Path,
    asked: Questions,
    name: str,
    errors: str,
    shuffle: int | None = None,
    *,
    ranked: Rankings,
    **parts: Any,
) -> None:
    system = System(parts)
    store = system.store
    if name == LIKELIHOOD:
        reward = by_likelihood(system)
    else:
        reward = by_answers(system, metric(name, system.answer_format.labels, errors))
    if not any(len(record["rows"]) > 1 for record in ranked.records(asked.read(store))):
        raise UserError(
            "no training question has two candidate documents to compare; raise retrieve.k or neighbours.m, "
            "or take data with histories"
        )
    rankings = drop_leaks(store, asked.read(store), ranked.read(store, asked.read(store)))

    def work(advance: Callable[[int], Any], examples: list[Example], shown: list[Ranking]) -> Any:
        for example, (rows, values) in zip(examples, collect(reward, examples, shown), strict=True):
            if shuffle is not None:
                values = values[shuffled(example, len(values), shuffle)]
            yield {"rows": rows.tolist(), "values": values.tolist()}
        advance(len(examples))

    told: dict[str, Any] = {"label": "feedback", "total": asked.count(store), "size": _TOGETHER}
    Feedbacks.make(folder, work, system.tally, asked.read(store), rankings, **told)

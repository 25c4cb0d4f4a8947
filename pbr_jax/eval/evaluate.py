"""From answers and rankings to metrics with intervals: plain data in, plain data out."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import compress
from typing import Any

import numpy as np

from pbr_jax.base.types import UserError
from pbr_jax.base.words import words
from pbr_jax.eval import dialogue
from pbr_jax.eval.metrics import (
    VARIANTS,
    Metric,
    per_frame,
    plain_mean,
    text_metric,
    unreadable,
    within_range,
)
from pbr_jax.eval.overlap import rouge_words
from pbr_jax.eval.ranking import Groups, is_ranking_metric, ranking_metric
from pbr_jax.eval.significance import FEW, FEWEST, Column, Finish, estimates
from pbr_jax.options import Eval
from pbr_jax.tasks import ANSWER_METRICS, Task


@dataclass(frozen=True)
class Scores:
    """A metric's statistics `[n, s]` over the scored examples, and how their mean becomes its value. An
    example that the metric is not of has NaN."""

    name: str
    statistics: np.ndarray
    finish: Finish = plain_mean


def scores(name: str, values: np.ndarray) -> Scores:
    """The mean of a value of each example, `[n]`."""
    return Scores(name, np.array(values, float)[:, None])


def values_of(columns: list[Scores], rows: np.ndarray) -> dict[str, float]:
    """All metrics that any of these examples has, over those that have it."""
    return {
        one.name: float(one.finish(np.nanmean(one.statistics[rows], 0, keepdims=True))[0])
        for one in _present(columns, rows)
    }


def _present(columns: list[Scores], rows: np.ndarray) -> list[Scores]:
    return [column for column in columns if not np.isnan(column.statistics[rows]).any(1).all()]


def by_block(columns: list[Scores], blocks: np.ndarray, kept: list[int]) -> list[dict[str, Any]]:
    """`Evaluation.by_block`. `blocks`: of all examples, int [n]; `kept`: those that are scored."""
    scored = blocks[kept] if len(blocks) else blocks
    return [
        {
            "block": int(block),
            "start": int(np.sum(blocks < block)),
            "end": int(np.sum(blocks <= block)),
            "n": int(np.sum(scored == block)),
            "metrics": values_of(columns, np.flatnonzero(scored == block)),
            "running": values_of(columns, np.flatnonzero(scored <= block)),
        }
        for block in np.unique(scored)
    ]


def intervals_of(
    columns: list[Scores], users: list[str], rows: np.ndarray, *, resamples: int, confidence: float, seed: int
) -> dict[str, tuple[float, float]]:
    """All metrics that any of these examples has, on the same draws."""
    columns = _present(columns, rows)
    over = [Column(column.finish, [column.statistics[rows]]) for column in columns]
    owners = [users[row] for row in rows]
    sure = estimates(over, owners, resamples=resamples, confidence=confidence, seed=seed)
    names = [column.name for column in columns]
    return {name: within_range(name, (one.low, one.high)) for name, one in zip(names, sure, strict=True)}


def by_category(categories: list[str] | None) -> dict[str, np.ndarray]:
    """The examples of each category, by its name; nothing where examples have none."""
    if not categories or not any(categories):
        return {}
    of_example = np.asarray(categories, dtype=str)
    return {category: np.flatnonzero(of_example == category) for category in sorted(set(categories))}


def cluster_notes(owners: list[str], clusters: str) -> list[str]:
    """What few users, or units, mean for intervals."""
    count, one = len(set(owners)), clusters.removesuffix("s")
    if count == 1:
        return [f"one {one}: how sure the numbers are cannot be known, so intervals have no width"]
    if count >= FEW:
        return []
    note = f"{count} {clusters}: intervals are Student's t, each {one} left out in turn"
    return [note + (", and differences have no p" if count < FEWEST else "")]


def by_subset(
    columns: list[Scores],
    users: list[str],
    subsets: Mapping[str, Sequence[bool]],
    kept: list[int],
    **how: Any,
) -> dict[str, dict[str, Any]]:
    """`Evaluation.over`. `subsets` say of all examples whether they belong; `how`: of `intervals`."""
    members = {name: np.flatnonzero(np.asarray(of, bool)[kept]) for name, of in subsets.items()}
    return {
        name: {
            "n": len(rows),
            "users": len({users[row] for row in rows}),
            "metrics": values_of(columns, rows),
            "intervals": intervals_of(columns, users, rows, **how),
        }
        for name, rows in members.items()
        if len(rows)
    }


_Options = Sequence[Sequence[str]]


def choice_columns(
    targets: Sequence[str], probabilities: Sequence[Mapping[str, float] | None] | None
) -> list[Scores]:
    """choice_nll, minus log p(target | the question's options), in nats, where all are known."""
    known = [one for one in probabilities or [] if one is not None]
    if not known or len(known) < len(targets):
        return []
    found = [one.get(target, 0.0) for one, target in zip(known, targets, strict=True)]
    return [scores("choice_nll", -np.log(np.maximum(found, np.finfo(float).tiny)))]


def choice_chance(options: _Options | None) -> list[str]:
    """What accuracy is to be compared with."""
    if not options or not all(options):
        return []
    share = float(np.mean([1 / len(one) for one in options]))
    return [f"an option drawn by lot would be right in {share:.1%}"]


def unreadable_choices(predictions: Sequence[str], options: _Options) -> int:
    """How many predictions are none of their question's options."""
    return sum(found not in map(str.strip, one) for found, one in zip(predictions, options, strict=True))


def place_distribution(places: Sequence[Sequence[float]]) -> dict[str, float]:
    """How often the option at each place of the list was the most probable one, whatever stood there.

    `places`: of each question the shares of its orders (`pipeline.Answer.places`). Without a bias to places
    all shares of questions with equally many options are equal.
    """
    longest = max(map(len, places), default=0)
    sums = [sum(one[place] for one in places if place < len(one)) for place in range(longest)]
    return {f"place {place + 1}": total / len(places) for place, total in enumerate(sums)}


JUDGE_METRICS = ("judge_accuracy", "judge_p")


def judged(found: Sequence[float | None], clusters: Sequence[str], **how: Any) -> dict[str, Any]:
    """`n`, `metrics` and `intervals` over scored examples, from the judge's probability of each.

    `how`: of `intervals_of`. Examples without a target, whose probability is None, are left out.
    """
    p = np.array(found, float)
    rows = np.flatnonzero(~np.isnan(p))
    columns = [scores(name, values) for name, values in zip(JUDGE_METRICS, (p > 0.5, p), strict=True)]
    sure = intervals_of(columns, list(clusters), rows, **how) if len(rows) else {}
    return {"n": len(rows), "metrics": values_of(columns, rows), "intervals": sure}


OTHER = "other"
"""Answers that are none of the labels."""

ONE_ANSWER = 0.9  # a label with a larger share is the answer to everything
_FEW = 10  # answers of which that says little


def label_distribution(task: Task, predictions: Sequence[str]) -> dict[str, float]:
    """The share of each label among the predictions, and of `OTHER` if there are any; {} without labels."""
    if not task.labels or not predictions:
        return {}
    counts = Counter(text if text in task.labels else OTHER for text in predictions)
    names = [*task.labels, *([OTHER] if counts[OTHER] else [])]
    return {name: counts[name] / len(predictions) for name in names}


def one_answer_note(shares: Mapping[str, float], n: int) -> list[str]:
    """What the reader has to know where nearly all of n answers are the same."""
    one = next((label for label, share in shares.items() if share > ONE_ANSWER), None)
    if one is None or n < _FEW:
        return []
    return [
        f"over {ONE_ANSWER:.0%} of the answers are {one!r} (see the share of each answer): "
        "there is no signal in such a run"
    ]


EXPECTED = ("mae", "rmse", "correlation")
"""Metrics of expected ratings."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Scores of one run.

    `per_example[i]` holds the metrics that one example has by itself, of which the reported value is the
    mean (so neither f1_macro nor rmse), and is empty where the example is not scored; metrics of dialogue
    states are as `metrics.per_frame` says. `n` counts scored examples. `by_category` gives `n` and every
    metric of each category, where examples have any; `by_category_intervals` and `by_category_users` say
    how sure they are. `by_block` gives `block`, `start` and `end` (examples before it, and up to its end),
    `n`, `metrics` and `running` (over all examples up to its end) of each block of which any is scored;
    `over` gives `n`, `users`, `metrics` and `intervals` of each subset of which any is. `clusters` are what
    intervals are over, "users" or "units", which are then counted as users. `variants` names the definition
    of metrics that have several; `notes` are sentences for the reader of the numbers. `unreadable` counts
    answers to scored examples that name no label, of a rating no number, hold no dialogue state, or
    elsewhere are empty; None where nothing was answered. `counts` are further ones (`dialogue.counts`).
    """

    metrics: dict[str, float] = field(default_factory=dict)
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    per_example: list[dict[str, float]] = field(default_factory=list)
    n: int = 0
    by_category: dict[str, dict[str, float]] = field(default_factory=dict)
    by_category_intervals: dict[str, dict[str, tuple[float, float]]] = field(default_factory=dict)
    by_category_users: dict[str, int] = field(default_factory=dict)
    clusters: str = "users"
    by_block: list[dict[str, Any]] = field(default_factory=list)
    over: dict[str, dict[str, Any]] = field(default_factory=dict)
    variants: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unreadable: int | None = None
    counts: dict[str, int] = field(default_factory=dict)


def evaluate(
    task: Task,
    *,
    ids: Sequence[str],
    users: Sequence[str],
    units: Sequence[str] | None = None,
    predictions: Sequence[str] | None = None,
    expected: Sequence[float] | None = None,
    targets: Sequence[str | None] | None = None,
    alternatives: Sequence[Sequence[str]] | None = None,
    likelihoods: Sequence[Mapping[str, Any]] | None = None,
    rankings: Sequence[Sequence[str]] | None = None,
    relevant: Sequence[Groups] | None = None,
    answer_ranks: Sequence[float] | None = None,
    options: Sequence[Sequence[str]] | None = None,
    probabilities: Sequence[Mapping[str, float] | None] | None = None,
    scored: Sequence[bool] | None = None,
    categories: Sequence[str] | None = None,
    blocks: Sequence[int] | None = None,
    subsets: Mapping[str, Sequence[bool]] | None = None,
    resamples: int = Eval.resamples,
    confidence: float = 0.95,
    seed: int = 0,
) -> Evaluation:
    """The task's metrics over all scored examples, with intervals over clusters (see `significance`).

    Every sequence has one item an example. The cluster of an example is its unit or, where that is "", its
    user. Ranking metrics need `rankings` (document ids, best first) and `relevant` (see
    `Example.relevant`); metrics of answers need `predictions` and `targets`. `expected` are further
    predictions of a rating task, numbers between the labels: their metrics are `expected_mae`,
    `expected_rmse` and `expected_correlation` (Pearson's, with the targets), and the accuracy of
    `predictions` stands beside them. `likelihoods` give `total` (log-probability of the target, nats),
    `tokens` and `bytes`, and with them target_nll, minus the log-probability per token, and target_bpb, in
    bits per byte, by which models of different tokenizers compare. Where an example has `alternatives`,
    further right answers, `ANSWER_METRICS` are the best over all of them, as in SQuAD's official scorer; of
    a dialogue state the one alternative is its reference (`tasks.states`). `blocks` are the numbers of
    blocks of a stream; of `subsets` each says whether an example belongs to it.
    `options` are the answers that each question of a choice offers, and `probabilities` theirs, where known:
    choice_nll is minus the log-probability of the target among them, in nats, ln of their number by chance.
    Other tasks have recall, as deep as was ranked, where every question's relevant documents are known, and
    all have answer_recall, the share of questions one of whose first documents holds an accepted answer,
    where `answer_ranks` say which is the first (`answer_recall.Finder`), unless a target is withheld.
    Where all targets are withheld, n is 0 and a note says so. Answers and likelihoods are measured on the
    questions with a target, and a note says how many have none. Raises UserError, naming the example, where
    answers are all that is scored and some targets are missing, and where a scored question of a retrieval
    benchmark has no relevant document.
    """
    fields = dict(users=users, units=units, predictions=predictions, expected=expected, targets=targets,
                  alternatives=alternatives, likelihoods=likelihoods, rankings=rankings, relevant=relevant,
                  answer_ranks=answer_ranks, options=options, probabilities=probabilities, scored=scored,
                  categories=categories, blocks=blocks)  # fmt: skip
    _check_lengths(len(ids), {**fields, **(subsets or {})})
    how = {"resamples": resamples, "confidence": confidence, "seed": seed}
    return _of_kept(task, ids, fields, subsets or {}, how)


def _of_kept(
    task: Task,
    ids: Sequence[str],
    fields: Mapping[str, Sequence | None],
    subsets: Mapping[str, Sequence[bool]],
    how: Mapping[str, Any],
) -> Evaluation:
    """The evaluation of the scored examples. `fields`: sequences of `evaluate`; `how`: of `intervals_of`."""
    scored = fields["scored"]
    kept = [i for i in range(len(ids)) if scored is None or scored[i]]
    per_example: list[dict[str, float]] = [{} for _ in ids]
    if not kept:
        return Evaluation(per_example=per_example, notes=["no example is scored"])
    given: dict[str, Any] = {
        name: None if values is None else [values[i] for i in kept] for name, values in fields.items()
    }
    columns, found = _columns(task, [ids[i] for i in kept], given)
    if not columns:
        return replace(found, per_example=per_example)
    for i, values in zip(kept, _of_each(columns, len(kept)), strict=True):
        per_example[i] = values
    units = given["units"] or [""] * len(kept)
    owners = [unit or user for unit, user in zip(units, given["users"], strict=True)]
    clusters = "units" if any(units) else "users"
    return replace(
        _over_users(columns, owners, by_category(given["categories"]), **how),
        per_example=per_example,
        clusters=clusters,
        notes=found.notes + cluster_notes(owners, clusters),
        unreadable=found.unreadable,
        counts=found.counts,
        by_block=by_block(columns, np.array(fields["blocks"] or [], int), kept),
        over=by_subset(columns, owners, subsets, kept, **how),
    )


def _columns(task: Task, ids: list[str], given: Mapping[str, list | None]) -> tuple[list[Scores], Evaluation]:
    """The metrics of the scored examples from what `given` has of them; and notes, unreadable, counts."""
    told = np.array([target is not None for target in given["targets"] or [None] * len(ids)])
    if told.all() or not told.any() or (task.kind != "retrieval" and given["predictions"] is not None):
        columns, found = _told_columns(task, ids, given)
    else:
        some = {name: values and [*compress(values, told)] for name, values in given.items()}
        columns, found = _told_columns(task, [*compress(ids, told)], some)
        rows = np.cumsum(told) - 1  # of each example in these columns; those without a target get NaN
        wide = [np.where(told[:, None], one.statistics[rows], np.nan) for one in columns]
        columns = [replace(one, statistics=of_all) for one, of_all in zip(columns, wide, strict=True)]
        left = f"{np.sum(~told)} of {len(ids)} questions have no target, so they are left out of"
        found.notes.extend([f"{left} {', '.join(one.name for one in columns)}"] if columns else [])
    rankings, relevant = given["rankings"], given["relevant"]
    if task.kind == "retrieval":
        columns = _ranking_columns(task, task.metrics, ids, rankings, relevant) + columns
    elif rankings and relevant and all(relevant):
        names = [f"recall@{k}" for k in _depths(rankings)]
        columns += _ranking_columns(task, names, ids, rankings, relevant)
    if rankings and given["answer_ranks"] is not None and told.all():
        ranks = np.array(given["answer_ranks"], float)
        columns += [scores(f"answer_recall@{k}", ranks <= k) for k in _depths(rankings)]
    return columns, found


def _told_columns(
    task: Task, ids: list[str], given: Mapping[str, list | None]
) -> tuple[list[Scores], Evaluation]:
    """The metrics of answers and likelihoods, of examples with a target where any has one."""
    answers = [given[name] for name in ("predictions", "expected", "targets", "alternatives")]
    columns, notes = _answer_columns(task, ids, *answers)
    if task.kind == "choice" and columns:
        columns += choice_columns(answers[2] or [], given["probabilities"])
        notes += choice_chance(given["options"])
    columns += _likelihood_columns(given["likelihoods"])
    unread, counts = _unreadable(task, answers[0], given["options"]), dict[str, int]()
    if task.kind == "dialogue" and answers[0] is not None and columns:
        counts = dialogue.counts(answers[0], _references(task, ids, answers[3]))
        unread = counts.pop("unreadable_answers")
    return columns, Evaluation(notes=notes, unreadable=unread, counts=counts)


def _of_each(columns: list[Scores], count: int) -> list[dict[str, float]]:
    """The metrics that each of so many scored examples has by itself."""
    found: list[dict[str, float]] = [{} for _ in range(count)]
    for column in columns:
        for values, row in zip(found, column.statistics, strict=True):
            if column.finish is plain_mean:
                values |= {} if np.isnan(row[0]) else {column.name: float(row[0])}
            elif column.finish is dialogue.mean_over_frames:
                values |= per_frame(column.name, row)
    return found


def _over_users(
    columns: list[Scores], owners: list[str], of_category: Mapping[str, np.ndarray], **how: Any
) -> Evaluation:
    """Metrics and their intervals, of all scored examples and of each category's; `how`: of `intervals`."""
    sure = partial(intervals_of, columns, owners, **how)
    everything = np.arange(len(owners))
    return Evaluation(
        metrics=values_of(columns, everything),
        intervals=sure(everything),
        n=len(owners),
        by_category={
            name: {"n": float(len(rows)), **values_of(columns, rows)} for name, rows in of_category.items()
        },
        by_category_intervals={name: sure(rows) for name, rows in of_category.items()},
        by_category_users={name: len({owners[row] for row in rows}) for name, rows in of_category.items()},
        variants={column.name: VARIANTS[column.name] for column in columns if column.name in VARIANTS},
    )


def _check_lengths(n: int, fields: Mapping[str, Sequence | None]) -> None:
    for name, values in fields.items():
        if values is not None and len(values) != n:
            raise ValueError(f"{name} has {len(values)} items for {n} examples; give one an example")


def _ranking_columns(
    task: Task, names: Sequence[str], ids: list[str], rankings: list | None, relevant: list | None
) -> list[Scores]:
    if rankings is None or relevant is None:
        raise ValueError(f"{task.name} is scored by its rankings: give rankings and relevant")
    names = [name for name in names if is_ranking_metric(name)]
    rows = np.empty((len(ids), len(names)))
    for row, id, ranking, groups in zip(rows, ids, rankings, relevant, strict=True):
        try:
            row[:] = [ranking_metric(name, ranking, groups) for name in names]
        except UserError as error:
            raise UserError(f"{task.name}, question {id!r}: {error}") from None
    return [scores(name, values) for name, values in zip(names, rows.T, strict=True)]


def _depths(rankings: list) -> list[int]:
    return [k for k in (1, 3, 5, 10) if k <= max(map(len, rankings))]


def _answer_columns(
    task: Task,
    ids: list[str],
    predictions: list | None,
    expected: list | None,
    targets: list | None,
    alternatives: list | None,
) -> tuple[list[Scores], list[str]]:
    """Metrics of answers, or none and the note that says why."""
    retrieval = task.kind == "retrieval"
    if predictions is None:
        return [], [] if retrieval else [
            "no answers were generated; only likelihoods of the targets and retrieval are measured"
        ]
    missing = [id for id, target in zip(ids, targets or [None] * len(ids), strict=True) if target is None]
    if targets is None or len(missing) == len(ids):
        return [], ["all targets are withheld, so answers are not scored"]
    if missing:
        raise UserError(
            f"{task.name}: {len(missing)} of {len(ids)} targets are missing, the first of example "
            f"{missing[0]!r}; complete the outputs file, or take it away to predict without scoring"
        )
    names = ANSWER_METRICS if retrieval else task.metrics
    if expected is not None:
        names = dict.fromkeys((*names, "accuracy"))
    # of questions with options of their own an answer is right where it is the target
    labels = tuple(dict.fromkeys(map(str.strip, targets))) if task.kind == "choice" else task.labels
    metrics = [text_metric(name, labels) for name in names]
    right = _references(task, ids, alternatives) if task.kind == "dialogue" else targets
    columns = [Scores(one.name, one.statistics(predictions, right), one.finish) for one in metrics]
    for metric, column in zip(metrics, columns, strict=True):
        if metric.name in ANSWER_METRICS:
            _raise_to_best(metric, column.statistics, predictions, alternatives or [])
    if expected is not None:
        numbers = list(map(repr, expected))
        columns += [
            Scores(f"expected_{metric.name}", metric.statistics(numbers, targets), metric.finish)
            for metric in (text_metric(name, task.labels) for name in EXPECTED)
        ]
    notes = dialogue.notes(right) if task.kind == "dialogue" else _unseen(metrics, targets)
    return columns, ([] if task.kind == "choice" else _majority(metrics, targets)) + notes


def _references(task: Task, ids: list[str], alternatives: list | None) -> list[str]:
    """What dialogue states are scored against."""
    found: list[Sequence[str]] = alternatives or [()] * len(ids)
    if lacking := next((id for id, one in zip(ids, found, strict=True) if len(one) != 1), None):
        raise UserError(
            f"{task.name}, question {lacking!r}: found no reference of the dialogue state, wanted one beside "
            "the target; take a benchmark of dialogues, or another task"
        )
    return [one[0] for one in found]


def _majority(metrics: list[Metric], targets: list[str]) -> list[str]:
    """What accuracy is to be compared with."""
    if all(metric.name != "accuracy" for metric in metrics):
        return []
    (label, count), *_ = Counter(targets).most_common(1)
    return [
        f"to answer {label!r}, the most frequent target, always would be right in {count / len(targets):.1%}"
    ]


def _unseen(metrics: list[Metric], targets: list[str]) -> list[str]:
    """How often ROUGE, whose words are of a-z and 0-9 alone, misses what a target says."""
    names = [metric.name for metric in metrics if metric.name.startswith("rouge")]
    seen = [(len(rouge_words(target)), len(words(target))) for target in targets]
    none = sum(not present for present, _ in seen)
    if not names or not none:
        return []
    few = sum(0 < 2 * present < there for present, there in seen)
    more = f", and less than half of the words in {few} more" if few else ""
    return [
        f"{' and '.join(names)}: ROUGE's words are of a-z and 0-9 alone, so it sees no word in {none} of "
        f"{len(targets)} targets, which score 0 whatever the answer{more}"
    ]


def _likelihood_columns(likelihoods: list[Mapping[str, Any]] | None) -> list[Scores]:
    """Nats per token and bits per byte of the targets, or none where any is withheld."""
    if likelihoods is None or any(one["total"] is None for one in likelihoods):
        return []
    totals, tokens, sizes = (
        np.array([one[name] for one in likelihoods], float) for name in ("total", "tokens", "bytes")
    )
    return [
        scores("target_nll", -totals / np.maximum(tokens, 1)),  # an empty target is certain
        scores("target_bpb", -totals / np.log(2) / np.maximum(sizes, 1)),
    ]


def _unreadable(task: Task, predictions: list[str] | None, options: list | None) -> int | None:
    if predictions is None:
        return None
    if task.kind == "choice" and options:
        return unreadable_choices(predictions, options)
    if task.kind not in ("classification", "rating"):
        return sum(not prediction.strip() for prediction in predictions)
    labels = task.labels if task.kind == "classification" else ()
    return sum(unreadable(prediction, labels) for prediction in predictions)


def _raise_to_best(
    metric: Metric, statistics: np.ndarray, predictions: list[str], alternatives: list[Sequence[str]]
) -> None:
    """Each example's score becomes the best over its alternatives too."""
    rows = [row for row, answers in enumerate(alternatives) for _ in answers]
    if rows:
        answers = [answer for answers in alternatives for answer in answers]
        others = metric.statistics([predictions[row] for row in rows], answers)
        np.maximum.at(statistics, rows, others)

"""From rankings and answers to results.json and predictions.jsonl: the evaluation of a run."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pbr_jax.data import Task
from pbr_jax.eval.evaluate import Evaluation, evaluate
from pbr_jax.index.store import Store
from pbr_jax.options import Eval
from pbr_jax.text import prompts
from pbr_jax.types import Candidate, Example

Rankings = Iterable[Sequence[Candidate]]
Answers = Iterable[Mapping[str, Any]] | None
"""`text`, `prompt_tokens`, `documents` and `messages` of each example; None: nothing was answered."""


def evaluated(
    task: Task, store: Store, rankings: Rankings, answers: Answers, options: Eval, *, seed: int
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What results.json says of the metrics, and the lines of predictions.jsonl."""
    records = list(_records(task, store, rankings, answers))
    examples = list(store.examples())
    evaluation = evaluate(
        task,
        ids=[example.id for example in examples],
        users=[example.user_id for example in examples],
        predictions=[record["prediction"] for record in records] if answers is not None else None,
        targets=[example.target for example in examples],
        alternatives=[example.alternatives for example in examples],
        rankings=[[d["id"] for d in record["documents"]] for record in records],
        relevant=[example.relevant for example in examples],
        scored=[example.scored for example in examples],
        categories=[example.category for example in examples],
        resamples=options.resamples,
        confidence=options.confidence,
        seed=seed,
    )
    for record, metrics in zip(records, evaluation.per_example, strict=True):
        record["metrics"] = metrics
    return _values(evaluation, store, examples, records), records


def _values(
    evaluation: Evaluation, store: Store, examples: Sequence[Example], records: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    summary = store.summary
    return {
        "n": evaluation.n,
        "dropped": summary.examples - len(records),
        "metrics": evaluation.metrics,
        "intervals": {name: list(pair) for name, pair in evaluation.intervals.items()},
        "by_category": evaluation.by_category,
        "by_category_intervals": {
            category: {name: list(pair) for name, pair in intervals.items()}
            for category, intervals in evaluation.by_category_intervals.items()
        },
        "by_category_users": evaluation.by_category_users,
        "variants": evaluation.variants,
        "notes": evaluation.notes,
        "counts": {
            "examples": summary.examples,
            "unscored": sum(not example.scored for example in examples),
            "users": summary.users,
            "documents": summary.documents,
            "empty_profiles": summary.empty_profiles,
            "targets_in_history": summary.targets_in_history,
            "targets_in_other_histories": summary.targets_elsewhere,
            "training_examples": summary.training,
        },
    }


def _records(task: Task, store: Store, rankings: Rankings, answers: Answers) -> Iterator[dict[str, Any]]:
    """A line of predictions.jsonl for every example, without its metrics.

    The first `prompt_documents` of `documents` stood in the prompt.
    """
    for example, ranking, made in zip(store.examples(), rankings, _made(answers), strict=False):
        yield {
            "id": example.id,
            "user_id": example.user_id,
            "prediction": prompts.answer(task, made["text"]),
            "target": example.target,
            "prompt_tokens": made["prompt_tokens"],
            "prompt_documents": made["documents"],
            "documents": [_told(candidate) for candidate in ranking],
        }


def _told(candidate: Candidate) -> dict[str, Any]:
    return {"id": candidate.document.id, "user_id": candidate.document.user_id, "score": candidate.score}


def _made(answers: Answers) -> Iterable[Mapping[str, Any]]:
    nothing = {"text": "", "prompt_tokens": 0, "documents": 0, "messages": []}
    return itertools.repeat(nothing) if answers is None else answers


def texts(store: Store, rankings: Rankings, answers: Answers) -> Iterator[dict[str, Any]]:
    """What the model saw of every example, for texts.jsonl: question, prompt, documents' texts, its words."""
    for example, ranking, made in zip(store.examples(), rankings, _made(answers), strict=False):
        yield {
            "id": example.id,
            "query": example.query,
            "input": example.input,
            "prompt": made["messages"],
            "answer": made["text"],
            "documents": [{**_told(candidate), "text": candidate.document.text} for candidate in ranking],
        }

"""What a task's metrics need of the questions that they score, told before any work."""

import math
from collections.abc import Iterable, Iterator

from pbr_jax.base.types import Example, UserError
from pbr_jax.tasks import Task

MOST_COMBINATIONS = 10_000
"""Choices of one document from each group of alternatives that a metric of rankings looks at."""

_OF_LABELS = {"accuracy", "f1_macro"}
_OF_NUMBERS = {"mae", "rmse", "correlation"}


def scorable(
    task: Task,
    examples: Iterable[Example],
    place: str,
    *,
    answered: bool = False,
    metrics: Iterable[str] = (),
) -> Iterator[Example]:
    """The questions of an evaluated split, which lies in `place`.

    Raises UserError for a scored question that the task's metrics cannot score, and at the end where scored
    questions lack what all of them need: relevant documents of a task of kind retrieval; else, where they are
    `answered`, targets that others have. `metrics`: further ones of answers.
    """
    scored, without, untold = 0, list[str](), list[str]()
    for example in examples:
        if example.scored:
            scored += 1
            without += [] if example.relevant else [example.id]
            untold += [example.id] if example.target is None else []
            check_target(task, example, place, metrics)
            _check_groups(task, example, place)
        yield example
    if task.kind == "retrieval" and without:
        raise UserError(
            f"{place}: found no relevant documents of {len(without)} of {scored} scored questions (the first "
            f"is {without[0]!r}), wanted some of each for a task of kind retrieval; name them in `relevant`, "
            'write "scored": false, or take a task of another kind'
        )
    if task.kind != "retrieval" and answered and 0 < len(untold) < scored:
        raise UserError(
            f"{place}: found no target of {len(untold)} of {scored} scored questions (the first is "
            f"{untold[0]!r}), wanted all or none; complete them, take all away to predict without "
            'scoring, or write "scored": false to keep a question out of all numbers'
        )


def check_target(task: Task, example: Example, place: str, metrics: Iterable[str] = ()) -> None:
    """Raises UserError for a target that the task's metrics, and these, cannot score."""
    names, target = {*task.metrics, *metrics}, example.target
    if target is None:
        return
    if task.kind == "dialogue" and len(example.alternatives) != 1:
        raise UserError(
            f"{place}, question {example.id!r}: found no reference of the dialogue state, wanted one beside "
            "the target; take a benchmark of dialogues, or another task"
        )
    if task.labels and names & _OF_LABELS and target.strip() not in task.labels:
        wanted = f"one of the task's labels: {', '.join(task.labels)}"
    elif names & _OF_NUMBERS and not _is_number(target):
        wanted = "a number, as the task is a rating"
    else:
        return
    raise UserError(
        f"{place}, question {example.id!r}: found the target {target!r:.60}, wanted {wanted}; correct it, or "
        "change the task"
    )


def _check_groups(task: Task, example: Example, place: str) -> None:
    sizes = [len(group) for group in example.relevant]
    if task.kind == "retrieval" and (0 in sizes or math.prod(sizes) > MOST_COMBINATIONS):
        found = "an empty group" if 0 in sizes else f"{math.prod(sizes)} combinations"
        raise UserError(
            f"{place}, question {example.id!r}: found {found} of relevant documents, wanted groups of one or "
            f"more with at most {MOST_COMBINATIONS} combinations; merge alternatives, or split the question"
        )


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False

"""What the language model makes of each candidate document alone.

CFRAG section 4.2.2, Eq. 6, and ROPG: a question is answered once with each of its candidates, and the
answer's metric is the candidate's value. Answers are cached one by one, so nothing is asked twice: not by a
run that was killed, nor in a second round whose candidates are in part those of the first.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from pbr_jax.data.tasks import Task
from pbr_jax.eval.metrics import is_plain_mean, rating_error, text_metric
from pbr_jax.eval.rouge import rouge
from pbr_jax.llm.protocol import OnBatch
from pbr_jax.pipeline.pipeline import Generate, Prompt, Ranking
from pbr_jax.text import prompts
from pbr_jax.types import Example, UserError

Values = Callable[[Sequence[str], Sequence[str]], np.ndarray]
"""(answers, targets) -> values [n], the higher the better."""


class Feedback(NamedTuple):
    """The candidates of one question, as rows of the store, and their values."""

    rows: np.ndarray  # int64 [c]
    values: np.ndarray  # float32 [c]


def metric(task: Task, name: str = "auto") -> Values:
    """The value of an answer, from 0 to 1: a metric that a single answer has.

    "auto" is the task's first metric. Errors of ratings become 1 - |error| / the largest that the target
    allows on the scale 1 to 5, as ROPG does.

    Raises:
      UserError: a metric that is none of single answers, such as f1_macro.
    """
    name = task.metrics[0] if name == "auto" else name
    if name in ("rouge1", "rougeL"):
        return lambda answers, targets: rouge(answers, targets, name)
    if name == "mae":
        return _rating
    found = text_metric(name, task.labels)
    if not is_plain_mean(found) or not found.higher_is_better:
        raise UserError(
            f"feedback.metric is {name}, which a single answer does not have; want one of "
            f"{', '.join(n for n in task.metrics if n not in ('f1_macro', 'rmse'))}"
        )
    return lambda answers, targets: found.statistics(answers, targets)[:, 0]


def _rating(answers: Sequence[str], targets: Sequence[str]) -> np.ndarray:
    errors = np.array([abs(rating_error(*pair)) for pair in zip(answers, targets, strict=True)])
    worst = np.array([max(abs(float(target) - 1), abs(float(target) - 5)) for target in targets])
    return np.maximum(1 - errors / worst, 0.0)


def collect(
    task: Task,
    prompt: Prompt,
    generate: Generate,
    examples: Sequence[Example],
    rankings: Sequence[Ranking],
    values: Values,
    on_batch: OnBatch | None = None,
) -> list[Feedback]:
    """The value of every candidate of every example, which must have targets."""
    missing = next((example.id for example in examples if example.target is None), None)
    if missing is not None:
        raise UserError(f"training question {missing!r} has no target; feedback needs the outputs file")
    alone = [(e, [candidate]) for e, ranking in zip(examples, rankings) for candidate in ranking]
    asked = [example for example, _ in alone]
    texts = generate(prompt(asked, [ranking for _, ranking in alone]), on_batch=on_batch)
    answers = [prompts.answer(task, text) for text in texts]
    found = values(answers, [str(example.target) for example in asked]).astype(np.float32)
    parts = np.split(found, np.cumsum([len(ranking) for ranking in rankings])[:-1])
    return [
        Feedback(np.array([c.row for c in ranking], np.int64), part)
        for ranking, part in zip(rankings, parts, strict=True)
    ]

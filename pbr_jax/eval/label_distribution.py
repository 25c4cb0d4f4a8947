"""How often each label is the answer: whether a model tells the questions of a task apart at all."""

from collections import Counter
from collections.abc import Mapping, Sequence

from pbr_jax.eval.render import Cell, Table
from pbr_jax.eval.runs import Row
from pbr_jax.tasks import Task

OTHER = "other"
"""Answers that are none of the labels."""

_ONE_ANSWER = 0.9  # a label with a larger share is the answer to everything
_FEW = 10  # answers of which that says little


def label_distribution(task: Task, predictions: Sequence[str]) -> dict[str, float]:
    """The share of each label among the predictions, and of `OTHER` if there are any; {} without labels."""
    if not task.labels or not predictions:
        return {}
    counts = Counter(text if text in task.labels else OTHER for text in predictions)
    names = [*task.labels, *([OTHER] if counts[OTHER] else [])]
    return {name: counts[name] / len(predictions) for name in names}


def note(shares: Mapping[str, float], n: int) -> list[str]:
    """What the reader has to know where nearly all of n answers are the same."""
    one = next((label for label, share in shares.items() if share > _ONE_ANSWER), None)
    if one is None or n < _FEW:
        return []
    return [
        f"over {_ONE_ANSWER:.0%} of the answers are {one!r} (see the share of each answer): "
        "there is no signal in such a run"
    ]


def shares_table(rows: Sequence[Row]) -> list[Table]:
    """A line of shares for each row of a report, seeds averaged; nothing where no run tells them."""
    names = list(dict.fromkeys(name for row in rows for run in row.runs for name in run.answers))
    if not names:
        return []
    names.sort(key=OTHER.__eq__)
    lines = []
    for row in rows:
        known = [run.answers for run in row.runs if run.answers]
        means = [sum(answers.get(name, 0.0) for answers in known) / max(len(known), 1) for name in names]
        cells = [
            Cell(f"{mean:.1%}{' (no signal)' * (mean > _ONE_ANSWER)}" if known else "–") for mean in means
        ]
        lines.append([Cell(row.label), *cells])
    return [Table(f"Share of each answer; above {_ONE_ANSWER:.0%} it is no signal", ["run", *names], lines)]

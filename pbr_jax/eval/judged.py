"""What a language model that grades answers found: a table of its own, behind all others.

`judge_p` is the mean probability that an answer is right, `judge_accuracy` the share with one above .5. They
are no metrics of a run: nothing is ranked by them, and neither differences nor plots show them.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pbr_jax.eval import averages
from pbr_jax.eval.averages import Scores
from pbr_jax.eval.comparable import ABSENT
from pbr_jax.eval.metrics import Metric, no_text, plain_mean
from pbr_jax.eval.render import Block, Cell, Paragraph, Table
from pbr_jax.eval.runs import Row

NAMES = ("judge_accuracy", "judge_p")
_DIGITS = 12  # of the prompt's hash


def judged(found: Sequence[float | None], clusters: Sequence[str], **how: Any) -> dict[str, Any]:
    """`n`, `metrics` and `intervals` over scored examples, from the judge's probability of each.

    `how`: of `averages.intervals`. There are no metrics where a target is withheld, or no example is scored.
    """
    if not found or None in found:
        return {"n": 0, "metrics": {}, "intervals": {}}
    p = np.array(found, float)[:, None]
    columns = [
        Scores(Metric(name, no_text, plain_mean, True), values)
        for name, values in zip(NAMES, ((p > 0.5).astype(float), p), strict=True)
    ]
    rows = np.arange(len(p))
    sure = averages.intervals(columns, list(clusters), rows, **how)
    intervals = {name: list(pair) for name, pair in sure.items()}
    return {"n": len(p), "metrics": averages.values(columns, rows), "intervals": intervals}


def judged_table(rows: Sequence[Row]) -> list[Block]:
    """The table of what judges found, with each judge's model and the first digits of its prompt's hash;
    nothing where no run was judged."""
    rows = [row for row in rows if row.first.judge]
    if not rows:
        return []
    lines = [[row.label, *_who(row.first.judge), str(row.first.judge["n"]), *_values(row)] for row in rows]
    caption = (
        "Graded by a language model: the share of answers that it calls right with a probability above .5, "
        "and the mean probability. Such grades move with the judge's wording and with its model"
    )
    header = ["run", "judge", "prompt", "n", *NAMES]
    table = Table(caption, header, [[Cell(text) for text in line] for line in lines])
    if len({_who(run.judge) for row in rows for run in row.runs}) < 2:
        return [table]
    told = "The runs were judged by different models or prompts: their grades are not comparable."
    return [Paragraph(told, warning=True), table]


def _who(judge: Mapping[str, Any]) -> tuple[str, str]:
    return str(judge.get("model")), str(judge.get("prompt_hash"))[:_DIGITS]


def _values(row: Row) -> list[str]:
    """Each metric, averaged over seeds, with its interval where there is one seed."""
    texts = []
    for name in NAMES:
        known = [run.judge["metrics"][name] for run in row.runs if name in run.judge.get("metrics", {})]
        if len(known) < len(row.runs):
            texts.append(ABSENT)
            continue
        pair = row.first.judge["intervals"].get(name) if len(known) == 1 else None
        sure = f" [{pair[0]:.4f}, {pair[1]:.4f}]" if pair and pair[0] < pair[1] else ""
        texts.append(f"{statistics.fmean(known):.4f}{sure}")
    return texts

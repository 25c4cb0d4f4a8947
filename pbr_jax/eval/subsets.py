"""Runs over a part of their questions, as if they had been asked nothing else."""

import dataclasses
from collections.abc import Sequence

from pbr_jax.base.types import UserError
from pbr_jax.eval import json_fields
from pbr_jax.eval.runs import Row, Run

_FEW = 10  # questions


def without_near_targets(rows: Sequence[Row]) -> list[Row]:
    """The same rows over the questions whose target the user's own history does not nearly hold.

    Empty where no run has other questions, or too few are left.
    """
    if not any(run.without_near.get("n") for row in rows for run in row.runs):
        return []
    return [dataclasses.replace(row, runs=tuple(map(_without_near, row.runs))) for row in rows]


def near_targets(all_questions: int, left: int) -> str:
    """What the tables of `without_near_targets` are of, in words."""
    few = f" {left} questions are too few to show much." if left < _FEW else ""
    return (
        f"Only the {left} questions whose answer does not nearly stand in an earlier document. In the other "
        f"{all_questions - left} one document of the user's history holds at least 60 % of the words of the "
        f"answer, so a model can copy it.{few}"
    )


def _without_near(run: Run) -> Run:
    if not run.without_near:
        return run
    name = run.path / "results.json"
    records = None if run.records is None else {i: r for i, r in run.records.items() if not r.near}
    return dataclasses.replace(
        run,
        n=json_fields.count(run.without_near, "n", name),
        metrics=json_fields.numbers(run.without_near, "metrics", name),
        intervals=json_fields.pairs(run.without_near, "intervals", name),
        records=records,
        categories={},
    )


def over(run: Run, part: str) -> Run:
    """The run over the questions of a part of its stream; UserError where it has none such."""
    if part not in run.over:
        there = (
            f"there are {', '.join(run.over)}" if run.over else "it has no parts of a stream; set stream.size"
        )
        raise UserError(f"{run.path}: no scored question is of the part {part!r}; {there}")
    found = run.over[part]
    return dataclasses.replace(
        run,
        n=found.n,
        metrics=found.metrics,
        intervals=found.intervals,
        records=None if run.records is None else {i: r for i, r in run.records.items() if part in r.over},
        categories={},
        over={},
        blocks={},
        learned={},
        without_near={},
    )


def order(run: Run) -> str:
    """The order in which a run's questions arrive, and the seed, in words."""
    told = (
        "folds of users"
        if run.config.get("stream.protocol") in ("cross_users", "cross_units")
        else run.config.get("stream.order")
    )
    return f"{told}, seed {run.config.get('seed')}"

"""Metrics with their intervals over all scored examples, over groups of them, and block by block."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pbr_jax.eval.metrics import Metric, within_range
from pbr_jax.eval.significance import FEW, FEWEST, Column, estimates


@dataclass(frozen=True)
class Scores:
    """A metric and its statistics `[n, s]` over the scored examples."""

    metric: Metric
    statistics: np.ndarray


def values(columns: list[Scores], rows: np.ndarray) -> dict[str, float]:
    """All metrics over these examples."""
    return {
        c.metric.name: float(c.metric.finish(c.statistics[rows].mean(0, keepdims=True))[0]) for c in columns
    }


def by_block(columns: list[Scores], blocks: np.ndarray, kept: list[int]) -> list[dict[str, Any]]:
    """`Evaluation.by_block`. `blocks`: of all examples, int [n]; `kept`: those that are scored."""
    scored = blocks[kept] if len(blocks) else blocks
    return [
        {
            "block": int(block),
            "start": int(np.sum(blocks < block)),
            "end": int(np.sum(blocks <= block)),
            "n": int(np.sum(scored == block)),
            "metrics": values(columns, np.flatnonzero(scored == block)),
            "running": values(columns, np.flatnonzero(scored <= block)),
        }
        for block in np.unique(scored)
    ]


def intervals(
    columns: list[Scores],
    users: list[str],
    rows: np.ndarray,
    *,
    resamples: int,
    confidence: float,
    seed: int,
) -> dict[str, tuple[float, float]]:
    """All metrics over these examples, on the same draws."""
    over = [Column(column.metric.finish, [column.statistics[rows]]) for column in columns]
    owners = [users[row] for row in rows]
    sure = estimates(over, owners, resamples=resamples, confidence=confidence, seed=seed)
    names = [column.metric.name for column in columns]
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
            "metrics": values(columns, rows),
            "intervals": {key: list(pair) for key, pair in intervals(columns, users, rows, **how).items()},
        }
        for name, rows in members.items()
        if len(rows)
    }

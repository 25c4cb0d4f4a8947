"""Whether a training has changed anything: how far heads moved, how alike scores are to those of the start.

A head of random weights that hardly moved scores at random; numbers that stand on it compare noise.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from pbr_jax.base.types import Params

LEAST_MOVE = 0.01  # of its initial norm
MOST_ALIKE = 0.98  # Spearman's correlation of scores with their start


def diagnostics(start: Params, now: Params) -> dict[str, float]:
    """How far the parts of `start` have moved: |now - start| / |start|, over all weights of a part."""

    def difference(a: Any, b: Any) -> np.ndarray:
        return np.asarray(a, np.float64) - np.asarray(b, np.float64)

    return {
        name: _norm(jax.tree.map(difference, now[name], part)) / max(_norm(part), 1e-12)
        for name, part in start.items()
    }


def _norm(tree: Any) -> float:
    return float(
        np.sqrt(sum(np.square(np.asarray(leaf, np.float64)).sum() for leaf in jax.tree.leaves(tree)))
    )


def correlation(before: Sequence[np.ndarray], after: Sequence[np.ndarray]) -> float | None:
    """Spearman's rank correlation inside each question, on average; None where no question has an order.

    Ties share the mean of their ranks. A question whose scores are all alike, before or after, has no order.
    """
    pairs = zip(before, after, strict=True)
    found = [_spearman(one, other) for one, other in pairs if np.ptp(one) > 0 and np.ptp(other) > 0]
    return float(np.mean(found)) if found else None


def rank_correlation(values: Sequence[np.ndarray], scores: Sequence[np.ndarray]) -> float:
    """Spearman's rank correlation of scores with candidates' values inside each question, on average.

    Of the questions whose values differ; scores that are all alike have 0 there. 0 where no values differ.
    """
    pairs = [(one, other) for one, other in zip(values, scores, strict=True) if np.ptp(one) > 0]
    found = [_spearman(one, other) if np.ptp(other) > 0 else 0.0 for one, other in pairs]
    return float(np.mean(found)) if found else 0.0


def _spearman(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.corrcoef(_ranks(one), _ranks(other))[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[places]


def warnings(moved: Mapping[str, float], alike: float | None) -> list[str]:
    """Warnings about a training that changed hardly anything."""
    warnings = [
        f"the head '{name}' moved {100 * share:.2g} % of its initial norm and is still almost random; raise "
        "training.optimizer.head_learning_rate or training.epochs"
        for name, share in moved.items()
        if share < LEAST_MOVE
    ]
    if alike is not None and alike > MOST_ALIKE:
        warnings.append(
            f"scores are almost those before training (Spearman {alike:.3f} inside questions); raise "
            "learning rates or training.epochs, or take the untuned method"
        )
    return warnings

"""Scores of a question's candidates on one scale, whatever their unit."""

from collections.abc import Sequence

import numpy as np


def standardised(scores: np.ndarray | Sequence[float]) -> np.ndarray:
    """Scores [... c] of candidates, float64, with mean 0 and deviation 1 along the last axis; zeros where all
    are the same."""
    scores = np.asarray(scores, np.float64)
    if not scores.size:
        return scores
    deviation = scores.std(axis=-1, keepdims=True)
    # What rounding leaves of equal scores is no difference.
    same = deviation <= 1e-9 * np.abs(scores).max(axis=-1, keepdims=True)
    away = scores - scores.mean(axis=-1, keepdims=True)
    return np.where(same, 0.0, away / np.where(same, 1.0, deviation))

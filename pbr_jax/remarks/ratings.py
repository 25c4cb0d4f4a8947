"""Ratings: how what a user found good or bad changes the order of documents for later questions.

LUF (section 2.2) trains a retriever on labels of documents. Here a user's thumbs are the labels, and nothing
is trained: a document's value for a question is the mean of its ratings, weighted by how similar the rated
questions are, and shrunk towards 0 where there are few.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pbr_jax.pipeline import Ranking
from pbr_jax.remarks.log import Rating

MOST = 64
"""The number of a user's latest rated questions that count."""

_WEIGHT = 3.0  # times the range of the scores: what a document of value 1 gains


def latest(ratings: Sequence[Rating]) -> list[str]:
    """The latest rated questions."""
    return [*dict.fromkeys(one.question for one in reversed(ratings))][:MOST]


def reordered(
    ranking: Ranking, ratings: Sequence[Rating], questions: Sequence[str], vectors: np.ndarray
) -> Ranking:
    """A ranking by score and rated value; `scores` of a rated candidate gets the value as `rated`.

    Args:
      questions: those that were rated; others do not count.
      vectors: of the question that is asked, and of these, [1 + q d].
    """
    vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    similar = dict(zip(questions, np.maximum(vectors[1:] @ vectors[0], 0.0) ** 2, strict=True))
    sums: dict[str, np.ndarray] = {}
    for one in ratings:
        if weight := similar.get(one.question, 0.0):
            sums[one.document] = sums.get(one.document, np.zeros(2)) + weight * np.array([one.value, 1.0])
    values = {document: float(value / (1 + weight)) for document, (value, weight) in sums.items()}
    gain = _WEIGHT * (float(np.ptp([candidate.score for candidate in ranking])) or 1.0)
    changed = [
        replace(one, score=one.score + gain * value, scores={**one.scores, "rated": value})
        if (value := values.get(one.document.whole))
        else one
        for one in ranking
    ]
    return sorted(changed, key=lambda candidate: -candidate.score)

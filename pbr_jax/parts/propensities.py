"""What PURPLE's policy reads, as arrays, and its scores of candidates."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from pbr_jax.models.set_policy import SetPolicyConfig, from_arrays, set_policy
from pbr_jax.parts.ragged import Ragged
from pbr_jax.pipeline import Examples, Ranking
from pbr_jax.text.packing import multiple
from pbr_jax.text.token_states import TokenStates, padded
from pbr_jax.types import Params

_BATCH = 16  # questions of one forward pass
_TOKENS, _PLACES = 16, 4  # sizes are multiples of these, so that few programs are compiled


class Question(NamedTuple):
    """Token states of a query [s d], of its candidates [t d] each, and the retriever's scores of these."""

    query: np.ndarray
    records: Sequence[np.ndarray]
    scores: Sequence[float]


class Shape(NamedTuple):
    """Room for tokens of a query, candidates, tokens of a candidate, and the width of a state."""

    query: int
    records: int
    tokens: int
    width: int


def shape_of(query: int, records: int, tokens: int, width: int) -> Shape:
    """Rounded up from the longest query, the most candidates, and the longest candidate."""
    return Shape(multiple(max(query, 1), _TOKENS), multiple(max(records, 1), _PLACES),
                 multiple(max(tokens, 1), _TOKENS), width)  # fmt: skip


def arrays(questions: Sequence[Question], shape: Shape, prior: float) -> dict[str, np.ndarray]:
    """The inputs [b ...] of `models.set_policy`; `prior`: the weight of the retriever's scores."""
    queries, query_mask = padded([q.query for q in questions], (len(questions), shape.query, shape.width))
    records = [padded(question.records, (shape.records, shape.tokens, shape.width)) for question in questions]
    counts = np.array([len(question.records) for question in questions])
    known = np.zeros((len(questions), shape.records), np.float32)
    for row, question in enumerate(questions):
        known[row, : counts[row]] = prior * standardised(question.scores)
    return {
        "query": queries,
        "query_mask": query_mask,
        "records": np.stack([states for states, _ in records]),
        "token_mask": np.stack([mask for _, mask in records]),
        "record_mask": np.arange(shape.records) < counts[:, None],
        "prior": known,
    }


def standardised(scores: Sequence[float]) -> np.ndarray:
    """A question's scores with mean 0 and deviation 1, whatever their unit; 0 where they are all alike."""
    values = np.asarray(scores, np.float64)
    if not len(values) or np.ptp(values) == 0:
        return np.zeros(len(values))
    return (values - values.mean()) / values.std()


class Propensities:
    """A trained policy.

    Args:
      queries: the frozen encoder, for queries, which may be new.
      records: token states of all documents.
      prior: the weight of the retriever's scores.
    """

    def __init__(
        self, config: SetPolicyConfig, params: Params, queries: TokenStates, records: Ragged, prior: float
    ) -> None:
        self._params, self._queries, self._records, self._prior = params, queries, records, prior
        self._apply = jax.jit(from_arrays(set_policy(config)))

    def scores(self, examples: Examples, rankings: Sequence[Ranking]) -> list[np.ndarray]:
        """The logit of each example's candidates, float32."""
        queries = self._queries.encode([example.query for example in examples], role="query")
        rows = [[candidate.row for candidate in ranking] for ranking in rankings]
        tokens = max((int(self._records.lengths[of].max()) for of in rows if of), default=1)
        shape = shape_of(
            max(map(len, queries), default=1), max(map(len, rows), default=1), tokens, self._queries.width
        )
        found: list[np.ndarray] = []
        for begin in range(0, len(examples), _BATCH):
            some = range(begin, min(begin + _BATCH, len(examples)))
            read = [
                Question(queries[i], self._records.read(rows[i]), [c.score for c in rankings[i]])
                for i in some
            ]
            filled = read + read[:1] * (_BATCH - len(read))
            scores = np.asarray(self._apply(self._params, arrays(filled, shape, self._prior)))
            found += [row[: len(rows[i])] for i, row in zip(some, scores)]
        return found

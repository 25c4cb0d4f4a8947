"""What PURPLE's policy reads, as arrays, and its scores of candidates."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from pbr_jax.base.prefetch import fetched
from pbr_jax.base.types import Params
from pbr_jax.models.set_policy import SetPolicyConfig, from_arrays, set_policy
from pbr_jax.pipeline import Examples, Ranking
from pbr_jax.stages.scores import standardised
from pbr_jax.stages.token_vectors import Ragged
from pbr_jax.text.padding import multiple
from pbr_jax.text.token_states import TokenStates, padded

_BATCH = 16  # questions of one forward pass
_TOKENS, _PLACES = 16, 4  # sizes are multiples of these, so that few programs are compiled
_PART, _ROWS = 8, 16  # tokens of a record that stand in a row; rows are a multiple of these


class Question(NamedTuple):
    """Token states of a query [s d], of its candidates [t d] each, the retriever's scores of these, and what
    else is known of them [n f] (`features`)."""

    query: np.ndarray
    records: Sequence[np.ndarray]
    scores: Sequence[float]
    features: np.ndarray | None = None


class Shape(NamedTuple):
    """Room for tokens of a query, candidates, and the width of a state."""

    query: int
    records: int
    width: int


def shape_of(query: int, records: int, width: int) -> Shape:
    """Rounded up from the longest query and the most candidates."""
    return Shape(multiple(max(query, 1), _TOKENS), multiple(max(records, 1), _PLACES), width)


def arrays(questions: Sequence[Question], shape: Shape, prior: float) -> dict[str, np.ndarray]:
    """The inputs [b ...] of `models.set_policy`; `prior`: the weight of the retriever's scores.

    Records are cut into rows of 8 tokens, so that a long one lengthens no other; there are as many rows as
    the question with the most of them needs, rounded up to one of four numbers in each power of two.
    """
    queries, query_mask = padded([q.query for q in questions], (len(questions), shape.query, shape.width))
    owners = [_owners(question.records) for question in questions]
    rows = _rounded(max(map(len, owners), default=1))
    records = np.zeros((len(questions), rows, _PART, shape.width), np.float16)
    token_mask = np.zeros(records.shape[:3], bool)
    record_of = np.full(records.shape[:2], -1, np.int32)
    for row, (question, of_rows) in enumerate(zip(questions, owners, strict=True)):
        record_of[row, : len(of_rows)] = of_rows
        states, mask = records[row].reshape(-1, shape.width), token_mask[row].reshape(-1)
        starts = np.searchsorted(of_rows, np.arange(len(question.records))) * _PART
        for record, start in zip(question.records, starts.tolist(), strict=True):
            states[start : start + len(record)] = record
            mask[start : start + len(record)] = True
    counts = np.array([len(question.records) for question in questions])
    known = np.zeros((len(questions), shape.records), np.float32)
    for row, question in enumerate(questions):
        known[row, : counts[row]] = prior * standardised(question.scores)
    further = {}
    if questions and questions[0].features is not None:
        further["features"] = np.zeros((*known.shape, questions[0].features.shape[1]), np.float32)
        for row, question in enumerate(questions):
            further["features"][row, : counts[row]] = question.features
    return {
        "query": queries,
        "query_mask": query_mask,
        "records": records,
        "token_mask": token_mask,
        "record_of": record_of,
        "record_mask": np.arange(shape.records) < counts[:, None],
        "prior": known,
        **further,
    }


def _owners(records: Sequence[np.ndarray]) -> np.ndarray:
    """The record of each row of tokens, int [m], ascending."""
    return np.repeat(np.arange(len(records)), rows_of([len(record) for record in records]))


def rows_of(tokens: Sequence[int] | np.ndarray) -> np.ndarray:
    """How many rows records of so many tokens take."""
    return -(-np.asarray(tokens, np.int64) // _PART)


def _rounded(rows: int) -> int:
    """A multiple of 16; of 32, 64, ... above 128, 256, ..."""
    step = max(_ROWS, 1 << max((rows - 1).bit_length() - 3, 0))
    return multiple(max(rows, 1), step)


def question(
    query: np.ndarray, records: Sequence[np.ndarray], ranking: Ranking, parts: Sequence[str] | None
) -> Question:
    """A question with the states of its candidates. `parts`: of their features; None: there are none."""
    known = None if parts is None else features(ranking, parts)
    return Question(query, records, [candidate.score for candidate in ranking], known)


def part_names(rankings: Iterable[Ranking]) -> tuple[str, ...]:
    """The parts that candidates' scores are made of, over all rankings, sorted."""
    return tuple(sorted({name for ranking in rankings for candidate in ranking for name in candidate.scores}))


def features(ranking: Ranking, parts: Sequence[str]) -> np.ndarray:
    """What retrievers say of a question's candidates, float32 [n 2 + p]: the score, the place (the first is
    the highest) and the scores of each part, each standardised within the question. A candidate that a part
    has no score of has the lowest of that part's.
    """
    columns = [[candidate.score for candidate in ranking], [-float(place) for place in range(len(ranking))]]
    for name in parts:
        lowest = min((c.scores[name] for c in ranking if name in c.scores), default=0.0)
        columns.append([candidate.scores.get(name, lowest) for candidate in ranking])
    return np.stack([standardised(column) for column in columns], axis=-1).astype(np.float32)


def with_features(config: SetPolicyConfig, parts: Sequence[str] | None) -> SetPolicyConfig:
    """The sizes of a policy that reads `features` of these parts; None: of one that reads none."""
    return config if parts is None else replace(config, num_features=2 + len(parts))


class PolicyScorer:
    """A trained policy.

    Args:
      queries: the frozen encoder, for queries, which may be new.
      records: token states of all documents.
      prior: the weight of the retriever's scores.
      parts: whose scores are among the features that it was trained with; None: it has no features.
    """

    def __init__(
        self,
        config: SetPolicyConfig,
        params: Params,
        queries: TokenStates,
        records: Ragged,
        prior: float,
        parts: Sequence[str] | None = None,
    ) -> None:
        self._parts = parts
        self._params, self._queries, self._records, self._prior = params, queries, records, prior
        self._apply = jax.jit(from_arrays(set_policy(config)))

    def scores(self, examples: Examples, rankings: Sequence[Ranking]) -> list[np.ndarray]:
        """The logit of each example's candidates, float32."""
        queries = self._queries.encode([example.query for example in examples], role="query")
        rows = [[candidate.row for candidate in ranking] for ranking in rankings]
        longest, most = max(map(len, queries), default=1), max(map(len, rows), default=1)
        shape = shape_of(longest, most, self._queries.width)
        found: list[Any] = [None] * len(examples)
        order = np.argsort([rows_of(self._records.lengths[of]).sum() for of in rows], kind="stable").tolist()

        def start(some: list[int]) -> tuple[list[int], Any]:
            read = [question(queries[i], self._records.read(rows[i]), rankings[i], self._parts) for i in some]
            filled = read + read[:1] * (_BATCH - len(read))
            return some, self._apply(self._params, arrays(filled, shape, self._prior))

        batches = (order[begin : begin + _BATCH] for begin in range(0, len(order), _BATCH))
        for some, scores in fetched(map(start, batches)):
            for i, row in zip(some, scores):
                found[i] = row[: len(rows[i])]
        return found

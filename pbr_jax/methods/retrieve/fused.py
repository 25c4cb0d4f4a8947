"""Several retrievers as one: their scores of each document, made comparable within a question, added up.

Standardised sums: Lee, "Combining multiple evidence from different properties of weighting schemes", 1995,
and later work on score fusion. Reciprocal ranks: Cormack, Clarke, Buettcher, "Reciprocal rank fusion
outperforms Condorcet and individual rank learning methods", 2009. The learned weights are ours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter
from typing import Any, Literal

import numpy as np

from pbr_jax.base.types import Candidate, UserError
from pbr_jax.corpus.store import Store
from pbr_jax.graph import Bound, Node, Slot, builds_nodes, constant
from pbr_jax.methods.retrieve import fused_weights
from pbr_jax.methods.retrieve.bm25 import BM25
from pbr_jax.methods.retrieve.dense import Dense
from pbr_jax.options import Learner, Retrieve, TrainingSplit, names_of
from pbr_jax.pipeline import Examples, Neighbour, Query, Ranking, RetrieveSlot, Tally
from pbr_jax.stages.passages import Pool
from pbr_jax.stages.run import Run, chunks
from pbr_jax.stages.scores import standardised

_TOGETHER = 64  # questions whose candidates, which may be whole histories, are in memory at once
_SHARED_DEPTH = 100
_OF = "of."  # begins the names of the parts among the needs
_ORDER: tuple[TrainingSplit, ...] = ("unused", "welcome", "apart", "needed")


@dataclass(frozen=True, kw_only=True)
class Fused(Retrieve):
    """A weighted sum of the scores of several retrievers. The score of each retriever is kept too.

    A part is any retriever with its options; its `k` is used only in its own training. If there are shared
    documents or a `depth`, a document that a part did not retrieve gets the lowest score of that part. With
    reciprocal ranks, it gets nothing from that part.

    Methods that learn from a stream (luf, centred) cannot be parts, because a stream keeps one state for each
    slot and none for parts. `luf` has its own field `of` for other retrievers.
    """

    method: Literal["fused"] = "fused"
    # the retrievers. On the command line by name: --retrieve.of bm25 dense
    of: tuple[Retrieve, ...] = (BM25(), Dense())
    # summed quantities. standardised: (score - mean) / deviation over the question's candidates; weighted:
    # the same, with weights fitted to training questions; reciprocal_ranks: 1 / (rank_constant + rank)
    how: Literal["standardised", "reciprocal_ranks", "weighted"] = "standardised"
    rank_constant: int = 60  # reciprocal_ranks: its constant. The default is that of Cormack et al.
    # number of candidates of each user from each retriever. None: whole histories, or 100 if there are shared
    # documents
    depth: int | None = None
    # weighted: target of the fitted weights. relevant: the relevant documents in the data, with equal
    # weights; feedback: the softmax of the language model's feedback; auto: relevant on retrieval benchmarks,
    # otherwise feedback
    learns_from: Literal["auto", "relevant", "feedback"] = "auto"
    temperature: float = 1.0  # temperature of that softmax, in the unit of the feedback
    # strength of the L2 penalty, half the squared logit weights. It makes the minimum of the fit unique
    ridge: float = 1e-4

    def check(self) -> None:
        super().check()
        self.at_least("depth", 1)
        self.at_least("rank_constant", 0)
        self.at_least("temperature", 1e-6)
        self.at_least("ridge", 1e-12)
        if not self.of:
            raise UserError("retrieve.of is empty, want the retrievers that are fused, such as bm25 dense")
        check_parts(self.of)

    @property
    def parts(self) -> dict[str, Retrieve]:
        """The retrievers by their names."""
        return dict(zip(names_of(self.of), self.of, strict=True))

    @property
    def ceiling(self) -> bool:
        return any(part.ceiling for part in self.of)

    def learns(self) -> TrainingSplit:
        own: TrainingSplit = "needed" if self.how == "weighted" else "unused"
        return max([own, *(part.learns() for part in self.of)], key=_ORDER.index)

    @builds_nodes
    def encoder(self, run: Run) -> Node | None:
        """The first part's that has one."""
        found = (part.encoder(run.changed(retrieve=part)) for part in self.of)
        return next((node for node in found if node is not None), None)

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        slots = slots_of(self.of, run)
        corpus = run.config.corpus
        slots |= {"pool": constant("pool", corpus.pool)} if corpus.active and corpus.pool != "none" else {}
        if self.how != "weighted":
            return {"store": run.data, **slots}
        even = replace(self, how="standardised")
        told = (tuple(self.parts), self.learns_from, self.temperature, self.ridge)
        return {"store": run.data, **slots, "weights": fused_weights.weights(run, even, *told)}

    def slot(
        self,
        tally: Tally,
        *,
        store: Store,
        weights: Mapping[str, float] | None = None,
        pool: Pool | None = None,
        **values: Any,
    ) -> RetrieveSlot:
        parts = opened(self.of, max(self.depth or depth(store), self.k), tally, values)
        share = [1.0 if weights is None else weights[name] for name in parts]
        return self.together(parts, share, pool)

    def together(
        self, parts: Mapping[str, RetrieveSlot], share: Sequence[float], pool: Pool | None = None
    ) -> RetrieveSlot:
        """The parts by their names as one retriever; each one's scores count `share` times."""

        def retrieve(
            examples: Examples, queries: Sequence[Query], neighbours: Sequence[Sequence[Neighbour]]
        ) -> list[Ranking]:
            fused = []
            for some in chunks(zip(examples, queries, neighbours, strict=True), _TOGETHER):
                asked = [list(column) for column in zip(*some, strict=True)]
                found = {name: part(*asked) for name, part in parts.items()}
                for i, users in enumerate(asked[2]):
                    fused.append(self.one({n: of[i] for n, of in found.items()}, users, share, pool))
            return fused

        return retrieve

    def one(
        self,
        found: Mapping[str, Ranking],
        users: Sequence[Neighbour],
        share: Sequence[float],
        pool: Pool | None,
    ) -> Ranking:
        """The best of one question's candidates by the sum of what the parts' rankings say of them.

        They are the `k` best documents of each user, users in their order; of equal ones the first in the
        store. Passages are pooled in each part, and the one that stands best by all parts is shown for its
        document.
        """
        raw, there = table(found)
        if pool is not None:
            standing = np.array(share) @ standardised(filled(raw))
            raw, there = by_document(raw, there, standing, pool)
        missing, raw = np.isnan(raw), filled(raw)
        if self.how == "reciprocal_ranks":
            values = np.where(missing, 0.0, 1 / (self.rank_constant + places(raw)))
        else:
            values = standardised(raw)
        total = np.array(share) @ values
        owned: dict[str, list[int]] = {user.user_id: [] for user in users}
        for i in np.lexsort((np.array([candidate.row for candidate in there]), -total)).tolist():
            owned.setdefault(there[i].document.user_id, []).append(i)
        return [
            Candidate(there[i].document, float(total[i]), there[i].row, dict(zip(found, raw[:, i].tolist())))
            for own in owned.values()
            for i in own[: self.k]
        ]


def check_parts(of: Sequence[Retrieve]) -> None:
    """Raises UserError for a retriever that cannot be a part of another one."""
    for part in of:
        if isinstance(part, Fused | Learner):
            why = "is made of others itself" if isinstance(part, Fused) else "learns from a stream"
            raise UserError(f"retrieve.of has {part.method}, which {why}; take other retrievers")


@builds_nodes
def slots_of(of: Sequence[Retrieve], run: Run) -> dict[str, Node]:
    """What a retriever needs for its parts."""
    return {
        _OF + name: Slot(part, run.changed(retrieve=part))
        for name, part in zip(names_of(of), of, strict=True)
    }


def depth(store: Store) -> int:
    """How many candidates of each user a part gives: whole histories, or the best where some are shared."""
    return _SHARED_DEPTH if store.has_shared else max(store.rows, 1)


def opened(
    of: Sequence[Retrieve], k: int, tally: Tally, values: Mapping[str, Any]
) -> dict[str, RetrieveSlot]:
    """The parts of a retriever by their names, each of which gives `k` candidates of each user. `values` has
    what `slots_of` asked for."""
    bound: dict[str, Bound] = {name: values[_OF + name] for name in names_of(of)}
    return {n: replace(b, method=replace(b.method, k=k))(tally) for n, b in bound.items()}


def table(found: Mapping[str, Ranking]) -> tuple[np.ndarray, list[Candidate]]:
    """The parts' scores [p c] of all candidates, nan where a part did not find one, and these, rows
    ascending."""
    rows = [list(map(attrgetter("row"), ranking)) for ranking in found.values()]
    names = np.unique(np.array([*chain.from_iterable(rows)], np.int64))
    scores = np.full((len(found), len(names)), np.nan)
    there: dict[int, Candidate] = {}
    for part, own, ranking in zip(scores, rows, found.values(), strict=True):
        part[np.searchsorted(names, own)] = list(map(attrgetter("score"), ranking))
        there |= zip(own, ranking, strict=True)
    return scores, [there[row] for row in names.tolist()]


def by_document(
    scores: np.ndarray, there: Sequence[Candidate], standing: np.ndarray, how: Pool
) -> tuple[np.ndarray, list[Candidate]]:
    """The parts' scores [p d] of documents from those of their passages [p c], pooled as `stages.passages`
    does, and of each document the passage that stands best [c]; documents in the order of their first
    passages."""
    codes: dict[tuple[str, str], int] = {}
    of = np.array(
        [codes.setdefault((c.document.user_id, c.document.whole), len(codes)) for c in there], np.int64
    )
    if not codes:
        return scores, []
    starts = np.searchsorted(np.sort(of), np.arange(len(codes)))
    shown = np.lexsort((-standing, of))[starts]  # equal ones stay in order
    order = np.lexsort((-scores, np.broadcast_to(of, scores.shape)))  # nan last
    ordered = np.take_along_axis(scores, order, 1)
    best = np.ascontiguousarray(ordered[:, starts])  # rows, so that sums over them have one order
    if how == "mean_best_two":
        ends = np.append(starts[1:], len(of))
        second = np.where(ends - starts > 1, ordered[:, np.minimum(starts + 1, len(of) - 1)], np.nan)
        best = np.where(np.isnan(second), best, (best + second) / 2)
    return best, [there[i] for i in shown.tolist()]


def filled(scores: np.ndarray) -> np.ndarray:
    """The parts' scores [p c] with a part's lowest in place of nan, 0 where it has none."""
    lowest = np.fmin.reduce(scores, axis=1, keepdims=True, initial=np.inf)
    return np.where(np.isnan(scores), np.where(np.isinf(lowest), 0.0, lowest), scores)


def places(scores: np.ndarray) -> np.ndarray:
    """Each row's places [p c], 1 for the best; equal scores share the better place."""
    return np.array([1 + np.searchsorted(np.sort(-row), -row) for row in scores]).reshape(scores.shape)

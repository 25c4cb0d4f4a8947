"""Several retrievers as one: their scores of each document, made comparable within a question, added up.

Standardised sums: Lee, "Combining multiple evidence from different properties of weighting schemes", 1995,
and later work on score fusion. Reciprocal ranks: Cormack, Clarke, Buettcher, "Reciprocal rank fusion
outperforms Condorcet and individual rank learning methods", 2009. The learned weights are ours.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from pbr_jax.corpus.store import Store
from pbr_jax.graph import Bound, Node, Slot, constant
from pbr_jax.methods.retrieve import fused_weights
from pbr_jax.methods.retrieve.bm25 import BM25
from pbr_jax.methods.retrieve.dense import Dense
from pbr_jax.options import Learner, Retrieve, TrainingSplit, names_of
from pbr_jax.parts.passages import Pool, pooled
from pbr_jax.parts.run import Run, chunks
from pbr_jax.parts.scores import standardised
from pbr_jax.pipeline import Examples, Neighbour, Query, Ranking, RetrieveSlot, Tally
from pbr_jax.types import Candidate, UserError

_TOGETHER = 64  # questions whose candidates, which may be whole histories, are in memory at once
_SHARED_DEPTH = 100
_OF = "of."  # begins the names of the parts among the needs
_ORDER: tuple[TrainingSplit, ...] = ("unused", "welcome", "apart", "needed")


@dataclass(frozen=True, kw_only=True)
class Fused(Retrieve):
    """A weighted sum of what other retrievers say of each document; each part's own score is kept.

    A part is any retriever with its options; its `k` counts in its own training alone. Where there are shared
    documents or a `depth`, a document that a part did not find has that part's lowest score; of reciprocal
    ranks it gets nothing from that part.

    What learns from a stream (luf, centred) is no part: a stream keeps a state and a corpus for each slot,
    and none for a part of a method. Nor is this a part of those: they move vectors of queries.
    """

    method: Literal["fused"] = "fused"
    of: tuple[Retrieve, ...] = (BM25(), Dense())  # by name on a command line: --retrieve.of bm25 dense
    # what is added. standardised: (score - mean) / deviation over the question's candidates; weighted: the
    # same with weights that training questions teach; reciprocal_ranks: 1 / (rank_constant + rank)
    how: Literal["standardised", "reciprocal_ranks", "weighted"] = "standardised"
    rank_constant: int = 60  # as Cormack et al. have it
    # candidates of each user that a part gives; None: whole histories, or 100 where documents are shared
    depth: int | None = None
    # weighted: what the weights are drawn to. relevant: the documents that the data names, alike; feedback:
    # the softmax of what the language model makes of each; auto: relevant on retrieval benchmarks
    learns_from: Literal["auto", "relevant", "feedback"] = "auto"
    temperature: float = 1.0  # of that softmax, in the unit of the feedback
    ridge: float = 1e-4  # weight of half the squared logit weights, so that the fit has one minimum

    def check(self) -> None:
        super().check()
        self.at_least("depth", 1)
        self.at_least("rank_constant", 0)
        self.at_least("temperature", 1e-6)
        self.at_least("ridge", 1e-12)
        if not self.of:
            raise UserError("retrieve.of is empty, want the retrievers that are fused, such as bm25 dense")
        for part in self.of:
            if isinstance(part, Fused | Learner):
                why = "is made of others itself" if isinstance(part, Fused) else "learns from a stream"
                raise UserError(f"retrieve.of has {part.method}, which {why}; take other retrievers")

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

    def encoder(self, run: Run) -> Node | None:
        """The first part's that has one."""
        found = (part.encoder(run.changed(retrieve=part)) for part in self.of)
        return next((node for node in found if node is not None), None)

    def needs(self, run: Run) -> Mapping[str, Node]:
        slots: dict[str, Node] = {
            _OF + n: Slot(part, run.changed(retrieve=part)) for n, part in self.parts.items()
        }
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
        depth = self.depth or (_SHARED_DEPTH if store.has_shared else max(store.rows, 1))
        parts = {n: _deep(values[_OF + n], max(depth, self.k))(tally) for n in self.parts}
        share = [1.0 if weights is None else weights[name] for name in parts]

        def retrieve(
            examples: Examples, queries: Sequence[Query], neighbours: Sequence[Sequence[Neighbour]]
        ) -> list[Ranking]:
            fused = []
            for some in chunks(zip(examples, queries, neighbours, strict=True), _TOGETHER):
                asked = [list(column) for column in zip(*some, strict=True)]
                found = {name: part(*asked) for name, part in parts.items()}
                for i, users in enumerate(asked[2]):
                    ranking = self.one({name: of[i] for name, of in found.items()}, share, pool)
                    fused.append(best_of_each(ranking, users, self.k))
            return fused

        return retrieve

    def one(self, found: Mapping[str, Ranking], share: Sequence[float], pool: Pool | None) -> Ranking:
        """All candidates of one question, each part's ranking by name, with their sum; rows ascending.

        Passages are pooled in each part, and the one that stands best by all parts is shown for its document.
        """
        if pool is None:
            raw, there = table(found, lambda candidate: candidate.row)
        else:
            passages, shown = table(found, lambda candidate: candidate.row)
            standing = np.array(share) @ standardised(filled(passages))
            best: dict[Any, Candidate] = {}
            for i in np.argsort(-standing, kind="stable"):
                best.setdefault(_document(shown[i]), shown[i])
            raw, there = table({name: pooled(ranking, pool) for name, ranking in found.items()}, _document)
            there = [best[_document(candidate)] for candidate in there]
        missing, raw = np.isnan(raw), filled(raw)
        if self.how == "reciprocal_ranks":
            values = np.where(missing, 0.0, 1 / (self.rank_constant + places(raw)))
        else:
            values = standardised(raw)
        total = np.array(share) @ values
        return [
            Candidate(one.document, float(total[i]), one.row, dict(zip(found, map(float, raw[:, i]))))
            for i, one in enumerate(there)
        ]


def _deep(bound: Bound, k: int) -> Bound:
    return replace(bound, method=replace(bound.method, k=k))


def _document(candidate: Candidate) -> tuple[str, str]:
    """The document that a candidate is, or is a passage of."""
    return candidate.document.user_id, candidate.document.whole


def table(
    found: Mapping[str, Ranking], known_by: Callable[[Candidate], Hashable]
) -> tuple[np.ndarray, list[Candidate]]:
    """The parts' scores [p c] of all candidates, nan where a part did not find one, and these, rows
    ascending."""
    there: dict[Hashable, Candidate] = {}
    for ranking in found.values():
        for candidate in ranking:
            there.setdefault(known_by(candidate), candidate)
    names = sorted(there, key=lambda name: there[name].row)
    scores = np.full((len(found), len(names)), np.nan)
    for part, ranking in zip(scores, found.values(), strict=True):
        own = {known_by(candidate): candidate.score for candidate in ranking}
        part[:] = [own.get(name, np.nan) for name in names]
    return scores, [there[name] for name in names]


def filled(scores: np.ndarray) -> np.ndarray:
    """The parts' scores [p c] with a part's lowest in place of nan, 0 where it has none."""
    lowest = np.fmin.reduce(scores, axis=1, keepdims=True, initial=np.inf)
    return np.where(np.isnan(scores), np.where(np.isinf(lowest), 0.0, lowest), scores)


def best_of_each(ranking: Ranking, users: Sequence[Neighbour], k: int) -> Ranking:
    """The `k` best documents of each user, users in their order; of equal scores the first in the store."""
    owned: dict[str, Ranking] = {user.user_id: [] for user in users}
    for candidate in sorted(ranking, key=lambda c: (-c.score, c.row)):
        owned.setdefault(candidate.document.user_id, []).append(candidate)
    return [candidate for own in owned.values() for candidate in own[:k]]


def places(scores: np.ndarray) -> np.ndarray:
    """Each row's places [p c], 1 for the best; equal scores share the better place."""
    return np.array([1 + np.searchsorted(np.sort(-row), -row) for row in scores]).reshape(scores.shape)

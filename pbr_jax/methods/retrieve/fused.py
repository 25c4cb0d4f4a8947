"""Several retrievers as one: their scores of each document, made comparable within a question, added up.

Standardised sums: Lee, "Combining multiple evidence from different properties of weighting schemes", 1995,
and later work on score fusion. Reciprocal ranks: Cormack, Clarke, Buettcher, "Reciprocal rank fusion
outperforms Condorcet and individual rank learning methods", 2009. The learned weights are ours.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from pbr_jax.base.files import parse_json, write_text
from pbr_jax.base.types import Candidate, Example, UserError
from pbr_jax.corpus.store import Store
from pbr_jax.graph import Bound, Node, Slot, Stage, builds_nodes, constant
from pbr_jax.methods.generate.ipa import Ipa
from pbr_jax.methods.retrieve.bm25 import BM25
from pbr_jax.methods.retrieve.dense import Dense
from pbr_jax.methods.select.by_score import TopK
from pbr_jax.options import Learner, Retrieve, TrainingSplit, added, names_of
from pbr_jax.pipeline import Examples, Neighbour, Queries, Ranking, RetrieveSlot, Searched, Tally
from pbr_jax.stages import feedback
from pbr_jax.stages.labels import is_relevant
from pbr_jax.stages.rankings import Questions, Rankings, rankings
from pbr_jax.stages.run import Run, chunks, once
from pbr_jax.stages.scores import standardised
from pbr_jax.stages.search import Scored, scored
from pbr_jax.stages.trained import save_report

_TOGETHER = 256  # questions whose scores, which may be of whole histories, are in memory at once
_SHARED_DEPTH = 100
_OF = "of."  # begins the names of the parts among the needs
_ORDER: tuple[TrainingSplit, ...] = ("unused", "welcome", "apart", "needed")


@dataclass(frozen=True, kw_only=True)
class Fused(Retrieve):
    """A weighted sum of the scores of several retrievers. The score of each retriever is kept too.

    Over passages, one part may search whole documents (`over documents`) beside others that do not.

    A part is any retriever with its options; its `k` is used only in its own training. If there are shared
    documents or a `depth`, a document that a part did not retrieve gets the lowest score of that part. With
    reciprocal ranks, it gets nothing from that part.

    Methods that learn from a stream (luf, centred) cannot be parts, because a stream keeps one state for each
    slot and none for parts. `luf` has its own field `of` for other retrievers.
    """

    pools: ClassVar[bool] = True

    method: Literal["fused"] = "fused"
    # the retrievers. On the command line by name: --retrieve.of bm25 dense
    of: tuple[Retrieve, ...] = (BM25(), Dense())
    # summed quantities. standardised: (score - mean) / deviation over the question's candidates; weighted:
    # the same, with weights fitted to training questions; reciprocal_ranks: 1 / (rank_constant + rank)
    how: Literal["standardised", "reciprocal_ranks", "weighted"] = "standardised"
    # how much each of the retrievers counts, in their order. (): each counts once
    weights: tuple[float, ...] = field(default=(), metadata=added(()))
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
        if self.weights and not any(self.weights):
            raise UserError("retrieve.weights is 0 for every retriever, want a number other than 0; set one")
        if self.weights and self.how == "weighted":
            raise UserError(
                "retrieve.weights is set, and retrieve.how weighted fits them; leave one of them out"
            )

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
        if self.weights and len(self.weights) != len(self.of):  # only now, as overrides change one by one
            raise UserError(
                f"retrieve.weights has {len(self.weights)} numbers, want one for each of the {len(self.of)} "
                f"retrievers in retrieve.of ({' '.join(self.parts)})"
            )
        slots = slots_of(self.of, run)
        slots |= pooling(run)
        if self.how != "weighted":
            return {"store": run.data, **slots}
        even = replace(self, how="standardised")
        told = (tuple(self.parts), self.learns_from, self.temperature, self.ridge)
        return {"store": run.data, **slots, "weights": fitted_weights(run, even, *told)}

    def slot(
        self,
        tally: Tally,
        *,
        store: Store,
        weights: Mapping[str, float] | None = None,
        pool: bool = False,
        **values: Any,
    ) -> RetrieveSlot:
        parts = opened(self.of, depth(store, self.k, pool, self.depth), tally, values)
        share = self.weights or [1.0 if weights is None else weights[name] for name in parts]
        return self.together(parts, share, store, pool)

    def together(
        self, parts: Mapping[str, RetrieveSlot], share: Sequence[float], store: Store, pool: bool = False
    ) -> RetrieveSlot:
        """The parts by their names as one retriever; each one's scores count `share` times."""

        def retrieve(examples: Examples, queries: Queries, neighbours: Searched) -> list[Ranking]:
            fused = []
            for some in chunks(zip(examples, queries, neighbours, strict=True), _TOGETHER):
                asked = [list(column) for column in zip(*some, strict=True)]
                found = [scored(part, *asked) for part in parts.values()]
                for users, *of_parts in zip(asked[2], *found, strict=True):
                    named = dict(zip(parts, of_parts, strict=True))
                    fused.append(self.one(named, users, share, store, pool))
            return fused

        return retrieve

    def one(
        self,
        found: Mapping[str, Scored],
        users: Sequence[Neighbour],
        share: Sequence[float],
        store: Store,
        pool: bool = False,
    ) -> Ranking:
        """The best of one question's candidates by the sum of what the parts found.

        They are the `k` best documents of each user, users in their order; of equal ones the first in the
        store. Passages are pooled in each part, and the one that stands best by all parts is shown for its
        document.
        """
        rows, raw = table(found.values())
        if pool:
            standing = np.array(share) @ standardised(filled(raw))
            rows, raw = by_document(rows, raw, store.firsts[rows], standing)
        missing, raw = np.isnan(raw), filled(raw)
        if self.how == "reciprocal_ranks":
            values = np.where(missing, 0.0, 1 / (self.rank_constant + places(raw)))
        else:
            values = standardised(raw)
        total = np.array(share) @ values
        owned: dict[int, list[int]] = {store.code(user.user_id): [] for user in users}
        order = np.lexsort((rows, -total))
        for i, owner in zip(order.tolist(), store.owners[rows[order]].tolist(), strict=True):
            owned.setdefault(owner, []).append(i)
        best = [i for own in owned.values() for i in own[: self.k]]
        return [
            Candidate(document, float(total[i]), int(rows[i]), dict(zip(found, raw[:, i].tolist())))
            for document, i in zip(store.documents(rows[best]), best, strict=True)
        ]


def check_parts(of: Sequence[Retrieve]) -> None:
    """Raises UserError for a retriever that cannot be a part of another one."""
    for part in of:
        if isinstance(part, Fused | Learner) or part.own_texts:
            why = "learns from a stream" if isinstance(part, Learner) else "finds texts that are no documents"
            why = "is made of others itself" if isinstance(part, Fused) else why
            raise UserError(f"retrieve.of has {part.method}, which {why}; take other retrievers")


@builds_nodes
def pooling(run: Run) -> dict[str, Node]:
    """What tells a retriever to pool passages."""
    corpus = run.config.corpus
    return {"pool": constant("pool", True)} if corpus.active and corpus.pool != "none" else {}


@builds_nodes
def slots_of(of: Sequence[Retrieve], run: Run) -> dict[str, Node]:
    """What a retriever needs for its parts."""
    return {
        _OF + name: Slot(part, run.changed(retrieve=part))
        for name, part in zip(names_of(of), of, strict=True)
    }


def depth(store: Store, k: int, pool: bool, wanted: int | None = None) -> int:
    """How many candidates of each user a part gives for `k` documents: `wanted`, else whole histories, or the
    best where some are shared."""
    every = _SHARED_DEPTH if store.has_shared else max(store.rows, 1)
    return max(wanted or every, k * store.most_passages if pool else k)


def opened(
    of: Sequence[Retrieve], k: int, tally: Tally, values: Mapping[str, Any]
) -> dict[str, RetrieveSlot]:
    """The parts of a retriever by their names, each of which gives `k` candidates of each user. `values` has
    what `slots_of` asked for."""
    bound: dict[str, Bound] = {name: values[_OF + name] for name in names_of(of)}
    return {n: replace(b, method=replace(b.method, k=k))(tally) for n, b in bound.items()}


def table(found: Iterable[Scored]) -> tuple[np.ndarray, np.ndarray]:
    """The rows of all candidates [c], ascending, and the parts' scores [p c] of them, nan where a part did
    not find one."""
    found = list(found)
    rows = np.unique(np.concatenate([of.rows for of in found]))
    scores = np.full((len(found), len(rows)), np.nan)
    for part, of in zip(scores, found, strict=True):
        part[np.searchsorted(rows, of.rows)] = of.scores
    return rows, scores


def by_document(
    rows: np.ndarray, scores: np.ndarray, documents: np.ndarray, standing: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Of each document the row of the passage that stands best [d], and the parts' scores [p d], pooled as
    `stages.passages` does. `documents` are the passages' documents [c], in whose order they come."""
    order = np.lexsort((-standing, documents))  # equal ones stay in order
    starts = np.flatnonzero(np.diff(documents[order], prepend=-1))
    best = np.fmax.reduceat(scores[:, order], starts, axis=1)
    return rows[order[starts]], np.ascontiguousarray(best)  # by rows, so that sums over them have one order


def filled(scores: np.ndarray) -> np.ndarray:
    """The parts' scores [p c] with a part's lowest in place of nan, 0 where it has none."""
    lowest = np.fmin.reduce(scores, axis=1, keepdims=True, initial=np.inf)
    return np.where(np.isnan(scores), np.where(np.isinf(lowest), 0.0, lowest), scores)


def places(scores: np.ndarray) -> np.ndarray:
    """Each row's places [p c], 1 for the best; equal scores share the better place."""
    return np.array([1 + np.searchsorted(np.sort(-row), -row) for row in scores]).reshape(scores.shape)


_ALL = 2**31  # candidates of a ranking: as many as there are
_FILE = "weights.json"

_Wanted = Callable[[int, Example, Ranking], tuple[np.ndarray, np.ndarray]]
"""(place, question, candidates) -> which of the candidates are learned from [c], and their targets [c]."""


@once
def fitted_weights(
    run: Run, even: Retrieve, names: tuple[str, ...], learns_from: str, temperature: float, ridge: float
) -> Stage:
    """The stage of the weights of the parts of these names, from what `even` finds, which weighs them alike.

    Raises UserError where the config does not let others' data shape parameters.
    """
    run.learns_from_others("retrieve.how weighted")
    judged = learns_from == "feedback" or (learns_from == "auto" and run.task.kind != "retrieval")
    asked, everything = replace(feedback.questions(run), answered=judged), replace(even, k=_ALL)
    needs = {
        "store": run.data,
        "ranked": rankings(run, asked, "rank_for_fusion", retrieve=everything, select=TopK()),
    }
    if judged:
        expand, answers = run.config.expand, Ipa.like(run)
        needs["lessons"] = feedback.feedback(
            run, "fusion", expand=expand, retrieve=even, select=TopK(), generate=answers
        )
    fit = (names, asked, temperature, ridge, feedback.least_range(run))
    return Stage("fusion", fit, needs, _fit, _load, check=partial(_check, run, asked, judged))


@builds_nodes
def _check(run: Run, asked: Questions, by_feedback: bool) -> None:
    if not by_feedback:
        asked.check_known(run.data.value, "relevant", "retrieve.how weighted")


def _load(folder: Path) -> dict[str, float]:
    return parse_json((folder / _FILE).read_bytes())


def _fit(
    folder: Path,
    names: tuple[str, ...],
    asked: Questions,
    temperature: float,
    ridge: float,
    least: float,
    *,
    store: Store,
    ranked: Rankings,
    lessons: feedback.Feedbacks | None = None,
) -> None:
    examples = list(asked.read(store))
    wanted = _relevant if lessons is None else _worth(lessons, examples, temperature, least)
    scores, targets = [], []
    for place, (example, ranking) in enumerate(zip(examples, ranked.read(store, examples), strict=True)):
        rows, target = wanted(place, example, ranking)
        if not len(rows):
            continue
        raw = np.array([[candidate.scores[name] for candidate in ranking] for name in names])
        scores.append(standardised(raw)[:, rows])
        targets.append(target)
    if not scores:
        raise UserError(
            "retrieve.how is weighted, and no training question says which documents it wants: none has a "
            "relevant document among its candidates, or none whose candidates differ in feedback; take "
            "retrieve.how standardised, or retrieve.learns_from feedback"
        )
    fitted = fit(scores, targets, ridge)
    found = dict(zip(names, map(float, fitted.weights), strict=True))
    shares = ", ".join(f"{name} {weight:.3f}" for name, weight in found.items())
    notes = [f"{len(scores)} training questions give the weights {shares}"]
    report = {"weights": found, "beta": fitted.beta, "loss": fitted.loss, "questions": len(scores)}
    save_report(folder, "fusion", report, notes)
    write_text(folder / _FILE, json.dumps(found))


def _relevant(place: int, example: Example, ranking: Ranking) -> tuple[np.ndarray, np.ndarray]:
    """All candidates of a question, and the same share for each relevant one; none where none is."""
    relevant = np.array([is_relevant(example, candidate.document) for candidate in ranking], np.float64)
    if not relevant.any():
        return np.zeros(0, int), relevant
    return np.arange(len(ranking)), relevant / relevant.sum()


def _worth(
    lessons: feedback.Feedbacks, examples: Sequence[Example], temperature: float, least: float
) -> _Wanted:
    from scipy.special import softmax

    values = lessons.read(examples)

    def wanted(place: int, example: Example, ranking: Ranking) -> tuple[np.ndarray, np.ndarray]:
        """The candidates that feedback judged, where it tells them apart, and the softmax of their values."""
        rows, judged = values[place]
        if not len(judged) or np.ptp(judged) <= least:
            return np.zeros(0, int), judged
        there = {candidate.row: i for i, candidate in enumerate(ranking)}
        # of a document with several passages another one may stand here than the one that was judged
        known = np.array([row in there for row in rows.tolist()])
        places = np.array([there[row] for row in rows[known].tolist()], int)
        logits = judged[known].astype(np.float64) / temperature
        return places, softmax(logits) if len(logits) else logits

    return wanted


class Fit(NamedTuple):
    """`weights` [p] on the simplex, `beta` their factor in logits, `loss` the mean cross-entropy in nats."""

    weights: np.ndarray
    beta: float
    loss: float


def fit(scores: Sequence[np.ndarray], targets: Sequence[np.ndarray], ridge: float) -> Fit:
    """The minimum, from each question's standardised scores [p c] and targets [c], which add up to 1.

    Where no part says anything, all weights are the same and `beta` is 0.
    """
    from scipy.optimize import minimize

    even = np.full(len(scores[0]), 1 / len(scores[0]))
    found = minimize(
        loss_of(scores, targets, ridge),
        even,
        jac=True,
        method="L-BFGS-B",
        bounds=[(0, None)] * len(even),
        options={"ftol": 1e-15, "gtol": 1e-9, "maxiter": 10_000},
    )
    theta = np.maximum(found.x, 0.0)
    beta = float(theta.sum())
    loss = float(found.fun - ridge * theta @ theta / 2)
    return Fit(theta / beta if beta > 1e-6 else even, beta, loss)


def loss_of(
    scores: Sequence[np.ndarray], targets: Sequence[np.ndarray], ridge: float
) -> Callable[[np.ndarray], tuple[float, np.ndarray]]:
    """The function from theta [p] to what is minimised and its gradient [p]."""
    from scipy.special import logsumexp, softmax

    def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
        total, slope = ridge * theta @ theta / 2, ridge * theta
        for z, y in zip(scores, targets, strict=True):
            logits = theta @ z
            total += (logsumexp(logits) - y @ logits) / len(scores)
            slope = slope + z @ (softmax(logits) - y) / len(scores)
        return float(total), slope

    return loss

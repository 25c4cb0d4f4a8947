"""Weights of fused retrievers, learned on training questions: a convex fit with one minimum (ours).

Of a question with candidates i and standardised scores z_pi of the parts p, theta minimises the mean over
questions of - sum_i y_i log softmax(sum_p theta_p z_p)_i, where y is what the candidates should be. In
theta >= 0 that is convex, and with a ridge it has one minimum. theta = beta w, with w on the simplex: w are
the weights of the fusion, and beta, how sharply they rank, moves no ranking.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pbr_jax.base.files import parse_json, write_text
from pbr_jax.base.types import Example, UserError
from pbr_jax.corpus.store import Store
from pbr_jax.graph import Stage, builds_nodes
from pbr_jax.methods.generate.ipa import Ipa
from pbr_jax.methods.select.by_score import TopK
from pbr_jax.options import Retrieve
from pbr_jax.pipeline import Ranking
from pbr_jax.stages import feedback
from pbr_jax.stages.labels import is_relevant
from pbr_jax.stages.rankings import Questions, Rankings, rankings
from pbr_jax.stages.run import Run, once
from pbr_jax.stages.scores import standardised
from pbr_jax.stages.trained import save_report

_ALL = 2**31  # candidates of a ranking: as many as there are
_FILE = "weights.json"

_Wanted = Callable[[int, Example, Ranking], tuple[np.ndarray, np.ndarray]]
"""(place, question, candidates) -> which of the candidates are learned from [c], and their targets [c]."""


@once
def weights(
    run: Run, even: Retrieve, names: tuple[str, ...], learns_from: str, temperature: float, ridge: float
) -> Stage:
    """The stage of the weights of the parts of these names, from what `even` finds, which weighs them alike.

    Raises UserError where the config does not let others' data shape parameters.
    """
    run.learns_from_others("retrieve.how weighted")
    asked = feedback.questions(run)
    everything = replace(even, k=_ALL)
    needs = {
        "store": run.data,
        "ranked": rankings(run, asked, "rank_for_fusion", retrieve=everything, select=TopK()),
    }
    if learns_from == "feedback" or (learns_from == "auto" and run.task.kind != "retrieval"):
        expand, answers = run.config.expand, Ipa.like(run)
        needs["lessons"] = feedback.feedback(
            run, "fusion", expand=expand, retrieve=even, select=TopK(), generate=answers
        )
    fit = (names, asked, temperature, ridge, feedback.least_range(run))
    return Stage("fusion", fit, needs, _fit, _load, check=partial(_check, run, asked, "lessons" in needs))


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
        return places, softmax(judged[known].astype(np.float64) / temperature) if len(places) else judged[
            known
        ]

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

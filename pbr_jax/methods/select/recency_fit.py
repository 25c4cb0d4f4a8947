"""The half-life and the weight of a recency prior, learned on training questions by maximum likelihood.

Of a question with candidates i of standardised scores z_i and ages a_i, the fit minimises the mean over
questions of

    - sum_i y_i log softmax(scale * z + slope * 2^(-a / half_life))_i

where y is the same share for each relevant document, or the softmax of what the language model makes of each.
For a half-life it is convex in scale and slope. Half-lives are tried from the age that 5 % of the candidates
stay below to ten times the greatest, and the best is refined. The prior's weight is slope / scale. Ours.
"""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pbr_jax.base.files import parse_json, write_text
from pbr_jax.base.types import Example, UserError
from pbr_jax.corpus.store import Store
from pbr_jax.graph import Stage, builds_nodes, tell
from pbr_jax.methods.generate.ipa import Ipa
from pbr_jax.options import Select
from pbr_jax.pipeline import Ranking
from pbr_jax.stages import feedback
from pbr_jax.stages.labels import is_relevant
from pbr_jax.stages.rankings import Questions, Rankings, rankings
from pbr_jax.stages.run import Run
from pbr_jax.stages.scores import standardised

_DAY = 86_400.0  # seconds
_FILE = "prior.json"
_LEAST_SCALE = 1e-3  # of the scores, so that the weight is a finite number
_TRIED = 24  # half-lives


class Fit(NamedTuple):
    """`half_life` in days, `weight` in deviations of a question's scores, `loss` the mean cross-entropy in
    nats, `plain` the same without a prior, over `questions` training questions."""

    half_life: float
    weight: float
    loss: float
    plain: float
    questions: int


class Observed(NamedTuple):
    """Of a question's candidates [c]: standardised scores, ages in days (nan: undated), targets (sum 1)."""

    scores: np.ndarray
    ages: np.ndarray
    targets: np.ndarray


def ages(store: Store, example: Example, ranking: Ranking) -> np.ndarray:
    """The candidates' ages in days, float64 [c], none negative; nan where there is no date."""
    times = np.array([np.nan if c.document.time is None else c.document.time for c in ranking], np.float64)
    moment = example.time
    if moment is None or not np.isfinite(moment):
        seen = store.times[store.visible(example, example.user_id)]
        seen = seen[~np.isnan(seen)]
        moment = seen.max() if len(seen) else np.nanmax(times) if not np.isnan(times).all() else 0.0
    return np.maximum(moment - times, 0.0) / _DAY


def prior(ages: np.ndarray, half_life: float, sizes: Sequence[int] | None = None) -> np.ndarray:
    """2^(-age / half_life), [c]; of undated documents the mean of their question's dated ones, 0 without any.

    `sizes`: how many candidates each question has, none of them 0; None: all are of one.
    """
    if not len(ages):
        return np.zeros(0)
    sizes = [len(ages)] if sizes is None else sizes
    starts = np.cumsum([0, *sizes[:-1]])
    dated = ~np.isnan(ages)
    found = np.where(dated, np.exp2(-np.where(dated, ages, 0.0) / half_life), 0.0)
    mean = np.add.reduceat(found, starts) / np.maximum(np.add.reduceat(dated, starts, dtype=int), 1)
    return np.where(dated, found, np.repeat(mean, sizes))


@builds_nodes
def fitted(run: Run, first: Select) -> Stage:
    """The stage of the fit, behind a selection. Raises UserError where `collaboration` is none."""
    run.learns_from_others("select.half_life learned")
    asked = feedback.questions(run)
    needs = {"store": run.data, "ranked": rankings(run, asked, "rank_for_recency_prior", select=first)}
    if run.task.kind != "retrieval":
        needs["lessons"] = feedback.feedback(
            run, "recency_prior", expand=run.config.expand, retrieve=run.config.retrieve, select=first,
            generate=Ipa.like(run),
        )  # fmt: skip
    options = (asked, feedback.least_range(run))
    check = partial(_check, run, asked, "lessons" in needs)
    return Stage("recency_prior", options, needs, _make, _load, check=check)


@builds_nodes
def _check(run: Run, asked: Questions, by_feedback: bool) -> None:
    if not by_feedback:
        asked.check_known(run.data.value, "relevant", "select.half_life learned")


def _make(
    folder: Path,
    asked: Questions,
    least: float,
    *,
    store: Store,
    ranked: Rankings,
    lessons: feedback.Feedbacks | None = None,
) -> None:
    examples = list(asked.read(store))
    values = None if lessons is None else lessons.read(examples)
    observed = []
    for place, (example, ranking) in enumerate(zip(examples, ranked.read(store, examples), strict=True)):
        targets = _relevant(example, ranking) if values is None else _worth(values[place], ranking, least)
        if targets is not None:
            scores = standardised(np.array([candidate.score for candidate in ranking]))
            observed.append(Observed(scores, ages(store, example, ranking), targets))
    if not observed:
        raise UserError(
            "select.half_life is learned, and no training question says which documents it wants: none has a "
            "relevant document among its candidates, or none whose candidates differ in feedback; give "
            "select.half_life in days"
        )
    found = fit(observed)
    tell(
        "recency prior",
        f"{found.questions} training questions give a half-life of {found.half_life:.3g} days and the "
        f"weight {found.weight:.3g}; cross-entropy {found.loss:.4f} nats, {found.plain:.4f} without a prior",
    )
    write_text(folder / _FILE, json.dumps(found._asdict()))


def _load(folder: Path) -> Fit:
    return Fit(**parse_json((folder / _FILE).read_bytes()))


def _relevant(example: Example, ranking: Ranking) -> np.ndarray | None:
    relevant = np.array([is_relevant(example, candidate.document) for candidate in ranking], np.float64)
    return relevant / relevant.sum() if relevant.any() else None


def _worth(judged: feedback.Feedback, ranking: Ranking, least: float) -> np.ndarray | None:
    """Candidates that were not judged, which would give the target away, want nothing."""
    if not len(judged.values) or np.ptp(judged.values) <= least:
        return None
    from scipy.special import softmax

    share = dict(zip(judged.rows.tolist(), softmax(judged.values.astype(np.float64)), strict=True))
    targets = np.array([share.get(candidate.row, 0.0) for candidate in ranking])
    return targets / targets.sum() if targets.any() else None


def fit(observed: Sequence[Observed]) -> Fit:
    """The minimum over half-life, scale and slope."""
    from scipy.optimize import minimize, minimize_scalar

    starts = np.cumsum([0, *(len(one.scores) for one in observed[:-1])])
    sizes = [len(one.scores) for one in observed]
    aged = np.concatenate([one.ages for one in observed])
    scores = np.concatenate([one.scores for one in observed])
    targets = np.concatenate([one.targets for one in observed])

    def best(half_life: float) -> tuple[float, np.ndarray]:
        features = np.stack([scores, prior(aged, half_life, sizes)])

        def loss(theta: np.ndarray) -> tuple[float, np.ndarray]:
            logits = theta @ features
            logits = logits - np.repeat(np.maximum.reduceat(logits, starts), sizes)
            total = np.add.reduceat(np.exp(logits), starts)
            share = np.exp(logits) / np.repeat(total, sizes)
            value = np.log(total).sum() - targets @ logits
            return value / len(sizes), features @ (share - targets) / len(sizes)

        bounds = [(_LEAST_SCALE, None), (0.0, None)]
        found = minimize(loss, np.array([1.0, 0.5]), jac=True, method="L-BFGS-B", bounds=bounds)
        return float(found.fun), found.x

    old = aged[aged > 0]
    least, greatest = (np.quantile(old, 0.05), old.max()) if len(old) else (1.0, 1.0)
    tried = np.geomspace(least, 10 * greatest, _TRIED)
    place = int(np.argmin([best(half_life)[0] for half_life in tried]))
    low, high = np.log(tried[max(place - 1, 0)]), np.log(tried[min(place + 1, _TRIED - 1)])
    refined = minimize_scalar(lambda log: best(np.exp(log))[0], bounds=(low, high), method="bounded")
    half_life = float(np.exp(refined.x))
    loss, (scale, slope) = best(half_life)
    plain, _ = best(1e12)  # the same for all dated candidates
    return Fit(half_life, float(slope / scale), loss, plain, len(sizes))

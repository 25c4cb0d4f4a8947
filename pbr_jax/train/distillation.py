"""Distillation of feedback into a model that scores candidates, for both retriever and reranker.

A question's candidates have values (`stages.feedback`). The model's distribution over them is fitted to the
distribution of the values (CFRAG, Eq. 7, 8, 11 and 12).
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from pbr_jax.base.prefetch import fetched
from pbr_jax.base.types import Feedback, Params, UserError
from pbr_jax.losses.distillation import kl_distillation
from pbr_jax.losses.policy_gradient import reinforce
from pbr_jax.losses.reduction import masked_log_softmax, masked_mean
from pbr_jax.models.layers import places, row_keys
from pbr_jax.options import Distillation, Training
from pbr_jax.text.padding import padded
from pbr_jax.train.loop import Fitted, TrainingTask, fit, started
from pbr_jax.train.selection import FEWEST, correlation, divided, rank_correlation, warnings, who_chose
from pbr_jax.train.sharding import Batch

_TOGETHER = 16  # questions evaluated at once
_LEAST_DEVIATION = 1e-6  # of values; below it they are alike, up to rounding


class Scorer(NamedTuple):
    """The model that is trained.

    `arrays(questions)` returns the inputs [b ...] of questions, with the same shapes for all of them; each
    question is padded to the same number of candidates. `scores(params, batch, key)` returns [b c]. `key` is
    the random key of dropout; None: no dropout. `heads` names the parameters that are not pretrained.
    """

    params: Callable[[], Params]
    arrays: Callable[[np.ndarray], Batch]
    scores: Callable[[Params, dict[str, Array], Array | None], Float[Array, "b c"]]
    heads: tuple[str, ...] = ()


def distill(
    scorer: Scorer,
    feedback: Sequence[Feedback],
    distillation: Distillation,
    config: Training,
    folder: Path,
    *,
    seed: int,
    user_ids: Sequence[str] | None = None,
    least: float = 0.0,
) -> Fitted:
    """Trains the scorer on questions. Some are held out to choose the best step (`selection.divided`).

    Questions with fewer than two candidates are left out.

    Args:
      user_ids: the user of each question. None: each question has a different user.
      least: a question is informative if the range of its values exceeds this number.

    Returns:
      The trained parameters. `report` and `notes` describe the held-out questions, the change of the heads,
      and the similarity of scores before and after training, on held-out questions if there are any.

    Raises UserError if no question has two candidates, or if numbers are not finite.
    """
    scorer = scorer._replace(params=started(scorer.params, config))
    learned, held, informative = divided(feedback, user_ids, share=config.selection, least=least, seed=seed)
    if not len(learned):
        raise UserError(
            "no training question has two candidate documents to compare; raise retrieve.k or neighbours.m, "
            "or take data with histories"
        )
    batch = partial(_batch, scorer, feedback, max(len(each.rows) for each in feedback))
    evaluation = jax.jit(_evaluation(scorer, distillation))

    def evaluated(params: Params) -> list[tuple[float, list[np.ndarray]]]:
        questions = held if len(held) else learned
        return list(_evaluated(partial(evaluation, params), batch, feedback, questions))

    def scores(params: Params) -> list[np.ndarray]:
        return [row for _, rows in evaluated(params) for row in rows]

    def evaluate(params: Params) -> float:
        if config.select_by == "rank_correlation":
            return rank_correlation([feedback[i].values for i in held], scores(params))
        return sum(value for value, _ in evaluated(params)) / len(held)

    task = TrainingTask(
        scorer.params,
        _loss(scorer, distillation),
        len(learned),
        lambda rows: batch(learned[rows.indices], rows.where),
        evaluate if len(held) else None,
        scorer.heads,
    )
    fitted = fit(task, config, folder, seed=seed)
    alike = correlation(scores(scorer.params()), scores(fitted.params)) if config.epochs else 1.0
    counts = {"questions": len(learned), "held_out": len(held), "informative": informative}
    return _described(fitted, config, alike, counts)


def _described(fitted: Fitted, config: Training, alike: float | None, counts: dict[str, int]) -> Fitted:
    """The result with its report and notes. `alike`: the correlation of scores before and after training."""
    report = {"step": fitted.step, **counts, "moved": fitted.moved, "correlation_with_start": alike}
    few = f"{counts['informative']} are informative, want at least {2 * FEWEST}"
    notes = who_chose(config, counts["held_out"], few)
    notes += warnings(fitted.moved, alike) if config.epochs else []
    return fitted._replace(report=report, notes=tuple(notes))


def _batch(
    scorer: Scorer, feedback: Sequence[Feedback], width: int, questions: np.ndarray, where: np.ndarray
) -> Batch:
    values, present = padded([feedback[i].values for i in questions], (len(questions), width), np.float32)
    return scorer.arrays(questions) | {"values": values, "present": present, "where": where}


def _evaluated(
    evaluation: Callable[[Batch], Any],
    batch: Callable[[np.ndarray, np.ndarray], Batch],
    feedback: Sequence[Feedback],
    questions: np.ndarray,
) -> Iterator[tuple[float, list[np.ndarray]]]:
    """The summed values of some questions together, and the scores of each one's candidates."""

    def start(some: np.ndarray) -> tuple[np.ndarray, Any]:
        where = np.arange(min(_TOGETHER, len(questions))) < len(some)
        return some, evaluation(batch(np.resize(some, len(where)), where))

    batches = (questions[begin : begin + _TOGETHER] for begin in range(0, len(questions), _TOGETHER))
    for some, (value, scores) in fetched(map(start, batches)):
        yield float(value), [row[: len(feedback[i].rows)] for i, row in zip(some, scores)]


def candidate_rows(batch: dict[str, Array], count: int) -> Array | None:
    """Numbers [b * c] of the candidates, derived from those of the questions, if these have numbers."""
    if "row" not in batch:
        return None
    return (batch["row"][:, None] * count + jnp.arange(count, dtype=jnp.int32)[None]).reshape(-1)


def _loss(scorer: Scorer, distillation: Distillation):
    def loss(params: Params, batch: dict[str, Array], key: Array) -> Float[Array, ""]:
        dropout, sampling = jax.random.split(key)
        scores = scorer.scores(params, batch, dropout)
        return masked_mean(_losses(scores, batch, distillation, sampling), batch["where"])

    return loss


def _losses(
    scores: Float[Array, "b c"], batch: dict[str, Array], distillation: Distillation, key: Array
) -> Float[Array, "b"]:
    values, present = batch["values"], batch["present"]
    if distillation.loss == "reinforce":
        return sampled_reinforce(
            scores, values, present, distillation.student_temperature, key, batch.get("row")
        )
    return kl_distillation(
        scores,
        teacher_logits(values, present, distillation),
        direction="reverse" if distillation.loss == "reverse_kl" else "forward",
        student_temperature=distillation.student_temperature,
        where=present,
    )


def teacher_logits(
    values: Float[Array, "b c"], present: Bool[Array, "b c"], distillation: Distillation
) -> Float[Array, "b c"]:
    """Converts values of feedback to logits of the teacher's distribution, by `Distillation.teacher`.

    With `values` and a temperature of 1 it is the distribution of CFRAG, Eq. 6.

    Mean and (population) standard deviation are computed over the candidates of each question. Equal values
    give the uniform distribution.
    """
    temperature = distillation.teacher_temperature
    if distillation.teacher == "values":
        return values / temperature
    count = jnp.maximum(present.sum(axis=-1, keepdims=True), 1)
    mean = jnp.where(present, values, 0.0).sum(axis=-1, keepdims=True) / count
    centred = jnp.where(present, values - mean, 0.0)
    deviation = jnp.sqrt(jnp.square(centred).sum(axis=-1, keepdims=True) / count)
    if distillation.teacher == "bounded_z_scores":
        return centred / jnp.maximum(deviation, temperature)
    return centred / jnp.maximum(deviation, _LEAST_DEVIATION) / temperature


def sampled_reinforce(
    scores: Float[Array, "b c"],
    values: Float[Array, "b c"],
    present: Bool[Array, "b c"],
    temperature: float,
    key: Array,
    rows: Int[Array, "b"] | None = None,
) -> Float[Array, "b"]:
    """REINFORCE with a candidate sampled from the softmax of the scores. The baseline is the top candidate.

    Salemi et al. (ROPG-RL), https://arxiv.org/abs/2404.05970, 2024. Samples depend on the key and on the
    questions' numbers `rows`; None: 0, 1, ...
    """
    log_probs = masked_log_softmax(scores / temperature, present)
    possible = jnp.where(present, log_probs, -jnp.inf)
    keys = row_keys(key, places(scores) if rows is None else rows)
    drawn = jax.vmap(jax.random.categorical)(keys, jax.lax.stop_gradient(possible))
    best = jnp.argmax(possible, axis=-1)
    advantage = _taken(values, drawn) - _taken(values, best)
    return reinforce(_taken(log_probs, drawn), advantage, where=present.any(axis=-1))


def _taken(values: Float[Array, "b c"], places: Array) -> Float[Array, "b"]:
    return jnp.take_along_axis(values, places[:, None], axis=-1)[:, 0]


def _evaluation(scorer: Scorer, distillation: Distillation):
    """How well questions are served, summed: minus the divergence, or the best one's value; and scores."""

    def evaluate(params: Params, batch: dict[str, Array]) -> tuple[Float[Array, ""], Float[Array, "b c"]]:
        scores = scorer.scores(params, batch, None)
        if distillation.loss == "reinforce":
            best = jnp.argmax(jnp.where(batch["present"], scores, -jnp.inf), axis=-1)
            values = _taken(batch["values"], best)
        else:
            values = -_losses(scores, batch, distillation, jax.random.key(0))
        return jnp.where(batch["where"], values, 0.0).sum(), scores

    return evaluate

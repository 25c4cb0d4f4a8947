"""Training the policy that chooses a prompt's records: PURPLE, Du et al., 2026, section 3 and Appendix A.

A batch of questions is learned from on-policy: the present policy draws ordered profiles, the language model
says what each is worth, and the policy moves towards those that are worth more. Or, which is ours, every
record's worth alone is asked once, and the expected worth of the policy's choice is raised exactly: no
gradient is noisy, and no further epoch asks anything.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pbr_jax.base.prefetch import fetched
from pbr_jax.base.types import Model, Params, UserError
from pbr_jax.losses.policy_gradient import (
    controlled,
    grpo,
    leave_one_out,
    plackett_luce_log_prob,
    reinforce,
    sample_plackett_luce,
    z_scored,
)
from pbr_jax.losses.reduction import masked_mean
from pbr_jax.methods.select.purple_reward_model import Drawn, predicted
from pbr_jax.models.layers import row_keys
from pbr_jax.models.set_policy import from_arrays, log_scores
from pbr_jax.options import Training
from pbr_jax.train import steps
from pbr_jax.train.batches import Rows
from pbr_jax.train.diagnostics import correlation, rank_correlation, warnings
from pbr_jax.train.loop import Fitted, TrainingTask, fit
from pbr_jax.train.selection import FEWEST, by_users, who_chose
from pbr_jax.train.sharding import Batch

_BATCH = 16  # questions evaluated at once
_LEAST_RANGE = 1e-4  # of a question's rewards; below it they are alike, up to rounding

PurpleOptions = Any
"""`methods.select.purple.Purple`, which imports this module."""

Action = tuple[int, tuple[int, ...]]
"""A question, and the places of its candidates in the order of the prompt: a profile."""

Reward = Callable[[Sequence[Action]], np.ndarray]
"""What profiles are worth, float32 [n], the higher the better. Repeated questions are cached."""


class Policy(NamedTuple):
    """What is trained: `model` as `models.set_policy`, and `arrays(questions)`, its inputs [b ...] by name.

    They have few shapes, by the tokens of the candidates; `record_mask` [b n] says which places hold some.
    `lengths`: of what is read for each question, so that alike ones share a batch.
    """

    model: Model
    arrays: Callable[[np.ndarray], Batch]
    lengths: np.ndarray | None = None


def train(
    policy: Policy,
    reward: Reward,
    sizes: Sequence[int],
    user_ids: Sequence[str],
    options: PurpleOptions,
    folder: Path,
    *,
    seed: int,
) -> Fitted:
    """Trains on some users' questions; those of others choose the step, by what inference would choose or by
    the order of their single candidates (`Training.select_by`).

    Questions with fewer than two candidates have nothing to choose, and are left out.

    Args:
      sizes: candidates of each question.
      user_ids: who asked it.

    Raises:
      UserError: no question has two candidates; numbers that are not finite.
    """
    several = np.array([i for i, size in enumerate(sizes) if size > 1], np.int64)
    if not len(several):
        raise UserError(
            "no training question has two candidate documents to choose from; raise retrieve.k or "
            "neighbours.m, or take data with histories"
        )
    learned, held = by_users([user_ids[int(i)] for i in several], options.training.selection, seed)
    learned, held = several[learned], several[held]
    k = options.k or max(sizes)
    score = jax.jit(from_arrays(policy.model))

    def batch(rows: Rows) -> Batch:
        return policy.arrays(learned[rows.indices]) | {"where": rows.where}

    def evaluate(params: Params) -> float:
        if options.training.select_by == "rank_correlation":
            return agreement(params)
        return float(reward(_chosen(policy, score, params, held, sizes, k)).mean())

    def agreement(params: Params) -> float:
        """Of the logits with what each candidate alone is worth to held-out users."""
        scored = dict(_scored(policy, score, params, held, sizes))
        alone = [(question, (place,)) for question in scored for place in range(sizes[question])]
        values = np.split(reward(alone), np.cumsum([len(row) for row in scored.values()])[:-1])
        return rank_correlation(values, list(scored.values()))

    start = jax.jit(policy.model.init)(jax.random.key(seed))
    drawn = Drawn(folder / f"drawn-{jax.process_index()}.jsonl")
    task = TrainingTask(
        lambda: start,
        _loss(policy.model, options),
        len(learned),
        batch,
        evaluate if len(held) else None,
        lengths=None if policy.lengths is None else policy.lengths[learned],
        act=_act(policy.model, reward, learned, options, k, drawn),
        updates=options.updates,
    )
    fitted = fit(task, options.training, folder, seed=seed)
    report = _report(fitted, policy, score, start, learned, held, sizes)
    return fitted._replace(report=report, notes=_notes(fitted, report, options.training))


def _report(
    fitted: Fitted,
    policy: Policy,
    score: Callable[..., Array],
    start: Params,
    learned: np.ndarray,
    held: np.ndarray,
    sizes: Sequence[int],
) -> Mapping[str, object]:
    """What came of the training."""
    questions = held if len(held) else learned
    before, after = (
        [row for _, row in _scored(policy, score, params, questions, sizes)]
        for params in (start, fitted.params)
    )
    return {
        "step": fitted.step,
        "questions": len(learned),
        "held_out": len(held),
        "correlation_with_start": correlation(before, after),
    }


def _notes(fitted: Fitted, report: Mapping[str, Any], config: Training) -> tuple[str, ...]:
    """What the training's user should know: how the step was chosen, and whether anything was learned."""
    few = f"too few ask: some users with {FEWEST} are held out, {FEWEST} are left to learn from"
    chose = who_chose(config, report["held_out"], few)
    if not config.epochs:
        return tuple(chose)
    alike = not any(line.get("informative") for line in fitted.metrics)
    nothing = [
        "the profiles drawn for a question were all worth the same, for every question, so there was nothing "
        "to learn; take another select.reward, or look whether prompts have room for documents"
    ]
    if report["held_out"] and not fitted.step:
        changed = [
            "the untrained policy was best to the held-out users, and is taken; raise training.epochs, learn "
            "from more questions, or take the retriever's order (select.method top_k)"
        ]
    else:
        changed = warnings(fitted.moved, report["correlation_with_start"])
    return (*chose, *nothing * alike, *changed)


def _scored(
    policy: Policy, score: Callable[..., Array], params: Params, questions: np.ndarray, sizes: Sequence[int]
):
    """Each question with the logits of its candidates; alike ones together, in the same order every time."""
    if policy.lengths is not None:
        questions = questions[np.argsort(policy.lengths[questions], kind="stable")]
    batches = (questions[begin : begin + _BATCH] for begin in range(0, len(questions), _BATCH))
    started = ((some, score(params, policy.arrays(np.resize(some, _BATCH)), None)) for some in batches)
    for some, logits in fetched(started):
        for question, row in zip(some.tolist(), logits):
            yield question, row[: sizes[question]]


def _chosen(
    policy: Policy, score: Callable[..., Array], params: Params, questions: np.ndarray, sizes, k: int
) -> list[Action]:
    """The profiles of inference: the k highest, best first; equal ones in the retriever's order."""
    return [
        (question, tuple(np.argsort(-row, kind="stable")[:k].tolist()))
        for question, row in _scored(policy, score, params, questions, sizes)
    ]


# -- one batch -----------------------------------------------------------------------------------------


def _act(model: Model, reward: Reward, learned: np.ndarray, options: PurpleOptions, k: int, drawn: Drawn):
    """Profiles for the questions of a batch, and what they are worth."""
    draw = jax.jit(_draw(model, options, k))
    control = options.control

    def act(params: Params, batch: Batch, key: Array, step: int) -> tuple[Batch, Mapping[str, float]]:
        actions, log_probs = map(np.asarray, draw(params, batch, key))  # [b m k], [b m]
        counted = (actions >= 0).any(-1) & batch["where"][:, None]
        questions = learned[batch["row"]]
        rewards, known = np.zeros(counted.shape, np.float32), counted.copy()
        made = {"actions": actions, "old": log_probs, "rewards": rewards, "counted": counted}
        if control != "none":  # before the rewards are asked, of which the guess must not know
            known[:, options.rollouts :] = False
            made |= {"known": known, "predicted": _predicted(drawn, step, questions, actions, control)}
        profiles = [
            (int(questions[row]), tuple(place for place in actions[row, m].tolist() if place >= 0))
            for row, m in zip(*np.nonzero(known))
        ]
        rewards[known] = reward(profiles)
        if control != "none":
            drawn.add(step, profiles, rewards[known].tolist())
        metrics = {
            "reward": float(rewards[known].mean()),
            "profiles": len(set(profiles)),
            "informative": _informative(rewards, known),
        }
        return made, metrics

    return act


def _predicted(
    drawn: Drawn,
    step: int,
    questions: np.ndarray,
    actions: np.ndarray,
    control: Literal["additive", "pairwise"],
) -> Float[np.ndarray, "b m"]:
    """What earlier steps' rewards of the same questions let one expect."""
    before = drawn.before(step)
    guesses = [
        predicted(before.get(question, {}), some, control)
        for question, some in zip(questions.tolist(), actions, strict=True)
    ]
    return np.stack(guesses)


def _informative(rewards: np.ndarray, counted: np.ndarray) -> int:
    """How many questions have profiles that are not all worth the same."""
    highest = np.where(counted, rewards, -np.inf).max(axis=1)
    lowest = np.where(counted, rewards, np.inf).min(axis=1)
    return int((highest - lowest > _LEAST_RANGE).sum())


def _draw(model: Model, options: PurpleOptions, k: int):
    score = from_arrays(model)

    def draw(params: Params, batch: Mapping[str, Array], key: Array) -> tuple[Array, Array]:
        dropout, sampling = jax.random.split(key)
        logits = log_scores(score(params, batch, dropout), batch["record_mask"])
        if options.learns_from == "singles":
            actions = _singles(batch["record_mask"])
        else:
            keys = row_keys(sampling, batch["row"])  # the same however the batch is divided
            free = 0 if options.control == "none" else options.proposals
            actions = jax.vmap(
                lambda key, one: sample_plackett_luce(key, one, k=k, rollouts=options.rollouts + free)
            )(keys, logits)
        return actions, plackett_luce_log_prob(logits, actions)

    return draw


def _singles(record_mask: Array) -> Int[Array, "b n 1"]:
    """Each candidate alone, -1 in places without one."""
    places = jnp.arange(record_mask.shape[1], dtype=jnp.int32)
    return jnp.where(record_mask, places[None], -1)[..., None]


def _loss(model: Model, options: PurpleOptions) -> steps.Loss:
    """Minus the expected advantage of the policy's choice: estimated from what was drawn, or exact."""
    score = from_arrays(model)

    def loss(params: Params, batch: dict[str, Array], key: Array) -> Float[Array, ""]:
        dropout, _ = jax.random.split(key)  # as the profiles were drawn
        logits = log_scores(score(params, batch, dropout), batch["record_mask"])
        log_probs = plackett_luce_log_prob(logits, batch["actions"])
        counted = batch["counted"]
        advantages = _advantages(batch, options)
        if options.learns_from == "singles":
            expected = jnp.where(counted, jnp.exp(log_probs) * advantages, 0).sum(-1)
            return masked_mean(-expected, batch["where"])
        if options.loss == "grpo":
            losses = grpo(log_probs, batch["old"], advantages, clip=options.clip, where=counted)
        else:
            losses = reinforce(log_probs, advantages, where=counted)
        return masked_mean(losses.mean(-1), batch["where"])

    return loss


def _advantages(batch: dict[str, Array], options: PurpleOptions) -> Float[Array, "b m"]:
    """Of every rollout; with guesses, also of those without a reward."""
    rewards, counted = batch["rewards"], batch["counted"]
    if options.control != "none":
        return controlled(rewards, batch["predicted"], batch["known"], where=counted)
    return {"z_scores": z_scored, "leave_one_out": leave_one_out}[options.advantage](rewards, where=counted)

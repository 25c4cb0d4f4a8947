"""Training the policy that chooses a prompt's records: PURPLE, Du et al., 2026, section 3 and Appendix A.

A batch of questions is learned from on-policy: the present policy draws ordered profiles, the language model
says what each is worth, and the policy moves towards those that are worth more. Or, which is ours, every
record's worth alone is asked once, and the expected worth of the policy's choice is raised exactly: no
gradient is noisy, and no further epoch asks anything.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pbr_jax.base.files import open_private, write_text
from pbr_jax.base.prefetch import fetched
from pbr_jax.base.types import Example, Model, Params, UserError
from pbr_jax.llm import Prompt
from pbr_jax.losses.policy_gradient import (
    grpo,
    leave_one_out,
    plackett_luce_log_prob,
    reinforce,
    sample_plackett_luce,
    z_scored,
)
from pbr_jax.losses.reduction import masked_mean
from pbr_jax.models.layers import row_keys
from pbr_jax.models.set_policy import from_arrays, log_scores
from pbr_jax.options import Training
from pbr_jax.pipeline import PromptWriter, Ranking
from pbr_jax.stages.feedback import RewardFn
from pbr_jax.stages.run import line
from pbr_jax.train import steps
from pbr_jax.train.batches import Rows
from pbr_jax.train.loop import Fitted, TrainingTask, fit, started
from pbr_jax.train.selection import FEWEST, by_users, correlation, rank_correlation, warnings, who_chose
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
            return _agreement(reward, dict(_scored(policy, score, params, held, sizes)))
        return float(reward(_chosen(policy, score, params, held, sizes, k)).mean())

    start = started(lambda: jax.jit(policy.model.init)(jax.random.key(seed)), options.training)()
    task = TrainingTask(
        lambda: start,
        _loss(policy.model, options),
        len(learned),
        batch,
        evaluate if len(held) else None,
        lengths=None if policy.lengths is None else policy.lengths[learned],
        act=_act(policy.model, reward, learned, options, k),
        updates=options.updates,
    )
    fitted = fit(task, options.training, folder, seed=seed)
    report = _report(fitted, policy, score, start, learned, held, sizes)
    return fitted._replace(report=report, notes=_notes(fitted, report, options.training))


def _agreement(reward: Reward, scored: Mapping[int, np.ndarray]) -> float:
    """The rank correlation of questions' logits with what each candidate alone is worth."""
    alone = [(question, (place,)) for question, logits in scored.items() for place in range(len(logits))]
    values = np.split(reward(alone), np.cumsum([len(logits) for logits in scored.values()])[:-1])
    return rank_correlation(values, list(scored.values()))


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
    begun = ((some, score(params, policy.arrays(np.resize(some, _BATCH)), None)) for some in batches)
    for some, logits in fetched(begun):
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


def _act(model: Model, reward: Reward, learned: np.ndarray, options: PurpleOptions, k: int):
    """Profiles for the questions of a batch, and what they are worth."""
    draw = jax.jit(_draw(model, options, k))

    def act(params: Params, batch: Batch, key: Array) -> tuple[Batch, Mapping[str, float]]:
        actions, log_probs = map(np.asarray, draw(params, batch, key))  # [b m k], [b m]
        counted = (actions >= 0).any(-1) & batch["where"][:, None]
        questions = learned[batch["row"]]
        profiles = [
            (int(questions[row]), tuple(place for place in actions[row, m].tolist() if place >= 0))
            for row, m in zip(*np.nonzero(counted))
        ]
        rewards = np.zeros(counted.shape, np.float32)
        rewards[counted] = reward(profiles)
        metrics = {
            "reward": float(rewards[counted].mean()),
            "profiles": len(set(profiles)),
            "informative": _informative(rewards, counted),
        }
        return {"actions": actions, "old": log_probs, "rewards": rewards, "counted": counted}, metrics

    return act


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
            draw_each = partial(sample_plackett_luce, k=k, rollouts=options.rollouts)
            actions = jax.vmap(draw_each)(keys, logits)
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
        advantage = {"z_scores": z_scored, "leave_one_out": leave_one_out}[options.advantage]
        advantages = advantage(batch["rewards"], where=counted)
        if options.learns_from == "singles":
            expected = jnp.where(counted, jnp.exp(log_probs) * advantages, 0).sum(-1)
            return masked_mean(-expected, batch["where"])
        if options.loss == "grpo":
            losses = grpo(log_probs, batch["old"], advantages, clip=options.clip, where=counted)
        else:
            losses = reinforce(log_probs, advantages, where=counted)
        return masked_mean(losses.mean(-1), batch["where"])

    return loss


# -- rewards ----------------------------------------------------------------------------------------


class Rewards:
    """The worth of profiles, each asked once: what is known stands in a file, also after a kill.

    Args:
      reward: what a prompt with these documents is worth.
      write: of prompts, each of which is written once.
      candidates: of each example, whose places profiles name.
      file: of what is known; it appears with the first answer.
      num_tokens: of a prompt, to count what was read; None: it is not counted.

    Raises:
      UserError: a question has no target.
    """

    def __init__(
        self,
        reward: RewardFn,
        write: PromptWriter,
        examples: Sequence[Example],
        candidates: Sequence[Ranking],
        file: Path,
        num_tokens: Callable[[Prompt], int] | None = None,
    ) -> None:
        missing = next((example.id for example in examples if example.target is None), None)
        if missing is not None:
            raise UserError(f"training question {missing!r} has no target; rewards need the outputs file")
        self._reward, self._write, self._file = reward, write, file
        self._examples, self._candidates = examples, candidates
        self._num_tokens = num_tokens or (lambda prompt: 0)
        self._known: dict[Action, float] = {}
        self.prompt_tokens = 0
        if file.is_file():
            self._read()

    def __len__(self) -> int:
        """How many were asked."""
        return len(self._known)

    def __call__(self, asked: Sequence[Action]) -> np.ndarray:
        """Their values, float32 [n]. Raises UserError for one that is not a finite number."""
        new = [one for one in dict.fromkeys(asked) if one not in self._known]
        if new:
            values, tokens = self._judged(new)
            judged = dict(zip(new, values, strict=True))
            self._check(judged)
            self._keep(judged, tokens)
            self._known.update(judged)  # what is known stands in the file
            self.prompt_tokens += sum(tokens)
        return np.array([self._known[one] for one in asked], np.float32)

    def _read(self) -> None:
        """A line that a kill has torn is taken away."""
        numbers = {example.id: number for number, example in enumerate(self._examples)}
        whole, _, torn = self._file.read_text(encoding="utf-8").rpartition("\n")
        for record in map(json.loads, whole.splitlines()):
            self._known[numbers[record["id"]], tuple(record["profile"])] = record["value"]
            self.prompt_tokens += record["tokens"]
        if torn:
            write_text(self._file, whole + "\n" * bool(whole))

    def _judged(self, new: Sequence[Action]) -> tuple[list[float], list[int]]:
        """The values of new profiles, and the tokens that were read for each.

        Profiles of a question whose prompts are cut to the same text have one value, and are read once.
        """
        examples = [self._examples[question] for question, _ in new]
        shown = [[self._candidates[question][place] for place in profile] for question, profile in new]
        written = self._write(examples, shown)
        texts = [(question, json.dumps(prompt.messages)) for (question, _), prompt in zip(new, written)]
        first: dict[tuple[int, str], int] = {}
        for i, text in enumerate(texts):
            first.setdefault(text, i)
        places = list(first.values())
        found = self._reward(
            [examples[i] for i in places], [shown[i] for i in places], [written[i] for i in places]
        )
        values = dict(zip(places, np.asarray(found, np.float32).tolist(), strict=True))
        read = [self._num_tokens(prompt.messages) if i in values else 0 for i, prompt in enumerate(written)]
        return [values[first[text]] for text in texts], read

    def _check(self, judged: Mapping[Action, float]) -> None:
        for (question, profile), value in judged.items():
            if not math.isfinite(value):
                raise UserError(
                    f"the reward of training question {self._examples[question].id!r} with documents "
                    f"{list(profile)} is {value}, want a finite number; look at its target and at the "
                    "language model's scores, or take another select.reward"
                )

    def _keep(self, judged: Mapping[Action, float], tokens: Sequence[int]) -> None:
        with open_private(self._file) as file:
            for ((question, profile), value), read in zip(judged.items(), tokens, strict=True):
                id = self._examples[question].id
                file.write(line({"id": id, "profile": profile, "value": value, "tokens": read}))

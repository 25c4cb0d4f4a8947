"""A world in which a record is worth as much as it fits the query.

A reward is strength * standardised cosine + noise of variance 1. So even the true cosine's rank correlation
with the rewards is below 1: that is what can be attained. Vectors are those of no text: a few directions
carry most of their variance, all share one direction, as those of sentence encoders do, and a user's texts
are alike. A text's token states are spread around its vector, so their mean is the vector. Users of another
seed are other users.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pbr_jax.methods.select import Purple
from pbr_jax.methods.select import purple_training as purple
from pbr_jax.methods.select.purple_training import Action
from pbr_jax.models.set_policy import from_arrays, set_policy
from pbr_jax.options import Optimizer, Training
from pbr_jax.train.selection import rank_correlation

RECORDS, TOKENS = 10, 4
_BATCH = 50


class MatchWorld:
    """Questions, each with `RECORDS` records.

    `vectors`: of queries [q d] and records [q r d], of unit length; None: drawn. `users`: who asks.
    """

    def __init__(
        self,
        strength: float,
        seed: int,
        questions: int = 300,
        *,
        width: int = 32,
        vectors: tuple[np.ndarray, np.ndarray] | None = None,
        users: Sequence[str] | None = None,
    ) -> None:
        rng = np.random.default_rng([seed, 11])
        own = rng.integers(0, questions // 6, questions)
        self.users = [f"{seed}-{user}" for user in own] if users is None else list(users)
        query, records = _drawn(rng, own, width) if vectors is None else vectors
        cosine = np.einsum("qd,qrd->qr", query, records)
        self.fit = (cosine - cosine.mean(1, keepdims=True)) / cosine.std(1, keepdims=True)
        self.rewards = (strength * self.fit + rng.normal(size=cosine.shape)).astype(np.float32)
        self._query, self._records = (_tokens(rng, each) for each in (query, records))

    def __len__(self) -> int:
        return len(self.users)

    @property
    def width(self) -> int:
        return self._query.shape[-1]

    def arrays(self, questions: np.ndarray) -> dict[str, np.ndarray]:
        here = np.ones((len(questions), RECORDS), bool)
        return {
            "query": self._query[questions],
            "query_mask": np.ones((len(questions), TOKENS), bool),
            "records": self._records[questions],
            "token_mask": np.ones((len(questions), RECORDS, TOKENS), bool),
            "record_mask": here,
            "prior": np.zeros(here.shape, np.float32),
        }

    def reward(self, asked: Sequence[Action]) -> np.ndarray:
        return np.array([self.rewards[question, profile].mean() for question, profile in asked], np.float32)

    def attainable(self) -> float:
        """The rank correlation of the true fit with the rewards."""
        return rank_correlation(list(self.rewards), list(self.fit))


def _drawn(rng: np.random.Generator, own: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    world = np.random.default_rng(12)  # of all worlds the same
    mix = world.normal(size=(width, width)) * (np.arange(1, width + 1) ** -0.4)[:, None]
    common = world.normal(size=width) * 0.5
    user = 0.7 * rng.normal(size=(own.max() + 1, width))[own]

    def vectors(*shape: int, of: np.ndarray) -> np.ndarray:
        drawn = (of + rng.normal(size=(*shape, width))) @ mix / width**0.5 + common
        return drawn / np.linalg.norm(drawn, axis=-1, keepdims=True)

    return vectors(len(own), of=user), vectors(len(own), RECORDS, of=user[:, None])


def _tokens(rng: np.random.Generator, vectors: np.ndarray) -> np.ndarray:
    """States [... t d] whose mean has the direction of the vector."""
    spread = rng.normal(size=(*vectors.shape[:-1], TOKENS, vectors.shape[-1])) / vectors.shape[-1] ** 0.5
    spread -= spread.mean(-2, keepdims=True)
    return (3 * (vectors[..., None, :] + spread)).astype(np.float32)


def options(epochs: int = 6, **changes: Any) -> Purple:
    training = Training(
        epochs=epochs, batch_size=16, selection=0.2, patience=None, devices=1, select_by="rank_correlation",
        optimizer=Optimizer(name="adam", learning_rate=1e-3),
    )  # fmt: skip
    base: dict[str, Any] = dict(
        k=1,
        num_layers=0,
        num_heads=4,
        dropout=0.0,
        learns_from="singles",
        advantage="leave_one_out",
        training=training,
    )
    return Purple(**(base | changes))


def learned(world: MatchWorld, new: MatchWorld, told: Purple, seed: int) -> tuple[float, int]:
    """The rank correlation of a policy that learned from one world with the rewards of another; its step."""
    policy = purple.Policy(set_policy(told.sizes(world.width)), world.arrays)
    with tempfile.TemporaryDirectory() as folder:
        fitted = purple.train(
            policy, world.reward, [RECORDS] * len(world), world.users, told, Path(folder), seed=seed
        )
    score = jax.jit(from_arrays(policy.model))
    scores = [
        row
        for begin in range(0, len(new), _BATCH)
        for row in np.asarray(
            score(fitted.params, new.arrays(np.arange(begin, min(begin + _BATCH, len(new)))))
        )
    ]
    return rank_correlation(list(new.rewards), scores), fitted.step

"""A world in which the best set of records is not that of the best records, in closed form.

A record is about one topic. A question wants some topics; the reward of a profile is, summed over the wanted
topics, the strength of the strongest record about it, less the harm of its harmful records. So records repeat
each other, and each question has three strong records about one topic. The retriever's scores are drawn to
that topic, too.
"""

from collections.abc import Sequence
from itertools import combinations

import numpy as np

from pbr_jax.methods.select.purple_training import Action

TOPICS, RECORDS, K, WIDTH, TOKENS = 4, 8, 3, 16, 2


class World:
    """Questions with their candidates. `mix` of all worlds is the same: how states tell what they are."""

    def __init__(self, questions: int, seed: int) -> None:
        rng = np.random.default_rng([seed, 7])
        shape = (questions, RECORDS)
        self.wanted = rng.uniform(0.3, 1.0, (questions, TOPICS))
        self.topics = rng.integers(0, TOPICS, shape)
        self.strength = rng.uniform(0.2, 1.0, shape)
        common = np.argmax(self.wanted, axis=1)
        self.topics[:, :3] = common[:, None]
        self.strength[:, :3] = rng.uniform(0.8, 1.0, (questions, 3))
        self.harm = (rng.random(shape) < 0.25) * rng.uniform(0.2, 0.8, shape)
        self.harm[:, :3] = 0
        self.similarity = (self.topics == common[:, None]) + rng.normal(0, 0.5, shape)
        self.sizes = rng.integers(K + 1, RECORDS + 1, questions)
        order = rng.permuted(np.tile(np.arange(RECORDS), (questions, 1)), axis=1)
        for name in ("topics", "strength", "harm", "similarity"):
            setattr(self, name, np.take_along_axis(getattr(self, name), order, axis=1))
        mix = np.random.default_rng(5).normal(size=(2 * TOPICS + 2, WIDTH)).astype(np.float32) / 2
        told = np.zeros((*shape, 2 * TOPICS + 2))
        told[..., :TOPICS] = np.eye(TOPICS)[self.topics]
        told[..., TOPICS], told[..., TOPICS + 1] = self.strength, self.harm
        # A token of the query for each thing that a record can be: the paper's fusion reads the query alone.
        asked = np.tile(np.eye(2 * TOPICS + 2), (questions, 1, 1))
        asked[:, range(TOPICS), range(TOPICS + 2, 2 * TOPICS + 2)] = self.wanted
        self._records = (told @ mix)[:, :, None].repeat(TOKENS, 2).astype(np.float32)
        self._queries = (asked @ mix).astype(np.float32)

    def __len__(self) -> int:
        return len(self.sizes)

    def arrays(self, questions: np.ndarray, prior: float = 0.0) -> dict[str, np.ndarray]:
        some = len(questions)
        here = np.arange(RECORDS) < self.sizes[questions][:, None]
        known = np.where(here, self.similarity[questions], 0)
        return {
            "query": self._queries[questions],
            "query_mask": np.ones((some, 2 * TOPICS + 2), bool),
            "records": self._records[questions],
            "token_mask": np.ones((some, RECORDS, TOKENS), bool) & here[..., None],
            "record_mask": here,
            "prior": (prior * known).astype(np.float32),
        }

    def reward(self, asked: Sequence[Action]) -> np.ndarray:
        return np.array([self._one(*one) for one in asked], np.float32)

    def _one(self, question: int, profile: Sequence[int]) -> float:
        best = np.zeros(TOPICS)
        for place in profile:
            topic = self.topics[question, place]
            best[topic] = max(best[topic], self.strength[question, place])
        return float(best @ self.wanted[question] - self.harm[question, list(profile)].sum())

    def similar(self) -> list[Action]:
        """The K most similar records of each question."""
        return [self._highest(i, self.similarity[i]) for i in range(len(self))]

    def singles(self) -> list[Action]:
        """The K records that are worth most alone, by their true worth."""
        alone = [[self._one(i, [j]) for j in range(RECORDS)] for i in range(len(self))]
        return [self._highest(i, np.array(values)) for i, values in enumerate(alone)]

    def best(self) -> list[Action]:
        """The best set of each question, by enumeration."""
        return [
            (i, max(combinations(range(size), K), key=lambda profile: self._one(i, profile)))
            for i, size in enumerate(self.sizes.tolist())
        ]

    def _highest(self, question: int, values: np.ndarray) -> Action:
        order = np.argsort(-values[: self.sizes[question]], kind="stable")
        return question, tuple(order[:K].tolist())

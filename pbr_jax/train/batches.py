"""Which examples each step sees: a function of the seed and the step, so that a resume needs no more."""

import functools
from typing import NamedTuple

import numpy as np


class Rows(NamedTuple):
    """The examples of one batch. A short last batch is filled up with rows that do not count."""

    indices: np.ndarray  # int [b]
    where: np.ndarray  # bool [b]
    step: int  # what else is random in the batch comes from it


class Batches(NamedTuple):
    """`examples` of them in batches of `batch_size`, in a new order every epoch."""

    examples: int
    batch_size: int
    seed: int

    @property
    def steps(self) -> int:
        """Batches of an epoch, the short one included."""
        return -(-self.examples // self.batch_size)

    def rows(self, step: int) -> Rows:
        """The batch of a step, counted from 0 over all epochs."""
        epoch, place = divmod(step, self.steps)
        rows = _order(self.examples, self.seed, epoch)[
            place * self.batch_size : (place + 1) * self.batch_size
        ]
        missing = self.batch_size - len(rows)
        where = np.arange(self.batch_size) < len(rows)
        return Rows(np.concatenate([rows, np.resize(rows, missing)]), where, step)


@functools.lru_cache(maxsize=4)
def _order(count: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(count)

"""Which examples each step sees: a function of the seed and the step, so that a resume needs no more."""

import functools
from typing import NamedTuple

import numpy as np


class Rows(NamedTuple):
    """The examples of one batch: `indices` int [b], `where` bool [b], and `step`, the number of the step.

    `where` is False for the rows that fill up a short last batch.
    """

    indices: np.ndarray
    where: np.ndarray
    step: int


_WINDOW = 64  # batches that are made together of examples sorted by length: most are then all of one kind


class Batches(NamedTuple):
    """`examples` of them in batches of `batch_size`, in a new order every epoch.

    `lengths`: of each example; batches are then of examples that are about as long, in random order.
    `groups`: the batches themselves, as examples of each, in a new order every epoch.
    """

    examples: int
    batch_size: int
    seed: int
    lengths: tuple[int, ...] | None = None
    groups: tuple[np.ndarray, ...] | None = None

    @property
    def steps(self) -> int:
        """Batches of an epoch, the short one included."""
        return -(-self.examples // self.batch_size) if self.groups is None else len(self.groups)

    def rows(self, step: int) -> Rows:
        """The batch of a step, counted from 0 over all epochs."""
        epoch, place = divmod(step, self.steps)
        if self.groups is not None:
            rows = self.groups[_order(self.steps, self.seed, epoch)[place]]
        else:
            rows = self._in_order(epoch)[place * self.batch_size : (place + 1) * self.batch_size]
        missing = self.batch_size - len(rows)
        where = np.arange(self.batch_size) < len(rows)
        return Rows(np.concatenate([rows, np.resize(rows, missing)]), where, step)

    def _in_order(self, epoch: int) -> np.ndarray:
        if self.lengths is None:
            return _order(self.examples, self.seed, epoch)
        return _by_length(self.lengths, self.batch_size, self.seed, epoch)


@functools.lru_cache(maxsize=4)
def _order(count: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(count)


@functools.lru_cache(maxsize=4)
def _by_length(lengths: tuple[int, ...], size: int, seed: int, epoch: int) -> np.ndarray:
    """Windows of a random order, sorted within and cut into batches, which are then mixed; a short batch
    stays the last."""
    order, sizes = _order(len(lengths), seed, epoch), np.array(lengths)
    full = len(order) // size * size
    batches = []
    for start in range(0, full, _WINDOW * size):
        window = order[start : min(start + _WINDOW * size, full)]
        window = window[np.argsort(sizes[window], kind="stable")]
        batches += np.split(window, len(window) // size)
    mixed = np.random.default_rng([seed, epoch, 1]).permutation(len(batches))
    return np.concatenate([*(batches[i] for i in mixed), order[full:]])

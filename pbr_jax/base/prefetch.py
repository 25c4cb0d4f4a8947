"""Results of batches, fetched from the devices while these compute the batches behind."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import jax

T = TypeVar("T")


def fetched(started: Iterable[tuple[T, Any]], ahead: int = 1) -> Iterator[tuple[T, Any]]:
    """What the caller knows of each batch, and its results as numpy arrays, in order.

    Args:
      started: (what is known, arrays on devices) of each batch. Taking an item starts the batch's program and
        does not wait for it.
      ahead: batches that are started beyond the one that is waited for, so that no device is idle while the
        host reads results and makes the next batch. Their results are in memory together. None where
        several processes share the devices.
    """
    # Programs of several processes wait for each other, and two that run at once may do so in another order
    # in each process, without end.
    ahead = ahead if jax.process_count() == 1 else 0
    waiting: deque[tuple[T, Any]] = deque()
    for batch in started:
        waiting.append(batch)
        if len(waiting) > ahead:
            known, arrays = waiting.popleft()
            yield known, jax.device_get(arrays)
    for known, arrays in waiting:
        yield known, jax.device_get(arrays)

"""Calls of several threads that are computed together."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Gathered(Generic[T, R]):
    """A function of one item, computed in batches: what is called while a batch is computed waits, and forms
    the next one. A single caller never waits for others.

    Args:
      compute: the results of several items, in their order. A result that is an exception is raised. If it
        raises for a batch, each item is computed alone, so that an error reaches only the caller of its item.
      most: the number of items in a batch.
    """

    def __init__(self, compute: Callable[[Sequence[T]], Sequence[R | Exception]], most: int = 64) -> None:
        self._compute, self._most = compute, most
        self._changed = threading.Condition()
        self._waiting: list[tuple[T, Future[R]]] = []
        self._busy = False

    def __call__(self, item: T) -> R:
        future: Future[R] = Future()
        with self._changed:
            self._waiting.append((item, future))
            while not future.done():
                if self._busy:
                    self._changed.wait()
                else:
                    self._lead()
        return future.result()

    def _lead(self) -> None:
        """Computes the calls that wait. The lock is held before and after, not meanwhile."""
        batch, self._waiting = self._waiting[: self._most], self._waiting[self._most :]
        self._busy = True
        self._changed.release()
        try:
            self._settle(batch)
        finally:
            self._changed.acquire()
            self._busy = False
            # After an interruption of this thread another one computes what is left.
            self._waiting[:0] = [call for call in batch if not call[1].done()]
            self._changed.notify_all()

    def _settle(self, batch: Sequence[tuple[T, Future[R]]]) -> None:
        try:
            results = self._compute([item for item, _ in batch])
        except Exception as error:
            if len(batch) > 1:
                for call in batch:
                    self._settle([call])
                return
            results = [error]
        for (_, future), result in zip(batch, results, strict=True):
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)

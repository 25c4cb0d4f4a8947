"""Calls of several threads that are computed together."""

import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class _Call(Generic[T]):
    """An item of one caller, and what became of it."""

    def __init__(self, item: T) -> None:
        self.item, self.done = item, False
        self.result: Any = None
        self.error: Exception | None = None


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
        self._waiting: list[_Call[T]] = []
        self._busy = False

    def __call__(self, item: T) -> R:
        call = _Call(item)
        with self._changed:
            self._waiting.append(call)
            while not call.done:
                if self._busy:
                    self._changed.wait()
                else:
                    self._lead()
        if call.error is not None:
            raise call.error
        return call.result

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
            self._waiting[:0] = [call for call in batch if not call.done]
            self._changed.notify_all()

    def _settle(self, batch: Sequence[_Call[T]]) -> None:
        try:
            results = self._compute([call.item for call in batch])
        except Exception as error:
            if len(batch) > 1:
                for call in batch:
                    self._settle([call])
                return
            batch[0].error, batch[0].done = error, True
        else:
            for call, result in zip(batch, results, strict=True):
                if isinstance(result, Exception):
                    call.error = result
                else:
                    call.result = result
                call.done = True

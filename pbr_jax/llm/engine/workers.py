"""Work side by side: iterators that each advance in a thread of their own."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Event
from typing import Any, TypeVar

T = TypeVar("T")
Job = TypeVar("Job")
Worker = TypeVar("Worker")


def side_by_side(works: Sequence[Iterable[T]]) -> Iterator[T]:
    """The items of all works, as they come. What a work raises is raised here, and the others stop.
    Stopping waits for the item that each work is at."""
    if len(works) == 1:
        yield from works[0]
        return
    queue: SimpleQueue[tuple[bool, Any]] = SimpleQueue()
    stop = Event()

    def run(work: Iterable[T]) -> None:
        try:
            for item in work:
                queue.put((True, item))
                if stop.is_set():
                    return
            queue.put((False, None))
        except BaseException as error:
            queue.put((False, error))

    with ThreadPoolExecutor(max(1, len(works))) as threads:
        try:
            for work in works:
                threads.submit(run, work)
            running = len(works)
            while running:
                more, item = queue.get()
                if more:
                    yield item
                elif item is None:
                    running -= 1
                else:
                    raise item
        finally:
            stop.set()


def shared_out(
    jobs: Iterable[Job], work: Callable[[Worker, Iterator[Job]], Iterable[T]], workers: Sequence[Worker]
) -> Iterator[T]:
    """What workers compute side by side: each takes one job after another while there are any."""
    waiting = deque(jobs)

    def taken() -> Iterator[Job]:
        while True:
            try:
                job = waiting.popleft()
            except IndexError:
                return
            yield job

    return side_by_side([work(worker, taken()) for worker in workers])

"""When others' histories are read: at few moments, never after a question."""

from collections.abc import Iterator, Sequence

import numpy as np

from pbr_jax.base.types import Example
from pbr_jax.corpus.store import Store
from pbr_jax.stages.run import CHUNK


class Moments:
    """Moments at which others' histories are read, spread evenly over all questions by date."""

    def __init__(self, store: Store, count: int) -> None:
        times = store.example_times
        places = np.linspace(0, len(times) - 1, min(count, len(times))).astype(int)
        self._moments = np.unique(times[places]) if len(times) else times

    def before(self, example: Example) -> float | None:
        """The last moment that is not after the question; None where nothing dated may be seen."""
        if example.time is None:
            return None
        before = self._moments[self._moments <= example.time]
        return float(before[-1]) if len(before) else example.time

    def groups(self, examples: Sequence[Example]) -> Iterator[tuple[float | None, list[int]]]:
        """The positions of examples with the moment that they see: all of a moment before the next moment.

        A group has at most `CHUNK` examples, those of one chunk, so that they are compared as if each chunk
        came alone.
        """
        seen = [self.before(example) for example in examples]
        found: dict[tuple[float, int], list[int]] = {}
        for place, moment in enumerate(seen):
            found.setdefault((-np.inf if moment is None else moment, place // CHUNK), []).append(place)
        for key in sorted(found):
            yield seen[found[key][0]], found[key]

    @property
    def all(self) -> list[float | None]:
        """None, at which nothing dated is seen, and the moments."""
        return [None, *map(float, self._moments)]

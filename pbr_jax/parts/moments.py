"""When others' histories are read: at few moments, never after a question."""

import numpy as np

from pbr_jax.index.store import Store
from pbr_jax.types import Example


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

    @property
    def all(self) -> list[float | None]:
        """None, at which nothing dated is seen, and the moments."""
        return [None, *map(float, self._moments)]

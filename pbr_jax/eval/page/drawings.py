"""Where marks of the page's own plots stand: in per cent of a plot's width, so that it fits any screen."""

import math
from collections.abc import Sequence
from typing import NamedTuple


class Scale(NamedTuple):
    """Values between `low` and `high`, and some round ones among them."""

    low: float
    high: float
    ticks: tuple[float, ...]

    def place(self, value: float) -> float:
        """Per cent of the way from the low end to the high one."""
        return round(100 * (value - self.low) / (self.high - self.low), 2)


def scale(values: Sequence[float]) -> Scale:
    """A scale that holds the finite values and zero, a little wider than they are."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = min([0.0, *finite]), max([0.0, *finite])
    if low == high:
        low, high = -1.0, 1.0
    edge = 0.06 * (high - low)
    low, high = low - edge, high + edge
    rough = (high - low) / 4
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= rough)
    ticks = (i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1))
    return Scale(low, high, tuple(round(tick, 12) for tick in ticks))

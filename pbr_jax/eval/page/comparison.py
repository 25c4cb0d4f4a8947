"""Paired gains over the reference, and the scales of their plots."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pbr_jax.eval.differences import corrected_p, is_shown, obstacles
from pbr_jax.eval.metrics import direction
from pbr_jax.eval.runs import Row, confidence_of
from pbr_jax.eval.section import Section
from pbr_jax.eval.significance import Difference, turned
from pbr_jax.eval.tables import label


@dataclass(frozen=True)
class Gain:
    """A row less the reference, turned so that more is better; `p` is Holm's, None where none is given.

    `shown`: 1 where the row is shown to be better, -1 worse, 0 where neither is. That takes an interval
    without zero and a p, corrected for all rows, below one less the confidence.
    """

    row: Row
    difference: Difference
    p: float | None
    shown: int

    @property
    def label(self) -> str:
        """The row's, marked where it read the answers or is mostly not what its name says."""
        return label(self.row)


@dataclass(frozen=True)
class Comparison:
    """All rows of a section against its reference. `gains`: by metric and row label, where there is one."""

    section: Section
    measure: str
    gains: Mapping[str, Mapping[str, Gain]]
    clusters: int

    @property
    def main(self) -> list[Gain]:
        """The gains in the main measure, the largest first."""
        return sorted(self.gains.get(self.measure, {}).values(), key=lambda one: -one.difference.value)


def compare(section: Section) -> Comparison:
    """The comparison in all metrics that are shown. The main measure is `target_nll` where all have it."""
    likely = all("target_nll" in run.metrics for run in section.runs)
    measure = "target_nll" if likely else section.names[0]
    p_values, alpha = corrected_p(section.compared), 1 - confidence_of(section.reference.first)
    gains: dict[str, dict[str, Gain]] = {}
    for i, (row, differences) in enumerate(zip(section.others, section.compared, strict=True)):
        for name, found in differences.items():
            p = p_values.get((i, name))
            better = turned(found, direction(name))
            gains.setdefault(name, {})[row.label] = Gain(row, better, p, _shown_as(better, p, alpha))
    records = section.reference.first.records or {}
    return Comparison(section, measure, gains, len({record.cluster for record in records.values()}))


def _shown_as(gain: Difference, p: float | None, alpha: float) -> int:
    return 0 if not is_shown(gain, p, alpha) else 1 if gain.low > 0 else -1


def why_not(section: Section) -> list[str]:
    """Why the runs of a section cannot be compared; empty where nothing speaks against it."""
    reasons = obstacles(section.runs)
    return reasons or (["have no predictions"] if any(run.records is None for run in section.runs) else [])


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

"""Paired gains over the reference, and which of them are shown: what plots, bold print and sentences say."""

from collections.abc import Mapping
from dataclasses import dataclass

from pbr_jax.eval import notes as remarks
from pbr_jax.eval.comparable import obstacles
from pbr_jax.eval.differences import corrected_p, is_shown, paired
from pbr_jax.eval.metrics import LOWER_IS_BETTER
from pbr_jax.eval.runs import Row
from pbr_jax.eval.section import Section
from pbr_jax.eval.significance import Difference, turned
from pbr_jax.eval.values import confidence_of


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

    def row_less_reference(self, name: str) -> Difference:
        """The difference in this metric as it is measured, not turned."""
        return turned(self.difference, direction(name))

    @property
    def label(self) -> str:
        """The row's, marked where it read the answers or is mostly not what its name says."""
        return remarks.label(self.row)


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
    names = list(dict.fromkeys([measure, *section.names]))
    others = [row for row in section.rows if row is not section.reference]
    by_row = [paired(row, section.reference, names) for row in others]
    p_values, alpha = corrected_p(by_row), 1 - confidence_of(section.reference.first)
    gains: dict[str, dict[str, Gain]] = {}
    for i, row in enumerate(others):
        for name, found in by_row[i].items():
            p = p_values.get((i, name))
            better = turned(found, direction(name))
            gains.setdefault(name, {})[row.label] = Gain(row, better, p, _shown(better, p, alpha))
    records = section.reference.first.records or {}
    return Comparison(section, measure, gains, len({record.cluster for record in records.values()}))


def direction(name: str) -> float:
    """1 where more of a metric is better, -1 where less is."""
    return -1.0 if name in LOWER_IS_BETTER else 1.0


def _shown(gain: Difference, p: float | None, alpha: float) -> int:
    return 0 if not is_shown(gain, p, alpha) else 1 if gain.low > 0 else -1


def why_not(section: Section) -> list[str]:
    """Why the runs of a section cannot be compared; empty where nothing speaks against it."""
    reasons = obstacles(section.runs)
    return reasons or (["have no predictions"] if any(run.records is None for run in section.runs) else [])

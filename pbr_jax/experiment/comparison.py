"""Comparison of two finished runs: the paired difference in each metric that both have."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pbr_jax.base.tables import Table, interval, number
from pbr_jax.base.types import UserError
from pbr_jax.eval.differences import is_shown, obstacles, paired
from pbr_jax.eval.metrics import LOWER_IS_BETTER
from pbr_jax.eval.runs import Row, confidence_of, read_run, run_labels
from pbr_jax.eval.significance import FEWEST, Difference
from pbr_jax.experiment.results import Results, frame

if TYPE_CHECKING:
    import pandas


def p_text(p: float) -> str:
    """`0.012`, or `<0.001`."""
    return f"{p:.3f}" if p >= 0.001 else "<0.001"


@dataclass(frozen=True, repr=False)
class Comparison:
    """Paired differences of two runs on the same questions, first run minus second, in each metric.

    `values` contains the metrics of both runs. Confidence intervals are computed over `clusters` ("users" or
    "units"), and `members` is their number. `questions` is the number of questions.
    """

    first: str
    second: str
    questions: int
    clusters: str
    members: int
    confidence: float
    values: Mapping[str, tuple[float, float]]
    differences: Mapping[str, Difference]

    def better(self, metric: str) -> str:
        """The label of the run that is significantly better in a metric, or "" if neither is.

        The confidence interval must exclude 0, p must be below 1 - confidence, and there must be at least 10
        users or units.
        """
        one = self.differences[metric]
        if self.members < FEWEST or not is_shown(one, one.p_value, 1 - self.confidence):
            return ""
        return self.first if (one.value > 0) != (metric in LOWER_IS_BETTER) else self.second

    def to_frame(self) -> "pandas.DataFrame":
        """A pandas frame with a row per metric: both values, difference, interval, p-value and better run."""
        rows = (
            {"metric": name, "first": self.values[name][0], "second": self.values[name][1],
             **dict(zip(("difference", "low", "high", "p_value"), one)), "better": self.better(name)}
            for name, one in self.differences.items()
        )  # fmt: skip
        return frame(rows).set_index("metric")

    def _table(self) -> Table:
        rows = [
            [name, *map(number, self.values[name]), number(one.value, "+"), interval(one[1:3], "+"),
             "–" if one.p_value is None else p_text(one.p_value), self.better(name) or "–"]
            for name, one in self.differences.items()
        ]  # fmt: skip
        alpha = f"{1 - self.confidence:.2g}"
        few = (
            f" There are fewer than {FEWEST} {self.clusters}, so p is not given and no run is called better."
        )
        return Table(
            f"Δ: {self.first} less {self.second}, paired over {self.questions} questions",
            ["metric", self.first, self.second, "Δ", "interval", "p", "better"],
            rows,
            [
                f"{self.confidence:.0%} intervals over {self.members} {self.clusters}. A run is called "
                f"better where the interval leaves out 0 and p is below {alpha}."
                f"{few * (self.members < FEWEST)} p is not corrected. A report on several runs corrects it "
                "for their number, so there the same difference may not be shown."
            ],
        )

    def __repr__(self) -> str:
        return self._table().text()

    def _repr_html_(self) -> str:
        return self._table().html()


def compare(first: Results | str | Path, second: Results | str | Path) -> Comparison:
    """Computes paired differences between two finished runs, first minus second, with confidence intervals.

    Args:
      first, second: results of `pbr_jax.run`, or folders of runs.

    Raises UserError if a folder contains no run, if the runs did not score the same questions and targets of
    the same data, or if they have no metric in common.
    """
    runs = [read_run(folder_of(one)) for one in (first, second)]
    if why := obstacles(runs):
        raise UserError(
            f"{runs[0].path} and {runs[1].path} cannot be compared: they {' and '.join(why)}; "
            "run both on the same benchmark with the same limit and seed"
        )
    labels = run_labels(runs)
    rows = [Row(label, (run,)) for label, run in zip(labels, runs, strict=True)]
    found = paired(rows[0], rows[1], [name for name in runs[0].metrics if name in runs[1].metrics])
    if not found:
        raise UserError(
            f"{runs[0].path} and {runs[1].path} have no metric that both have of each question; give runs "
            "that answer, or that score likelihoods"
        )
    return Comparison(
        first=labels[0],
        second=labels[1],
        questions=runs[0].n,
        clusters=runs[0].clusters,
        members=len({record.cluster for record in (runs[0].records or {}).values()}),
        confidence=confidence_of(runs[0]),
        values={name: (runs[0].metrics[name], runs[1].metrics[name]) for name in found},
        differences=found,
    )


def folder_of(what: Results | str | Path) -> Path:
    """The folder of a run."""
    return what.path if isinstance(what, Results) else Path(what)

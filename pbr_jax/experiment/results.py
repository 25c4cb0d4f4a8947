"""Results of finished runs in Python: metrics, lines of their files, frames, tables, a paired comparison."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pbr_jax.base.files import cache_folder, parse_json
from pbr_jax.base.tables import Table, interval, number
from pbr_jax.base.types import UserError
from pbr_jax.eval.cards import QuestionCard, cards
from pbr_jax.eval.differences import is_shown, obstacles, paired, shared_clusters
from pbr_jax.eval.metrics import LOWER_IS_BETTER
from pbr_jax.eval.runs import Row, beside, confidence_of, measured, read_run, run_labels
from pbr_jax.eval.significance import FEWEST, Difference

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, repr=False)
class Results:
    """The results of a run: its folder (`path`) and the content of results.json (`values`).

    Methods that return a frame need pandas, and raise UserError if it is not installed.
    """

    path: Path
    values: Mapping[str, Any]

    @property
    def metrics(self) -> dict[str, float]:
        return self.values["metrics"]

    @property
    def intervals(self) -> dict[str, list[float]]:
        return self.values["intervals"]

    def records(self) -> list[dict[str, Any]]:
        """The lines of predictions.jsonl, one for each question."""
        return self._lines("predictions.jsonl")

    def predictions(self) -> "pandas.DataFrame":
        """A frame with a row per question: `records`, with a column for each metric."""
        return frame({**record, **record.get("metrics", {})} for record in self.records()).drop(
            columns="metrics", errors="ignore"
        )

    def texts(self) -> "pandas.DataFrame":
        """A frame with a row per question: the texts in its prompt (the lines of texts.jsonl).

        Raises UserError if the run did not keep texts (`keep_texts`).
        """
        return frame(self._lines("texts.jsonl"))

    def trainings(self) -> dict[str, list[dict[str, Any]]]:
        """The measurements of each training of the run, by the label of its stage, such as `purple`.

        They are the lines of metrics.jsonl, with `step` and `loss`, `reward` or `selection`. Trainings that
        are no longer in the cache are left out.
        """
        found = {
            label: next(cache_folder().glob(f"*/{key}/metrics.jsonl"), None)
            for label, key in self.values["keys"].items()
        }
        return {label: _json_lines(file) for label, file in found.items() if file is not None}

    def card(self, question: str) -> QuestionCard:
        """Documents, answer and metrics of the question with this id, as `pbr-jax show` prints them."""
        (card,) = cards(self.path, [question])
        return QuestionCard({self.values["system"]: card})

    def to_frame(self) -> "pandas.DataFrame":
        """A frame with a row per metric: its `value`, and the ends of its interval (`low` and `high`)."""
        rows = (
            {"metric": name, "value": value, **dict(zip(("low", "high"), self.intervals.get(name, ())))}
            for name, value in self.metrics.items()
        )
        return frame(rows, ["metric", "value", "low", "high"]).set_index("metric")

    def _lines(self, name: str) -> list[dict[str, Any]]:
        if not (self.path / name).exists():
            raise UserError(
                f"{self.path} has no {name}: the run keeps no texts, or its folder was shared without them; "
                "run it with keep_texts"
            )
        return _json_lines(self.path / name)

    def _table(self) -> Table:
        values = self.values
        counts = values.get("counts", {})
        of_users = f" of {counts['users']} users" if "users" in counts else ""
        data = f"{values['benchmark']}, {values['split']}"
        title = f"{values['system']} on {data}: {values['n']} questions{of_users}"
        rows = [[n, number(v), interval(self.intervals.get(n))] for n, v in self.metrics.items()]
        return Table(title, ["metric", "value", "interval"], rows, [str(self.path)])

    def __repr__(self) -> str:
        return self._table().text() if "metrics" in self.values else f"Results({str(self.path)!r})"

    def _repr_html_(self) -> str:
        return self._table().html()


def _json_lines(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        return [parse_json(line) for line in file]


def frame(rows: Iterable[Mapping[str, Any]], columns: list[str] | None = None) -> "pandas.DataFrame":
    """Rows as a pandas frame. Raises UserError if pandas is not installed."""
    try:
        import pandas
    except ImportError as error:
        raise UserError("a frame needs pandas: pip install 'pbr-jax[frames]'") from error
    return pandas.DataFrame(list(rows), columns=columns)


# -- two runs ------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Comparison:
    """Paired differences of two runs on the same questions, first run minus second, in each metric.

    `values` contains the metrics of both runs. Confidence intervals are computed over `clusters` ("users" or
    "units"), and `members` is their number. `questions` is the number of questions, and `measured` is the
    number of those that have each metric.
    """

    first: str
    second: str
    questions: int
    clusters: str
    members: int
    confidence: float
    values: Mapping[str, tuple[float, float]]
    differences: Mapping[str, Difference]
    measured: Mapping[str, int]

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
        """A pandas frame with a row per metric: n, both values, difference, interval, p-value, better run."""
        rows = (
            {"metric": name, "n": self.measured[name],
             "first": self.values[name][0], "second": self.values[name][1],
             **dict(zip(("difference", "low", "high", "p_value"), one)), "better": self.better(name)}
            for name, one in self.differences.items()
        )  # fmt: skip
        return frame(rows).set_index("metric")

    def _table(self) -> Table:
        rows = [
            [name + beside(self.measured[name], self.questions),
             *map(number, self.values[name]), number(one.value, "+"), interval(one[1:3], "+"),
             "–" if one.p_value is None else _p_text(one.p_value), self.better(name) or "–"]
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
    clusters = shared_clusters(runs)
    return Comparison(
        first=labels[0],
        second=labels[1],
        questions=len(clusters),
        clusters=runs[0].clusters,
        members=len(set(clusters.values())),
        confidence=confidence_of(runs[0]),
        values={name: (runs[0].metrics[name], runs[1].metrics[name]) for name in found},
        differences=found,
        measured={name: measured(map((runs[0].records or {}).__getitem__, clusters), name) for name in found},
    )


def folder_of(what: Results | str | Path) -> Path:
    """The folder of a run."""
    return what.path if isinstance(what, Results) else Path(what)


def _p_text(p: float) -> str:
    return f"{p:.3f}" if p >= 0.001 else "<0.001"

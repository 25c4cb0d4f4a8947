"""Results of a finished run in Python: metrics, the lines of its files, pandas frames and a table."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pbr_jax.base.files import cache_folder, parse_json
from pbr_jax.base.tables import Table, interval, number
from pbr_jax.base.types import UserError
from pbr_jax.eval.cards import QuestionCard, cards

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

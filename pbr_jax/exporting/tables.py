"""Predictions and rankings as tables: a row a question, and a row a ranked document or passage."""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pbr_jax.base.files import write_lines
from pbr_jax.base.types import UserError
from pbr_jax.eval.run_files import lines, verified

Table = dict[str, list[Any]]
"""Columns of equal length by their names; None where a row has nothing there."""


def write(folder: Path, run: Path, format: Literal["csv", "parquet"]) -> None:
    """Writes `predictions` and `rankings` of a finished run, whose data and models need not be there.

    The columns are the fields of predictions.jsonl; fields inside fields are dotted (`metrics.rouge1`),
    lists and probabilities are JSON. Both tables have the question's `id`.

    Raises UserError where pyarrow is missing that Parquet needs.
    """
    verified(run)
    for name, rows in (("predictions", _predictions(run)), ("rankings", _rankings(run))):
        table, file = columns(rows), folder / f"{name}.{format}"
        if format == "csv":
            write_lines(file, _csv(table))
        else:
            _parquet(table, file)


def _predictions(run: Path) -> Iterator[dict[str, Any]]:
    for line in lines(run):
        documents = line.pop("documents")
        yield {**_flat(line), "ranked": len(documents)}


def _rankings(run: Path) -> Iterator[dict[str, Any]]:
    """`shown`: it stood in the prompt. `document_id` is the document's, of which a passage is the `span`."""
    for line in lines(run):
        for rank, told in enumerate(line["documents"], 1):
            start, end = told.get("span", (None, None))
            yield {
                "id": line["id"],
                "rank": rank,
                "document_id": told["id"],
                "document_user_id": told["user_id"],
                "score": told["score"],
                "shown": rank <= line["prompt_documents"],
                "span.start": start,
                "span.end": end,
                **{f"scores.{part}": score for part, score in told.get("scores", {}).items()},
            }


def _flat(fields: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, dict) and name != "probabilities":
            found |= _flat(value, f"{prefix}{name}.")
        elif isinstance(value, dict | list):
            found[prefix + name] = json.dumps(value, ensure_ascii=False)
        else:
            found[prefix + name] = value
    return found


def columns(rows: Iterable[Mapping[str, Any]]) -> Table:
    """The rows as columns, in the order in which their names first come."""
    table: Table = {}
    for place, row in enumerate(rows):
        for name in row:
            table.setdefault(name, [None] * place)
        for name, values in table.items():
            values.append(row.get(name))
    return table


def _csv(table: Table) -> Iterator[str]:
    yield _row(table)
    yield from map(_row, zip(*table.values(), strict=True))


def _row(values: Iterable[Any]) -> str:
    text = io.StringIO()
    csv.writer(text).writerow(values)
    return text.getvalue()


def _parquet(table: Table, file: Path) -> None:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise UserError(f"{file.name}: Parquet needs pyarrow: pip install 'pbr-jax[parquet]'") from error
    parquet.write_table(pyarrow.table(table), file)

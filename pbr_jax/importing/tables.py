"""Tables of one's own, row by row: CSV, TSV, JSON lines, a JSON list, Parquet, or a folder of such files.

Conversations (`chats`) and mail (`mail`) are tables too.

Rows are read as they are asked for, so a file may be larger than memory. Every fault names file and row;
rows are counted from 1, without the header. Python objects (pandas frames, Hugging Face datasets, any
iterable of mappings) are tables too.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pbr_jax.data import csv_stream, json_stream
from pbr_jax.data.records import kind
from pbr_jax.importing import chats, mail
from pbr_jax.types import UserError

SUFFIXES = (".csv", ".tsv", ".jsonl", ".json", ".parquet", ".mbox")


class Row(NamedTuple):
    """A row's values by column, and where it stands."""

    values: Mapping[str, Any]
    place: str

    def fault(self, column: str, found: str, wanted: str, remedy: str = "correct the row") -> UserError:
        """The error for a cell."""
        return UserError(f"{self.place}, column '{column}': found {found}, wanted {wanted}; {remedy}")

    def text(self, column: str) -> str:
        """A cell as text; "" where there is nothing."""
        value = self.values.get(column)
        if value is None or value != value:  # NaN, as pandas has it
            return ""
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            value = int(value)  # as pandas writes integers beside missing ones
        if isinstance(value, bool | Mapping) or (isinstance(value, Iterable) and not isinstance(value, str)):
            raise self.fault(column, kind(value), "a text or a number")
        return str(value).encode("utf-8", "replace").decode("utf-8")


def rows(source: str | Path | Iterable[Any]) -> Iterator[Row]:
    """The rows of a file, of all files of a folder in the order of their names, or of a Python object.

    Raises UserError for what is no table, and for faults in rows when they are reached.
    """
    if not isinstance(source, str | Path):
        yield from _of_object(source)
        return
    path = Path(source)
    if not path.exists():
        raise UserError(f"{path}: found no such file or folder, wanted a table ({', '.join(SUFFIXES)})")
    paths = sorted(p for p in path.iterdir() if p.suffix in SUFFIXES) if path.is_dir() else [path]
    if not paths:
        raise UserError(
            f"{path}: found no table in the folder, wanted files that end in {', '.join(SUFFIXES)}"
        )
    for one in paths:
        yield from _of_file(one)


def _of_file(path: Path) -> Iterator[Row]:
    if path.suffix in (".csv", ".tsv"):
        yield from (Row(values, place) for values, place in csv_stream.rows(path))
    elif path.suffix == ".parquet":
        yield from _of_parquet(path)
    elif path.suffix in (".jsonl", ".json"):
        listed = path.suffix == ".json" and json_stream.is_list(path)
        records = json_stream.records(path) if listed else json_stream.lines(path)
        for number, record in enumerate(records, start=1):
            yield from _rows(record.values, f"{path}: row {number}")
    elif path.suffix == ".mbox":
        yield from (Row(values, place) for values, place in mail.rows(path))
    else:
        raise UserError(f"{path}: found a file that ends in {path.suffix!r}, wanted {', '.join(SUFFIXES)}")


def _of_parquet(path: Path) -> Iterator[Row]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise UserError(f"{path}: Parquet needs pyarrow: pip install 'pbr-jax[parquet]'") from error
    try:
        number = 0
        for batch in parquet.ParquetFile(path).iter_batches(1024):
            for values in batch.to_pylist():
                number += 1
                yield Row(values, f"{path}: row {number}")
    except (ArrowException, OSError) as error:
        raise UserError(f"{path}: cannot be read as Parquet ({error}); write it anew") from error


def _of_object(source: Iterable[Any]) -> Iterator[Row]:
    """A pandas frame, a dataset of Hugging Face, or any iterable of mappings."""
    frame: Any = source
    if hasattr(frame, "itertuples"):
        names = list(map(str, frame.columns))
        source = (dict(zip(names, values)) for values in frame.itertuples(index=False, name=None))
    for number, values in enumerate(source, start=1):
        if not isinstance(values, Mapping):
            raise UserError(f"row {number}: found {kind(values)}, wanted a mapping of columns to values")
        yield from _rows({str(name): value for name, value in values.items()}, f"row {number}")


def _rows(values: Mapping[str, Any], place: str) -> Iterator[Row]:
    """The row of a record, or those of a chat."""
    found = chats.rows(values, place) if chats.is_chat(values) else [values]
    return (Row(one, place) for one in found)

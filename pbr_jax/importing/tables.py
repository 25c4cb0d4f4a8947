"""Tables of one's own, row by row: CSV, TSV, JSON lines, a JSON list, Parquet, or a folder of such files.

Conversations (`chats`) and mail (`mail`) are tables too.

Rows are read as they are asked for, so a file may be larger than memory. Every fault names file and row;
rows are counted from 1, without the header. Python objects (pandas frames, Hugging Face datasets, any
iterable of mappings) are tables too.
"""

import codecs
import csv
import io
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pbr_jax.data import json_stream
from pbr_jax.data.records import kind
from pbr_jax.importing import chats, mail
from pbr_jax.types import UserError

SUFFIXES = (".csv", ".tsv", ".jsonl", ".json", ".parquet", ".mbox")
_DELIMITERS = (",", ";", "\t", "|")
_LONGEST = 16 << 20  # characters of a cell; what is longer is a quote that nobody closed
_BOMS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


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
        yield from _of_csv(path)
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


def _of_csv(path: Path) -> Iterator[Row]:
    csv.field_size_limit(min(_LONGEST, sys.maxsize))
    number = 0
    with _told(path, lambda: number), path.open("rb") as raw:
        encoding = next((name for bom, name in _BOMS.items() if raw.peek(4).startswith(bom)), "utf-8")
        with io.TextIOWrapper(raw, encoding=encoding, newline="") as file:
            first = file.readline()
            delimiter = "\t" if path.suffix == ".tsv" else _delimiter(first)
            lines = csv.reader(_after(first, file), delimiter=delimiter, strict=True)
            header = _header(path, next(lines, []))
            for cells in lines:
                if not cells:
                    continue
                number += 1
                if len(cells) != len(header):
                    raise UserError(
                        f"{path}: row {number} (line {lines.line_num}): found {len(cells)} cells, want "
                        f"{len(header)}, as in the header; quote cells that hold {delimiter!r} or line breaks"
                    )
                yield Row(dict(zip(header, cells)), f"{path}: row {number}")


def _after(first: str, rest: Iterable[str]) -> Iterator[str]:
    yield first
    yield from rest


def _delimiter(header: str) -> str:
    """The separator that the header has most of, outside of quotes."""
    bare = "".join(header.split('"')[::2])
    return max(_DELIMITERS, key=bare.count)


def _header(path: Path, names: list[str]) -> list[str]:
    names = [name.strip() for name in names]
    if not any(names):
        raise UserError(f"{path}: found no header, wanted the names of the columns in the first line")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"{path}: found two columns named {twice!r}, wanted different names; rename one")
    return names


@contextmanager
def _told(path: Path, number: Any) -> Iterator[None]:
    """What goes wrong inside as one line that names the row after the last whole one."""
    try:
        yield
    except UnicodeError as error:
        raise UserError(
            f"{path}: row {number() + 1} or after: found bytes that are not UTF-8, wanted UTF-8; save the "
            "file as UTF-8"
        ) from error
    except csv.Error as error:
        raise UserError(
            f"{path}: row {number() + 1}: found a cell that cannot be read ({error}), wanted quotes that are "
            "closed, and doubled inside of a cell; correct the row"
        ) from error


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

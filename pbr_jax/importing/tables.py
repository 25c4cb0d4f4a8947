"""Tables of one's own, row by row: CSV, TSV, JSON lines, a JSON list, Parquet, or a folder of such files.

Conversations (`chats`) and mail (`mail`) are tables too.

Rows are read as they are asked for, so a file may be larger than memory. Every fault names file and row;
rows are counted from 1, without the header. Python objects (pandas frames, Hugging Face datasets, any
iterable of mappings) are tables too.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from pbr_jax.base.types import UserError
from pbr_jax.data import json_stream, tables
from pbr_jax.data.records import RecordError, caught, kind, whole
from pbr_jax.importing import chats, mail
from pbr_jax.importing.chats import Placed
from pbr_jax.importing.left_out import LeftOut

SUFFIXES = (".csv", ".tsv", ".jsonl", ".json", ".parquet", ".mbox")
_PACKED = (".csv", ".tsv", ".jsonl", ".json")  # may end in .gz too
_COLUMNS = (".csv", ".tsv", ".parquet")  # have the same columns in all rows, so in all files of a folder
_PARTS = 3  # of an object, that an error names
_PARTS_OF_DATES = ("%[yY]", "%[mbB]", "%d")
_EXACT = 2**53  # from here on a float has lost digits of the integer that it was


class Row(NamedTuple):
    """A row's values by column, and where it stands."""

    values: Mapping[str, Any]
    place: str

    def fault(self, column: str, found: str, wanted: str, remedy: str = "correct the row") -> RecordError:
        """The error for a cell."""
        message = f", column '{column}': found {found}, wanted {wanted}; {remedy}"
        return RecordError(self.place, message, f"rows without {wanted} in column '{column}'")

    def text(self, column: str) -> str:
        """A cell as text; "" where there is nothing."""
        value = self.values.get(column)
        if isinstance(value, str):
            return whole(value)
        if isinstance(value, bool | np.bool_ | Iterable):
            found = kind(value)
            found = type(value).__name__ if found == "something else" else found
            parts = [name for name in self.values if name.startswith(f"{column}.")]
            remedy = f"name a part of it: {' or '.join(parts[:_PARTS])}" if parts else "correct the row"
            raise self.fault(column, found, "a text or a number", remedy)
        if value is None or type(value).__name__ == "NAType" or value != value:  # as pandas has them
            return ""
        if isinstance(value, float | np.floating) and value.is_integer():
            if abs(value) >= _EXACT:
                raise self.fault(column, f"{value!r}, which has lost digits", "a text or a whole number")
            value = int(value)  # as pandas writes integers beside missing ones
        return whole(str(value))


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How a table is read.

    Args:
      encoding: of CSV and TSV. "": UTF-8, or UTF-16 with a byte order mark.
      date_format: of the dates, as for `datetime.strptime`. "": any form that is not ambiguous.
      skip_bad: whether rows with a fault are left out and counted.
      same_id: which row is kept of those with the same id. "refuse": an id that recurs is a fault.
    """

    encoding: str = ""
    date_format: str = ""
    skip_bad: bool = False
    same_id: Literal["refuse", "first", "last"] = "refuse"

    def __post_init__(self) -> None:
        if self.same_id not in ("refuse", "first", "last"):
            raise UserError(f"--same-id is {self.same_id!r:.40}; wanted refuse, first or last")
        try:
            " ".encode(self.encoding or "utf-8")
        except (LookupError, ValueError):
            raise UserError(
                f"--encoding: found no encoding {self.encoding!r:.40}; wanted one of Python's, such as cp1252"
            ) from None
        if self.date_format and not all(re.search(part, self.date_format) for part in _PARTS_OF_DATES):
            raise UserError(
                f"--date-format: found {self.date_format!r:.40}, wanted year, month and day, as in %d/%m/%Y"
            )

    def date(self, text: str) -> str:
        """A date as it is written, or in ISO 8601 if `date_format` is given; "" for one of another form."""
        if not self.date_format:
            return text
        try:
            moment = datetime.strptime(text.strip(), self.date_format)
        except ValueError:
            return ""
        timed = re.search("%[HIMSTXcfrR]", self.date_format)
        return moment.isoformat() if timed else moment.date().isoformat()


def rows(source: str | Path | Iterable[Any], left_out: LeftOut, encoding: str = "") -> Iterator[Row]:
    """The rows of a file, of all files of a folder in the order of their names, or of a Python object.

    `left_out` counts the records that give no row, and receives their faults. Raises UserError for what is no
    table.
    """
    records = _flattened(_records(source, left_out, encoding), left_out)
    yield from (Row(values, place) for values, place in chats.rows(records, left_out))


def _flattened(records: Iterable[Placed], left_out: LeftOut) -> Iterator[Placed]:
    for values, place in records:
        with caught(left_out.fault):
            yield _flat(values, place), place


def _records(source: str | Path | Iterable[Any], left_out: LeftOut, encoding: str) -> Iterator[Placed]:
    """Each record as it is written, and where it stands."""
    if not isinstance(source, str | Path):
        yield from _of_object(source, left_out)
        return
    path = Path(source)
    if not path.exists():
        raise UserError(f"{path}: found no such file or folder, wanted a table ({', '.join(SUFFIXES)})")
    paths = sorted(filter(_is_table, path.iterdir())) if path.is_dir() else [path]
    if not paths:
        raise UserError(
            f"{path}: found no table in the folder, wanted files that end in {', '.join(SUFFIXES)}"
        )
    if unread := next((path for path in paths if not path.is_file()), None):
        raise UserError(f"{unread}: found no file that can be read, wanted a table; take it out, or mend it")
    others = [path for path in paths if _format(path) not in (".csv", ".tsv")]
    if encoding and others:
        raise UserError(f"{others[0]}: found --encoding {encoding}, which is for CSV and TSV; leave it out")
    mailboxes = [path for path in paths if _format(path) == ".mbox"]
    yield from mail.rows(mailboxes, left_out)  # together, since a message may answer one of another file
    columns: list[str] = []
    for one in (path for path in paths if path not in mailboxes):
        table = _of_file(one, left_out, encoding)
        first = next(table, None)
        if first is None:
            continue
        if _format(one) in _COLUMNS:
            columns = columns or sorted(first[0])
            if odd := set(columns).symmetric_difference(first[0]):
                raise UserError(
                    f"{one}: found the columns {', '.join(first[0])}, and another file of the folder has "
                    f"{', '.join(columns)}; give both {', '.join(sorted(odd))}, or import one by one"
                )
        yield first
        yield from table


def _is_table(path: Path) -> bool:
    """Whether a file of a folder is read; hidden ones are what systems and editors keep beside tables."""
    return _format(path) in SUFFIXES and not path.name.startswith(".") and not path.is_dir()


def _format(path: Path) -> str:
    """The suffix that says what a file is, without that of gzip."""
    suffix, inner = path.suffix.lower(), path.with_suffix("").suffix.lower()
    return inner if suffix == ".gz" and inner in _PACKED else suffix


def _of_file(path: Path, left_out: LeftOut, encoding: str) -> Iterator[Placed]:
    form = _format(path)
    if form == ".parquet":
        records = tables.parquet(path)
    elif form in _COLUMNS:
        records = tables.separated(path, encoding, left_out.fault)
    elif form in (".jsonl", ".json"):
        listed = form == ".json" and json_stream.is_list(path)
        read = json_stream.records if listed else json_stream.lines
        records = read(path, unique=True, on_fault=left_out.fault)
    else:
        raise UserError(
            f"{path}: found a file that ends in {path.suffix!r}, wanted {', '.join(SUFFIXES)}, or one of "
            f"{', '.join(_PACKED)} with .gz behind"
        )
    for record in records:
        word, number = record.label.split()[:2]
        yield record.values, f"{path}: row {int(number) + (word == 'record')}"  # JSON counts from 0


def _of_object(source: Iterable[Any], left_out: LeftOut) -> Iterator[Placed]:
    """A pandas frame, a dataset of Hugging Face, or any iterable of mappings."""
    frame: Any = source
    if hasattr(frame, "itertuples"):
        names = list(map(str, frame.columns))
        tables.refuse_twins("the frame", names)
        source = (dict(zip(names, values)) for values in frame.itertuples(index=False, name=None))
    for number, values in enumerate(source, start=1):
        if not isinstance(values, Mapping):
            message = f": found {kind(values)}, wanted a mapping of columns to values"
            left_out.fault(RecordError(f"row {number}", message, "records that are no mapping"))
        else:
            yield {str(name): value for name, value in values.items()}, f"row {number}"


def _flat(values: Mapping[str, Any], place: str) -> dict[str, Any]:
    """A record, and the parts of its objects as columns: `text` of `message` is `message.text` too."""
    flat = {
        name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in values.items()
    }
    for name, value in values.items():
        parts = _flat(value, place) if isinstance(value, Mapping) else {}
        named = {f"{name}.{part}": one for part, one in parts.items()}
        if twins := flat.keys() & named.keys():
            message = f": found the column {min(twins)!r} twice, wanted one; rename it"
            raise RecordError(place, message, "records with a column twice")
        flat |= named
    return flat

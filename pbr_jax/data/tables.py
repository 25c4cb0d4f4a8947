"""Tables, row by row, in memory that does not grow with the file: separated values, and Parquet.

Every fault becomes a UserError that names file and row, and the column where one cell is at fault; rows are
counted from 1, without the header.
"""

import codecs
import csv
import io
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path

from pbr_jax.base.types import UserError
from pbr_jax.data.json_stream import opened
from pbr_jax.data.records import Record, RecordError, caught, refuse

_DELIMITERS = (",", ";", "\t", "|")
_LONGEST = 16 << 20  # characters of a line and of a cell; what is longer is a quote that nobody closed
_NO_TEXT = re.compile("[\0\udc80-\udcff]")  # NUL, and bytes that were not UTF-8
_BOMS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_BATCH = 64  # rows of Parquet in memory
_BUFFER = 1 << 20  # bytes of each of its columns


def separated(
    path: Path, encoding: str = "", on_fault: Callable[[RecordError], None] = refuse
) -> Iterator[Record]:
    """The rows of a file of separated values.

    The separator is the one that the header has most of; a file that ends in .tsv or .tsv.gz has tabs.
    `encoding`: "" for UTF-8, or UTF-16 with a byte order mark. `on_fault` receives the faults of single rows,
    which give no record.
    """
    csv.field_size_limit(min(_LONGEST, sys.maxsize))
    number = 0
    try:
        with opened(path) as raw:
            begin = raw.peek(4)
            marked = (name for bom, name in _BOMS.items() if begin.startswith(bom))
            encoding = encoding or next(marked, "utf-8")
            strict = encoding.lower().startswith(("utf-16", "utf-32"))
            escape = "strict" if strict else "surrogateescape"  # so that a fault is its cell's
            with io.TextIOWrapper(raw, encoding=encoding, errors=escape, newline="") as file:
                first = next(_lines(file), "")
                tabs = path.name.lower().removesuffix(".gz").endswith(".tsv")
                delimiter = "\t" if tabs else _delimiter(first)
                lines = csv.reader(chain([first], _lines(file)), delimiter=delimiter, strict=True)
                header = _header(path, next(lines, []), encoding)
                for cells in filter(None, lines):
                    number += 1
                    with caught(on_fault):
                        if len(cells) != len(header):
                            raise _uneven(f"{path}: row {number}", lines.line_num, cells, header)
                        yield _row(path, header, cells, number, encoding)
    except UnicodeError as error:
        raise UserError(
            f"{path}: row {number + 1} or after: found bytes that are not {encoding.upper()}; "
            "save the file as UTF-8, or name its encoding (--encoding)"
        ) from error
    except csv.Error as error:
        raise UserError(
            f"{path}: row {number + 1}: found a cell that cannot be read ({error}), wanted quotes that are "
            "closed, and doubled inside of a cell; correct the row"
        ) from error


def _uneven(place: str, line: int, cells: list[str], header: list[str]) -> RecordError:
    message = (
        f" (line {line}): found {len(cells)} cells, want {len(header)}, as in the header; quote cells that "
        "hold a separator or a line break"
    )
    return RecordError(place, message, "rows with more or fewer cells than the header")


def _row(path: Path, header: list[str], cells: list[str], number: int, encoding: str) -> Record:
    values = dict(zip(header, cells))
    for name, cell in values.items():
        if not (cell.isascii() and cell.isprintable()) and _NO_TEXT.search(cell):
            message = f", column '{name}': {_no_text(cell, encoding)}"
            raise RecordError(f"{path}: row {number}", message, "rows with bytes that are no text")
    values.pop("", None)  # columns without a name, as spreadsheets write them beside a table
    return Record(values, path, f"row {number}")


def _lines(file: io.TextIOWrapper) -> Iterator[str]:
    while line := file.readline(_LONGEST):
        if len(line) == _LONGEST:
            raise csv.Error(f"a line of more than {_LONGEST} characters")
        yield line


def _no_text(text: str, encoding: str) -> str:
    name = encoding.removesuffix("-sig").upper()
    found = "a NUL character, wanted text" if "\0" in text else f"bytes that are not {name}, wanted {name}"
    return f"found {found}; save the file as UTF-8, or name its encoding, such as --encoding cp1252"


def _delimiter(header: str) -> str:
    """The separator that the header has most of, outside of quotes."""
    bare = "".join(header.split('"')[::2])
    return max(_DELIMITERS, key=bare.count)


def _header(path: Path, names: list[str], encoding: str) -> list[str]:
    names = [name.strip() for name in names]
    if not any(names):
        raise UserError(f"{path}: found no header, wanted the names of the columns in the first line")
    if _NO_TEXT.search(whole := "".join(names)):
        raise UserError(f"{path}: header: {_no_text(whole, encoding)}")
    refuse_twins(str(path), filter(None, names))
    return names


def refuse_twins(place: str, names: Iterable[str]) -> None:
    """Raises UserError where two columns bear one name."""
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise UserError(f"{place}: found two columns named {twice!r}, wanted different names; rename one")


def parquet(path: Path) -> Iterator[Record]:
    """The rows of a Parquet file, with the values that pyarrow makes of them."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise UserError(f"{path}: Parquet needs pyarrow: pip install 'pbr-jax[parquet]'") from error
    number = 0
    try:
        with parquet.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False) as file:
            refuse_twins(str(path), file.schema_arrow.names)
            for batch in file.iter_batches(_BATCH):
                for values in batch.to_pylist():
                    number += 1
                    yield Record(values, path, f"row {number}")
    except UserError:
        raise
    except (ArrowException, OSError, ValueError, OverflowError) as error:  # a date that Python has not
        place = f"{path}: row {number + 1} or after" if number else str(path)
        reason = str(error).partition("\n")[0]
        raise UserError(f"{place}: cannot be read as Parquet ({reason}); write it anew") from error

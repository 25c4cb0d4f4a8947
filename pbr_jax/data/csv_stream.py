"""Tables of separated values, row by row, in memory that does not grow with the file.

The separator is the one that the header has most of; a file that ends in .tsv or .tsv.gz has tabs. Every
fault becomes a UserError that names file and row, and the column where one cell is at fault; rows are counted
from 1, without the header.
"""

import codecs
import csv
import io
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pbr_jax.base.types import UserError
from pbr_jax.data.json_stream import opened

_DELIMITERS = (",", ";", "\t", "|")
_LONGEST = 16 << 20  # characters of a line and of a cell; what is longer is a quote that nobody closed
_NO_TEXT = re.compile("[\0\udc80-\udcff]")  # NUL, and bytes that were not UTF-8
_BOMS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def rows(path: Path) -> Iterator[tuple[dict[str, str], str]]:
    """The cells of each row by column, and where the row stands, for errors."""
    csv.field_size_limit(min(_LONGEST, sys.maxsize))
    number = 0
    with _told(path, lambda: number), opened(path) as raw:
        begin = raw.peek(4)
        encoding = next((name for bom, name in _BOMS.items() if begin.startswith(bom)), "utf-8")
        escape = "strict" if encoding == "utf-16" else "surrogateescape"  # so that a fault is its cell's
        with io.TextIOWrapper(raw, encoding=encoding, errors=escape, newline="") as file:
            first = next(_lines(file), "")
            tabs = path.name.lower().removesuffix(".gz").endswith(".tsv")
            delimiter = "\t" if tabs else _delimiter(first)
            lines = csv.reader(_after(first, _lines(file)), delimiter=delimiter, strict=True)
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
                for name, cell in zip(header, cells):
                    if not (cell.isascii() and cell.isprintable()) and _NO_TEXT.search(cell):
                        raise UserError(f"{path}: row {number}, column '{name}': {_no_text(cell)}")
                row = dict(zip(header, cells))
                row.pop("", None)  # columns without a name, as spreadsheets write them beside a table
                yield row, f"{path}: row {number}"


def _lines(file: io.TextIOWrapper) -> Iterator[str]:
    while line := file.readline(_LONGEST):
        if len(line) == _LONGEST:
            raise csv.Error(f"a line of more than {_LONGEST} characters")
        yield line


def _no_text(text: str) -> str:
    if "\0" in text:
        return "found a NUL character, wanted text; save the file as UTF-8"
    return "found bytes that are not UTF-8, wanted UTF-8; save the file as UTF-8"


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
    if _NO_TEXT.search(whole := "".join(names)):
        raise UserError(f"{path}: header: {_no_text(whole)}")
    refuse_twins(str(path), filter(None, names))
    return names


def refuse_twins(place: str, names: Iterable[str]) -> None:
    """Raises UserError where two columns bear one name."""
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise UserError(f"{place}: found two columns named {twice!r}, wanted different names; rename one")


@contextmanager
def _told(path: Path, number: Any) -> Iterator[None]:
    """What goes wrong inside as one line that names the row after the last whole one."""
    try:
        yield
    except UnicodeError as error:
        raise UserError(
            f"{path}: row {number() + 1} or after: found bytes that are not UTF-16 as its first ones say; "
            "save the file as UTF-8"
        ) from error
    except csv.Error as error:
        raise UserError(
            f"{path}: row {number() + 1}: found a cell that cannot be read ({error}), wanted quotes that are "
            "closed, and doubled inside of a cell; correct the row"
        ) from error

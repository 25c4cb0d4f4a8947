"""Tables of separated values, row by row, in memory that does not grow with the file.

The separator is the one that the header has most of; a file that ends in .tsv has tabs. Every fault becomes a
UserError that names file and row; rows are counted from 1, without the header.
"""

import codecs
import csv
import io
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pbr_jax.types import UserError

_DELIMITERS = (",", ";", "\t", "|")
_LONGEST = 16 << 20  # characters of a cell; what is longer is a quote that nobody closed
_BOMS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def rows(path: Path) -> Iterator[tuple[dict[str, str], str]]:
    """The cells of each row by column, and where the row stands, for errors."""
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
                yield dict(zip(header, cells)), f"{path}: row {number}"


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

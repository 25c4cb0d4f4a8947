"""Data files, record by record, in memory that does not grow with the file.

LaMP's question files reach 800 MB and LongMemEval's 3 GB; only one record of them is held at a time.
Whatever is wrong with a file becomes a UserError that names the file and the place.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import ijson

from pbr_jax.data.records import Record, kind, top_record
from pbr_jax.types import UserError

_BOM = b"\xef\xbb\xbf"
_STARTS = {b"{": "an object", b"": "an empty file", b'"': "a string"}


def records(path: Path) -> Iterator[Record]:
    """The objects of a file that holds one JSON list."""
    with _opened(path) as file:
        if (first := _first_byte(file)) != b"[":
            found = "bytes that are not UTF-8" if first >= b"\x80" else _STARTS.get(first, "something else")
            raise UserError(
                f"{path}: found {found}, wanted a JSON list of records; take the file as released"
            )
        values = ijson.items(file, "item", use_float=True)
        for index, value in enumerate(_parsed(values, path, file)):
            yield top_record(value, path, index)


def lines(path: Path) -> Iterator[Record]:
    """The objects of a file that holds one JSON object a line; blank lines are skipped."""
    with _opened(path) as file:
        _first_byte(file)
        index = 0
        for number, line in enumerate(file, start=1):
            if line.strip():
                yield top_record(_loads(line, f"{path}: line {number} (record {index})"), path, index)
                index += 1


def load(path: Path) -> Record:
    """A small file that holds one JSON object."""
    with _opened(path) as file:
        _first_byte(file)
        value = _loads(file.read(), str(path))
    if not isinstance(value, dict):
        raise UserError(f"{path}: found {kind(value)}, wanted a JSON object; take the file as released")
    return Record(value, path)


def is_list(path: Path) -> bool:
    """Whether a JSON file holds a list, rather than an object or one object a line."""
    with _opened(path) as file:
        return _first_byte(file) == b"["


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        file = path.open("rb")
    except FileNotFoundError as error:
        raise UserError(f"{path}: found no such file, wanted a data file; check --benchmark.root") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); check its permissions") from error
    with file:
        yield file


def _first_byte(file: BinaryIO) -> bytes:
    """The first byte of the text; the file is left at the start of the text, behind a byte order mark."""
    start = len(_BOM) if file.read(len(_BOM)) == _BOM else 0
    file.seek(start)
    while (byte := file.read(1)).isspace():
        pass
    file.seek(start)
    return byte


def _parsed(values: Iterator[Any], path: Path, file: BinaryIO) -> Iterator[Any]:
    """The values of a parser, with its errors turned into ours."""
    count = 0
    while True:
        try:
            value = next(values)
        except StopIteration:
            return
        except (ijson.JSONError, UnicodeDecodeError) as error:
            raise _broken(str(error), count, path, file) from error
        yield value
        count += 1


def _broken(message: str, count: int, path: Path, file: BinaryIO) -> UserError:
    place = f"{path}: record {count}"
    if "UTF8" in message or "utf-8" in message:
        return UserError(f"{place}: found bytes that are not UTF-8, wanted UTF-8; convert the file")
    if "EOF" in message or "ncomplete" in message:
        found = f"the JSON is truncated at byte {file.tell()}"
        return UserError(f"{place}: {found}, wanted a list that ends in ']'; fetch the file again")
    # The parser's further lines quote the data: users' private text, which has no place in a log.
    reason = message.removeprefix("b'").partition("\n")[0].partition("\\n")[0].rstrip(".")
    return UserError(f"{place}: malformed JSON ({reason}), wanted a list of records; fetch the file again")


def _loads(data: bytes, place: str) -> Any:
    try:
        return json.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(
            f"{place}: found bytes that are not UTF-8 at byte {error.start}, wanted UTF-8; convert the file"
        ) from error
    except json.JSONDecodeError as error:
        raise UserError(
            f"{place}: malformed or truncated JSON at character {error.pos} ({error.msg}), wanted an object; "
            "fetch the file again"
        ) from error

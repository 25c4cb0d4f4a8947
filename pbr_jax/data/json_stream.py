"""Data files, record by record, in memory that does not grow with the file.

LaMP's question files reach 800 MB and LongMemEval's 3 GB; only one record of them is held at a time.
Whatever is wrong with a file becomes a UserError that names the file and the place.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from json import JSONDecodeError
from pathlib import Path
from typing import Any, BinaryIO

import ijson

from pbr_jax.data.records import Record, kind, top_record
from pbr_jax.files import JsonBounds, parse_json
from pbr_jax.types import UserError

_BOM = b"\xef\xbb\xbf"
_MARK = "\ufdd0"  # a code point that Unicode keeps out of exchanged text
_ESCAPED = re.compile(
    rb"\\u[dD](?:[89abAB][0-9a-fA-F]{2}(\\u[dD][c-fC-F][0-9a-fA-F]{2})?|[c-fC-F][0-9a-fA-F]{2})"
)
_OPEN = re.compile(rb"(?:\\+u[dD][89abAB][0-9a-fA-F]{2})?(?:\\+(?:u[0-9a-fA-F]{0,3})?)?\Z")
_STARTS = {b"{": "an object", b"": "an empty file", b'"': "a string"}


def records(path: Path) -> Iterator[Record]:
    """The objects of a file that holds one JSON list."""
    with _opened(path) as file:
        if (first := _first_byte(file)) != b"[":
            found = "bytes that are not UTF-8" if first >= b"\x80" else _STARTS.get(first, "something else")
            raise UserError(
                f"{path}: found {found}, wanted a JSON list of records; take the file as released"
            )
        source = _Halves(file)
        values = ijson.items(source, "item", use_float=True)
        for index, value in enumerate(_parsed(values, path, file)):
            yield top_record(_restored(value) if source.found else value, path, index)


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


class _Halves:
    """A file for the parser, which makes "?" of half a surrogate pair: here it reads a mark in its place.

    So two ids that differ in such a half alone stay two. `found` tells whether there was one.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.found, self._rest = file, False, b""
        self._bounds = JsonBounds()

    def read(self, size: int = -1) -> bytes:
        """About `size` bytes, none only at the end; what may be cut in two waits for the next call."""
        while read := self.file.read(size):
            self._bounds.feed(read)
            data = self._rest + read
            tail = _OPEN.search(data, len(data[:-12].rstrip(b"\\")))
            end = tail.start() if tail else len(data)
            data, self._rest = data[:end], data[end:]
            if data:
                return self._marked(data)
        data, self._rest = self._rest, b""
        return self._marked(data)

    def _marked(self, data: bytes) -> bytes:
        return _ESCAPED.sub(self._mark, data) if b"\\ud" in data or b"\\uD" in data else data

    def _mark(self, match: re.Match[bytes]) -> bytes:
        start = match.start()
        while start and match.string[start - 1] == ord("\\"):
            start -= 1
        literal = (match.start() - start) % 2 == 1  # an escaped backslash, and what follows it are letters
        if literal != bool(match[1]):  # letters alone, or a pair
            return match[0]
        self.found = True
        mark = b"\\u%04x" % ord(_MARK)
        return match[0][:6] + mark if literal else mark


def _restored(value: Any) -> Any:
    """A parsed value with halves of surrogate pairs for the marks, as the standard library reads them."""
    if isinstance(value, str):
        return value.replace(_MARK, "\ud800")
    if isinstance(value, list):
        return [_restored(item) for item in value]
    if isinstance(value, dict):
        return {key.replace(_MARK, "?"): _restored(item) for key, item in value.items()}
    return value


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
        except (ijson.JSONError, ValueError) as error:
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
    if "nested more" in message or "digits" in message:
        return UserError(f"{place}: found {message}, wanted a list of records; take the file as released")
    # The parser's further lines quote the data: users' private text, which has no place in a log.
    reason = message.removeprefix("b'").partition("\n")[0].partition("\\n")[0].rstrip(".")
    return UserError(f"{place}: malformed JSON ({reason}), wanted a list of records; fetch the file again")


def _loads(data: bytes, place: str) -> Any:
    try:
        return parse_json(data)
    except UnicodeDecodeError as error:
        raise UserError(
            f"{place}: found bytes that are not UTF-8 at byte {error.start}, wanted UTF-8; convert the file"
        ) from error
    except JSONDecodeError as error:
        raise UserError(
            f"{place}: malformed or truncated JSON at character {error.pos} ({error.msg}), wanted an object; "
            "fetch the file again"
        ) from error
    except ValueError as error:
        raise UserError(f"{place}: found {error}, wanted a record; take the file as released") from error

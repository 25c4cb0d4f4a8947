"""Data files, record by record, in memory that does not grow with the file.

LaMP's question files reach 800 MB and LongMemEval's 3 GB; only one record of them is held at a time.
Whatever is wrong with a file becomes a UserError that names the file and the place. Integers have any length;
`NaN`, `Infinity` and `-Infinity`, which are no JSON, but which pandas and Python write, are read as null.
"""

import codecs
import gzip
import math
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from io import BufferedIOBase, BufferedReader
from json import JSONDecodeError, JSONDecoder
from pathlib import Path
from typing import Any, BinaryIO

from pbr_jax.base.files import JsonBounds, parse_json
from pbr_jax.base.types import UserError
from pbr_jax.data.records import Record, RecordError, caught, kind, refuse, top_record

_BOM = b"\xef\xbb\xbf"
_SPACE = re.compile(r"[ \t\n\r]*")
_CHUNK = 1 << 16  # bytes
_LONGEST = 64 << 20  # bytes of a line; what is longer is no file of one object a line
_LONGEST_WORD = 16  # characters, more than in "-Infinity" or an escaped pair: what may be cut in two
_STARTS = {b"{": "an object", b"": "an empty file", b'"': "a string"}


def records(
    path: Path, *, unique: bool = False, on_fault: Callable[[RecordError], None] = refuse
) -> Iterator[Record]:
    """The objects of a file that holds one JSON list; `unique`: a key that an object has twice is a fault.
    `on_fault` receives the faults of what gives no record but does not end the reading."""
    with opened(path) as file:
        if (first := _first_byte(file)) != b"[":
            found = "bytes that are not UTF-8" if first >= b"\x80" else _STARTS.get(first, "something else")
            raise UserError(
                f"{path}: found {found}, wanted a JSON list of records; take the file as released"
            )
        index, values = 0, _Source(file, unique=unique).values()
        try:
            for index, value in enumerate(values):
                with caught(on_fault):
                    yield top_record(value, path, index)
                index += 1
        except UserError:
            raise
        except (EOFError, ValueError) as error:
            raise _fault(error, f"{path}: record {index}", "a list that ends in ']'", file.tell()) from error


def lines(
    path: Path, *, unique: bool = False, on_fault: Callable[[RecordError], None] = refuse
) -> Iterator[Record]:
    """The objects of a file that holds one JSON object a line; blank lines are skipped. The rest as above."""
    decoder = _UNIQUE if unique else _DECODER
    with opened(path) as file:
        _first_byte(file)
        index = 0
        for number, line in enumerate(iter(partial(file.readline, _LONGEST), b""), start=1):
            if line.isspace() and len(line) < _LONGEST:
                continue
            place = f"{path}: line {number} (record {index})"
            if len(line) == _LONGEST:
                raise UserError(
                    f"{place}: found more than {_LONGEST >> 20} MiB in a line, wanted one object a line; "
                    "correct it, or end the file's name in .json where it holds a list"
                )
            with caught(on_fault):
                yield top_record(_loads(line, place, decoder), path, index)
            index += 1


def load(path: Path) -> Record:
    """A small file that holds one JSON object."""
    with opened(path) as file:
        _first_byte(file)
        value = _loads(file.read(), str(path))
    if not isinstance(value, dict):
        raise UserError(f"{path}: found {kind(value)}, wanted a JSON object; take the file as released")
    return Record(value, path)


def is_list(path: Path) -> bool:
    """Whether a JSON file holds a list, rather than an object or one object a line."""
    with opened(path) as file:
        return _first_byte(file) == b"["


def _missing(constant: str) -> None:
    """What NaN, Infinity and -Infinity are, which pandas and Python write for missing values: null."""


def _finite(number: str) -> float:
    if math.isinf(value := float(number)):
        raise ValueError("a number beyond 1.8e308")
    return value


def _different(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) < len(pairs):
        twice = next(key for place, (key, _) in enumerate(pairs) if key in dict(pairs[:place]))
        raise ValueError(f"the key {twice!r:.60} twice in one object")
    return found


_DECODER = JSONDecoder(parse_constant=_missing, parse_float=_finite)
_UNIQUE = JSONDecoder(parse_constant=_missing, parse_float=_finite, object_pairs_hook=_different)


class _Source:
    """The text of a file that holds a JSON list, of which only what is being parsed is in memory."""

    def __init__(self, file: BinaryIO | BufferedIOBase, size: int = _CHUNK, *, unique: bool = False) -> None:
        self.file, self.size, self._parser = file, size, _UNIQUE if unique else _DECODER
        self._bounds, self._decoder = JsonBounds(), codecs.getincrementaldecoder("utf-8")()
        self._fault: UnicodeDecodeError | None = None
        self._text, self._place = "", 0

    def values(self) -> Iterator[Any]:
        """The list's values, each once its end is read; ValueError where that fails."""
        self._expect("[")
        if self._peek() != "]":
            yield self._value()
            while self._peek() != "]":
                self._expect(",")
                yield self._value()
        self._expect("]")
        if self._peek():
            raise JSONDecodeError("Extra data", self._text, self._place)

    def _peek(self) -> str:
        """The next character that is no white space, empty at the end of the file."""
        while True:
            self._place = _SPACE.match(self._text, self._place).end()  # type: ignore[union-attr]
            if self._place < len(self._text) or not self._more():
                return self._text[self._place : self._place + 1]

    def _expect(self, character: str) -> None:
        if not (found := self._peek()):
            raise EOFError
        if found != character:
            raise JSONDecodeError(f"Expecting {character!r} delimiter", self._text, self._place)
        self._place += 1

    def _value(self) -> Any:
        self._peek()
        while True:
            try:
                value, end = self._parser.raw_decode(self._text, self._place)
            except JSONDecodeError as error:
                open_string = error.msg.startswith("Unterminated")
                if (open_string or error.pos > len(self._text) - _LONGEST_WORD) and self._more():
                    continue
                if open_string or error.pos >= len(self._text):
                    raise EOFError from error
                raise
            whole = self._text[end - 1] in '}]"' or end + _LONGEST_WORD < len(self._text)
            if whole or not self._more():  # else the rest of a number may be to come
                self._place = end
                return value

    def _more(self) -> bool:
        """Reads on, by as much again as waits to be parsed; False at the end of the file."""
        if self._fault is not None:
            raise self._fault
        if not (data := self.file.read(max(self.size, len(self._text) - self._place))):
            if self._decoder.getstate()[0]:  # half a character
                raise EOFError
            return False
        self._bounds.feed(data)
        try:
            text = self._decoder.decode(data)
        except UnicodeDecodeError as error:  # once what stands before it is parsed
            self._fault, text = error, error.object[: error.start].decode()
        self._text, self._place = self._text[self._place :] + text, 0
        return True


@contextmanager
def opened(path: Path) -> Iterator[BufferedReader | gzip.GzipFile]:
    """A data file, read as bytes; what ends in .gz is decompressed."""
    try:
        file = gzip.open(path) if path.suffix == ".gz" else path.open("rb")  # noqa: SIM115  closed below
    except FileNotFoundError as error:
        raise UserError(f"{path}: found no such file, wanted a data file; check --benchmark.root") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); check its permissions") from error
    with file:
        try:
            yield file
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise UserError(
                f"{path}: found damaged compressed data ({error}), fetch the file again"
            ) from error


def _first_byte(file: BufferedIOBase) -> bytes:
    """The first byte of the text; the file is left at the start of the text, behind a byte order mark."""
    start = len(_BOM) if file.read(len(_BOM)) == _BOM else 0
    file.seek(start)
    while (chunk := file.read(_CHUNK)).isspace():
        pass
    file.seek(start)
    return chunk.lstrip()[:1]


def _loads(data: bytes, place: str, decoder: JSONDecoder = _DECODER) -> Any:
    try:
        return parse_json(data, decoder)
    except ValueError as error:
        raise _fault(error, place, "an object") from error


def _fault(error: Exception, place: str, wanted: str, end: int | None = None) -> RecordError:
    """What a parser says, as one line that quotes no data; `end`: the bytes that were read of a stream."""
    reason = "records that are no JSON"
    if isinstance(error, UnicodeDecodeError):
        message = ": found bytes that are not UTF-8, wanted UTF-8; convert the file"
        return RecordError(place, message, reason)
    if isinstance(error, EOFError):
        found = f"the JSON is truncated at byte {end}"
    elif isinstance(error, JSONDecodeError):
        found = (
            f"malformed or truncated JSON ({error.msg}{f' at character {error.pos}' if end is None else ''})"
        )
    else:
        found = f"found {error}"
    message = f": {found}, wanted {wanted}; correct it, or fetch the file again"
    return RecordError(place, message, reason)

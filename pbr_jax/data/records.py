"""Checked access to the records of a data file.

A `Record` is a JSON object that knows where it stands, so that every fault names file, record and
field in one line. Readers ask it for what they need and never check types themselves.
"""

import difflib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from pbr_jax.base.types import Document, UserError
from pbr_jax.data.dates import EPOCHS, parse_interval

Note = Callable[[str], None]
"""Is told, in one line each, what a reader mended in a known defective file."""


class RecordError(UserError):
    """The fault of one record. `place` says where it stands, `reason` names such records in the plural."""

    def __init__(self, place: str, message: str = "", reason: str = "") -> None:
        super().__init__(f"{place}{message}")
        self.place, self.reason = place, reason


def refuse(fault: RecordError) -> None:
    """Raises the fault: what readers do about one unless they are told otherwise."""
    raise fault


@contextmanager
def caught(on_fault: Callable[[RecordError], None]) -> Iterator[None]:
    """Gives `on_fault` the fault of a record that is read inside."""
    try:
        yield
    except RecordError as fault:
        on_fault(fault)


_NAMES = (
    "id",
    "question_id",
    "q_id",
    "query_id",
    "Name",
    "dialogue_id",
    "service_name",
)  # keys that name a record in the benchmarks' files
_EXACT = 2.0**53  # from here on a float has lost digits of the integer that it was
_KINDS = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}


class Dates(TypedDict):
    """The dates of a document."""

    time: float | None
    until: float | None


@dataclass(frozen=True, slots=True)
class Record:
    """A JSON object and its place.

    `label` names the record of the file ("record 3 (id '110')", counted from 0), `path` the way
    from there to this object ("profile[2]", empty for the record itself).
    """

    values: Mapping[str, Any]
    file: Path
    label: str = ""
    path: str = ""

    def fault(self, key: str, found: str, wanted: str, remedy: str = "") -> RecordError:
        """The error for field `key` of this record; `remedy` says what to do."""
        field = ".".join(part for part in (self.path, key) if part)
        place = ", ".join(part for part in (self.label, f"field '{field}'" if field else "") if part)
        remedy = remedy or "correct the record or take the file as released"
        message = f": found {found}, wanted {wanted}; {remedy}"
        reason = f"records without {wanted}{f' in {key}' if key else ''}"
        return RecordError(_one_line(f"{self.file}: {place}"), _one_line(message), reason)

    def check_keys(self, known: Collection[str]) -> None:
        """Raises UserError for a key that is none of the known ones."""
        if unknown := next((key for key in self.values if key not in known), None):
            near = difflib.get_close_matches(unknown, known, n=1)
            remedy = f"did you mean {near[0]}?" if near else "rename it or take it out"
            raise self.fault(unknown, "an unknown key", f"one of {', '.join(known)}", remedy)

    def has(self, key: str) -> bool:
        """Whether the field is there and not null."""
        return self.values.get(key) is not None

    def value(self, key: str) -> Any:
        """Any value, null too; UserError where the key is missing."""
        if key not in self.values:
            keys = ", ".join(self.values) or "none"
            raise self.fault(key, f"no such key (keys: {keys})", f"the key '{key}'")
        return self.values[key]

    def text(self, key: str) -> str:
        """A string; a number is written out, half of a surrogate pair becomes a question mark."""
        value = self.value(key)
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise self.fault(key, kind(value), "a string")
        return whole(str(value))

    def name(self, key: str) -> str:
        """An id: a string that is not blank, or a number, of which 7 and 7.0 are one.

        Half of a surrogate pair is a fault, and so is a float of so many digits that two ids may become one.
        """
        if not (text := self.text(key)).strip():
            raise self.fault(key, "an empty string", "an id")
        if isinstance(value := self.values[key], float):
            if abs(value) >= _EXACT:
                raise self.fault(key, f"{value!r}, which has lost digits", "an id: a string or an integer")
            return _numeral(value)
        if text != (released := str(value)):
            raise self.fault(key, f"half of a surrogate pair in {released!r}", "an id of whole characters")
        return text

    def names(self, key: str) -> list[str]:
        """A list of ids."""
        items = enumerate(self.items(key))
        return [self.inner({"": item}, f"{key}[{position}]").name("") for position, item in items]

    def items(self, key: str) -> list[Any]:
        """A list of anything."""
        value = self.value(key)
        if not isinstance(value, list):
            raise self.fault(key, kind(value), "a list")
        return value

    def record(self, key: str) -> "Record":
        """An object."""
        return self.inner(self.value(key), key)

    def records(self, key: str) -> list["Record"]:
        """A list of objects."""
        return [self.inner(value, f"{key}[{i}]") for i, value in enumerate(self.items(key))]

    def inner(self, value: Any, key: str) -> "Record":
        """The object `value` that stands at `key` of this one."""
        if not isinstance(value, dict):
            raise self.fault(key, kind(value), "an object")
        path = ".".join(part for part in (self.path, key) if part)
        return Record(value, self.file, self.label, path)

    def time(self, key: str) -> float | None:
        """The first moment of a date, in seconds since 1970-01-01 UTC; None where the record carries none."""
        return self.dates(key)["time"]

    def dates(self, key: str) -> Dates:
        """`time` and `until` of a document with this date; both None where the record carries none."""
        if not self.has(key) or not (text := self.text(key)).strip():
            return {"time": None, "until": None}
        text = _numeral(value) if isinstance(value := self.values[key], float) else text
        if (interval := parse_interval(text)) is None:
            raise self.fault(key, f"{text!r:.60}", f"a date such as 2018-03-07 or 2009, or {EPOCHS}")
        return moments(interval)

    def strings(self, *without: str) -> dict[str, str]:
        """All strings of the record and its numbers as strings, but for the keys `without`."""
        kept = {key: value for key, value in self.values.items() if key not in without}
        return {
            whole(key): self.text(key)
            for key, value in kept.items()
            if kind(value) in ("a string", "a number")
        }


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())


def _numeral(value: float) -> str:
    """A number's digits, without a fraction where that is 0."""
    return str(int(value)) if value.is_integer() else str(value)


def whole(text: str) -> str:
    """A text that UTF-8 can hold: half of a surrogate pair becomes a question mark."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def top_record(value: Any, file: Path, index: int) -> Record:
    """The record at position `index` of a file."""
    label = f"record {index}"
    if not isinstance(value, dict):
        raise Record({}, file, label).fault("", kind(value), "an object")
    names = (
        f"{label} ({key} {value[key]!r:.60})" for key in _NAMES if isinstance(value.get(key), (str, int))
    )
    return Record(value, file, next(names, label))


def kind(value: Any) -> str:
    """What a JSON value is, in words."""
    return _KINDS.get(type(value), "a number" if isinstance(value, (int, float)) else "something else")


def profile(entries: Iterable[tuple[Record, Document]], note: Note) -> tuple[Document, ...]:
    """The documents of one history, each id once.

    A record that stands there twice is kept once and noted; one id for two different texts is a
    UserError, since every later result would be ambiguous.
    """
    documents: dict[str, Document] = {}
    for record, document in entries:
        first = documents.setdefault(document.id, document)
        if first is document:
            continue
        if first.text != document.text:
            found = f"the id {document.id!r} for a second, different document"
            raise record.fault("id", found, "ids that are unique within a profile")
        note(f"{record.file}: {record.label}: document {document.id!r} stands there twice, kept once")
    return tuple(documents.values())


def moments(interval: tuple[float, float]) -> Dates:
    """`time` and `until` of a document with this date."""
    first, last = interval
    return {"time": first, "until": None if last == first else last}


def moment_after(documents: Iterable[Document]) -> float | None:
    """A second after the newest document, None where nothing is dated.

    Benchmarks date the history but not the question. All we know is that the question came after
    its own history; the earliest such moment keeps every other user's later documents out.
    """
    times = [document.time for document in documents if document.time is not None]
    return max(times) + 1.0 if times else None

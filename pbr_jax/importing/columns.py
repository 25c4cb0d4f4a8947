"""Columns of a table by meaning: given by flags, or proposed from names and values."""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from itertools import filterfalse
from typing import Any

from pbr_jax.base.types import UserError
from pbr_jax.data.dates import parse_interval
from pbr_jax.importing.tables import Reading, Row


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Column names of a table by meaning. "" and (): there is no such column.

    A row is a question (`input`) of a `user` with its answer (`output`). Without a separate table of
    documents, it is also a document for later questions of the user.

    `document`: columns that are shown in prompts and indexed by retrievers. (): `input` and `output`, or all
    columns of a table of documents. `query`: the text to search for, if it differs from `input`. `relevant`:
    ids of documents that contain the answer. `history`: ids of all documents that the question may see. Ids
    are separated by white space or commas.
    """

    user: str = ""
    input: str = ""
    output: str = ""
    time: str = ""
    id: str = ""
    document: tuple[str, ...] = ()
    query: str = ""
    history: str = ""
    relevant: str = ""
    category: str = ""

    @cached_property
    def named(self) -> dict[str, str]:
        """Every column that is named, by what names it."""
        one = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "document"}
        many = {f"document {place}": name for place, name in enumerate(self.document, 1)}
        return {what: name for what, name in one.items() if name} | many


_NAMES = {
    "user": ("user", "user_id", "customer", "customer_id", "author", "account", "client", "owner",
             "sender", "from", "person", "member", "username", "requester", "requester_id", "requester_email",
             "contact", "contact_id", "customer_email", "email", "email_address", "speaker", "customer_name",
             "full_name", "name"),
    "time": ("time", "date", "created", "created_at", "created_time", "created_on", "creation_date",
             "date_created", "timestamp", "datetime", "day", "when", "sent", "sent_at", "posted_at",
             "opened_at"),
    "input": ("input", "question", "query", "prompt", "request", "ticket", "message", "body", "description",
              "subject", "article", "context", "instruction"),
    "output": ("output", "answer", "reply", "response", "target", "completion", "headline", "title", "label",
               "rating", "text", "resolution", "agent_reply", "agent_response", "solution"),
    "id": ("id", "ticket_id", "row_id", "uid", "key", "ticket_number", "message_id"),
    "relevant": ("relevant", "evidence", "relevant_ids", "gold"),
    "category": ("category", "topic", "kind", "type", "tag"),
}  # fmt: skip
_UNNAMED = re.compile("[{}\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # what no name in a task.toml may hold
_DATED = 0.8  # share of a column's filled cells that are dates, to be proposed as time
_WRITTEN = re.compile(r"\s*\d{1,4}([./-])\d{1,2}\1\d{1,4}\b|.*\b(?:19|20)\d\d\b")  # like a date, in any form


def proposed(given: Columns, sample: Sequence[Row], reading: Reading) -> Columns:
    """Adds proposals by name for user, time, id, input, output and category to the given columns.

    Raises UserError if a given column does not exist, has a name that a task cannot contain, or is both input
    and output, or if no user or input can be proposed.
    """
    there = column_names(sample)
    for what, name in given.named.items():
        if name not in there:
            near = difflib.get_close_matches(name, there, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"the columns are {', '.join(there)}"
            raise UserError(f"--{what.split()[0]}: found no column {name!r}; {hint}")
    taken = {name for what, name in given.named.items() if not what.startswith("document")}
    asked = [what for what in _NAMES if what != "relevant" and not getattr(given, what)]
    free = [name for name in there if name not in taken]
    of_id = _unique if reading.same_id == "refuse" else all
    found: dict[str, Any] = _proposals(asked, free, sample, time=partial(_dated, reading), id=of_id)
    columns = replace(given, document=tuple(dict.fromkeys(given.document)), **found)
    if columns.input and columns.input == columns.output:
        raise UserError(f"--input and --output: found one column {columns.input!r} for both, wanted two")
    _check_needed(columns, there, user="who wrote it", input="what was asked")
    return columns


def proposed_documents(given: Columns, sample: Sequence[Row], reading: Reading) -> Columns:
    """The columns of a table of documents: user, time and id are called as in the table of questions, or else
    as names suggest; what is shown is `given.document`, or else all others.

    Raises UserError where a given column of documents is not there, and where no user can be proposed.
    """
    there = column_names(sample)
    if gone := [name for name in given.document if name not in there]:
        raise UserError(
            f"--document: found no column {gone[0]!r} in the documents; they have {', '.join(there)}"
        )
    found = {what: name for what in ("user", "time", "id") if (name := getattr(given, what)) in there}
    free = [name for name in there if name not in given.document and name not in found.values()]
    asked = [what for what in ("user", "time", "id") if what not in found]
    found |= _proposals(asked, free, sample, time=partial(_dated, reading))
    free = [name for name in free if name not in found.values()]
    document = tuple(dict.fromkeys(given.document)) or tuple(filterfalse(_UNNAMED.search, free))
    columns = Columns(**found, document=document)
    _check_needed(columns, there, user="whose document it is")
    return columns


def _proposals(
    asked: Sequence[str], free: Sequence[str], sample: Sequence[Row], **suits: Callable[[Sequence[str]], bool]
) -> dict[str, str]:
    """For each of the meanings the free column that bears the first of its names, if its cells suit."""
    found: dict[str, str] = {}
    for what in asked:
        columns = {_squeezed(name): name for name in reversed(free) if name not in found.values()}
        column = next((columns[name] for name in map(_squeezed, _NAMES[what]) if name in columns), None)
        if column and (what not in suits or suits[what]([*_cells(sample, column)])):
            found[what] = column
    return found


def _squeezed(name: str) -> str:
    """A column's name without case, blanks, underscores and other signs."""
    return re.sub(r"[\W_]+", "", name).lower()


def _cells(sample: Sequence[Row], column: str) -> Iterator[str]:
    """The cells of a column, without those that have a fault."""
    for row in sample:
        with suppress(UserError):
            yield row.text(column)


def column_names(sample: Sequence[Row]) -> list[str]:
    """The column names of these rows."""
    return list(dict.fromkeys(name for row in sample for name in row.values))


def _check_needed(columns: Columns, there: Sequence[str], **needed: str) -> None:
    if missing := [what for what in needed if not getattr(columns, what)]:
        says, flags = " or ".join(map(needed.__getitem__, missing)), " and ".join(map(flag, missing))
        raise UserError(f"found no column that says {says} among {', '.join(there)}; name it: {flags}")
    if bad := next(filter(_UNNAMED.search, columns.named.values()), None):
        raise UserError(f"found a column named {bad!r}, wanted no braces or control characters; rename it")


def flag(what: str) -> str:
    """How a column is named, in words."""
    return f"--{what} COLUMN, in Python columns={{{what!r}: 'COLUMN'}}"


def from_names(given: Mapping[str, str | Sequence[str]]) -> Columns:
    """Converts a mapping to `Columns`; `document` is one name or several. UserError for other keys."""
    known = [item.name for item in fields(Columns)]
    for what, name in given.items():
        if what not in known:
            near = difflib.get_close_matches(what, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise UserError(f"columns has no {what!r}; {hint}")
        if not isinstance(name, str) and (what != "document" or not all(isinstance(n, str) for n in name)):
            raise UserError(f"columns: {what} is {name!r:.40}, want a column's name")
    document = given.get("document", ())
    named: dict[str, Any] = {**given, "document": (document,) if isinstance(document, str) else (*document,)}
    return Columns(**named)


def _dated(reading: Reading, cells: Sequence[str]) -> bool:
    """Whether most cells are dates, or are written like some: a form that cannot be read is then a fault."""
    dates = [bool(parse_interval(reading.date(cell)) or _WRITTEN.match(cell)) for cell in cells if cell]
    return bool(dates) and sum(dates) >= _DATED * len(dates)


def _unique(cells: Sequence[str]) -> bool:
    return all(cells) and len(set(cells)) == len(cells)

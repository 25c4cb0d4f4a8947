"""A table as a folder of the benchmark `own`: documents, questions and a task that anyone can edit.

Every row is a question. Documents are the rows again, each for the user's later questions: rows of a user are
in the order of their dates, without dates in that of the file, so no history holds what came after. Or they
have a table of their own.
"""

import json
import sqlite3
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from pbr_jax.base import terminal
from pbr_jax.base.files import write_text, written
from pbr_jax.base.types import UserError
from pbr_jax.base.words import person
from pbr_jax.data.dates import parse_exact, readable
from pbr_jax.data.own import DOCUMENTS, LEFT_OUT
from pbr_jax.data.records import caught, whole
from pbr_jax.importing import task_file
from pbr_jax.importing.columns import Columns, column_names, flag, proposed, proposed_documents
from pbr_jax.importing.left_out import LeftOut
from pbr_jax.importing.tables import Reading, Row, rows
from pbr_jax.options import Benchmark

Table = str | Path | Iterable[Any]
"""A file or a folder of files, or rows in Python: a pandas frame, a dataset, mappings."""

_SAMPLE = 1000  # rows that columns are proposed from
_SHOWN, _LONGEST = 3, 100  # questions that are shown; characters of each
_TRAINING = f"{Benchmark.training}/"  # begins names that only users of the training split may have
_MEMORY = 16 << 10  # KiB of the rows that the database holds in memory


@dataclass(repr=False)
class Imported:
    """The result of an import: how the table was read.

    `document_columns`: columns of a separate table of documents. `unused`: columns of either table that are
    not used. `left_out`: the records that are not imported, a line for each reason. `longest`: the length of
    the longest answer in characters, if the task was derived from answers. `prompt`: the lines of task.toml
    that define who answers, and the request. `user_is`: the argument of the import.
    """

    folder: Path
    columns: Columns
    document_columns: Columns | None
    kind: str
    questions: int = 0
    users: int = 0
    documents: int = 0
    without_history: int = 0
    without_answer: int = 0
    first: str = ""
    last: str = ""
    longest: int = 0
    unused: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    prompt: tuple[str, ...] = ()
    user_is: str | None = None
    examples: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def text(self) -> str:
        """A summary in lines: columns, counts, dates, notes, the first questions and next steps."""
        lines = [f"columns   {_named(self.columns)}"]
        if self.unused:
            lines.append(f"not used  {', '.join(self.unused)}")
        lines.append(f"found     {self.questions} questions of {self.users} users, task of kind {self.kind}")
        if self.document_columns:
            lines.append(f"documents {self.documents}; {_named(self.document_columns)}")
        if self.first:
            lines.append(f"dates     {self.first} to {self.last}")
        none = f"{self.without_history} questions have none, since nothing came before them"
        lines.append(f"history   {none if self.without_history else 'every question has one'}")
        if self.longest:
            limit = task_file.new_tokens(self.longest)
            lines.append(f"answers   up to {self.longest} characters, so max_new_tokens is {limit}")
        lines += [f"left out  {line}" for line in self.left_out]
        lines += [f"note      {note}" for note in self.notes]
        lines += [f"example   {line.strip()[:_LONGEST]}" for line in self.examples]
        lines += [f"prompt    {line}" for line in self.prompt]
        if self.user_is is None:
            lines += [
                "          The user is the person whose history is shown. Do these two lines say who",
                "          answers, and whom? Where the user got the answers, as a customer does, edit",
                "          them, or import again with --user-is recipient.",
            ]
        lines += [
            f"written   {self.folder}: edit task.toml, then ask whether the history helps",
            f"          pbr-jax check {self.folder} --out checks/{self.folder.name}",
        ]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return terminal.visible(self.text())


def _named(columns: Columns) -> str:
    return ", ".join(f"{what}: {name}" for what, name in columns.named.items())


def import_table(
    source: Table,
    out: str | Path,
    columns: Columns | None = None,
    instruction: str = "",
    *,
    documents: Table | None = None,
    task: str = "",
    user_is: task_file.UserIs | None = None,
    reading: Reading = Reading(),  # noqa: B008
) -> Imported:
    """Writes a table (`tables.rows`) as a folder; the folder is new or empty.

    Args:
      columns: what is known of the columns; the others are proposed from their names.
      instruction: what the model is told to do; "": a general one.
      documents: the table of documents; None: the rows of `source` are.
      task: a benchmark's name or a TOML file, whose task is taken; "": one is made of the answers.
      user_is: whether the user wrote the answers or got them, for the wording; None: that is asked.
      reading: how the rows of both tables are read.

    Raises UserError for a folder that holds something, for columns that are not there or cannot be guessed,
    and for rows without a user or an input, with an id that stands twice, a date that cannot be read, or
    an id of a document that the question does not see.
    """
    folder = Path(out).resolve()  # a link to an empty folder stays, and that folder is filled
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(
            f"{out}: found something there, wanted a new or an empty folder; choose another --out"
        )
    wanted = task_file.Wanted(instruction, task, user_is)
    wanted.check()
    given = columns or Columns()
    shown = given if documents is None else replace(given, document=())
    left_out = LeftOut(skip_bad=reading.skip_bad)
    questions, of, unused = _opened(source, proposed, shown, left_out, reading)
    own = None
    if documents is not None:
        known = replace(of, document=given.document)
        documents, own, more = _opened(documents, proposed_documents, known, left_out, reading)
        unused = tuple(dict.fromkeys((*unused, *more)))
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=folder.parent, prefix=".pbr_jax-import-") as scratch,
        closing(sqlite3.connect(Path(scratch, "rows.sqlite"))) as database,
    ):
        made = Path(scratch, "made")
        made.mkdir()
        writer = _Import(database, of, own, made, _name(source), left_out, reading)
        told = writer.write(questions, documents, wanted)
        if left_out.count:
            write_text(made / LEFT_OUT, "".join(f"{line}\n" for line in left_out.lines()))
        made.replace(folder)  # at once, so that no half of it is ever taken for data
    return replace(told, folder=Path(out), unused=unused, left_out=left_out.lines())


def _name(source: Table) -> str:
    return str(source) if isinstance(source, str | Path) else "the table"


def _opened(
    source: Table,
    propose: Callable[[Columns, Sequence[Row], Reading], Columns],
    given: Columns,
    left_out: LeftOut,
    reading: Reading,
) -> tuple[Iterator[Row], Columns, tuple[str, ...]]:
    """All rows, the columns that are proposed from the first of them, and those that are not used."""
    table = rows(source, left_out, reading.encoding)
    sample = list(islice(table, _SAMPLE))
    if not sample:
        raise _no_row(source, left_out)
    try:
        columns = propose(given, sample, reading)
    except UserError as error:
        raise UserError(f"{_name(source)}: {error}") from None
    used = columns.named.values()
    return chain(sample, table), columns, tuple(name for name in column_names(sample) if name not in used)


def _no_row(source: Table, left_out: LeftOut) -> UserError:
    """The error for a table of which no row is left."""
    left_out.refuse()
    found = "; ".join(["found no row, wanted at least one", *left_out.lines()])
    return UserError(f"{_name(source)}: {found}")


@dataclass
class _Import:
    """One import: rows go into a database on disk, and come out user by user in the order of time."""

    database: sqlite3.Connection
    columns: Columns
    own: Columns | None
    folder: Path
    name: str
    left_out: LeftOut
    reading: Reading

    def __post_init__(self) -> None:
        for pragma in ("journal_mode=OFF", "synchronous=OFF", f"cache_size=-{_MEMORY}"):
            self.database.execute(f"PRAGMA {pragma}")  # what a crash leaves of it is thrown away
        columns = self.columns
        self.shown = (self.own or columns).document or tuple(filter(None, (columns.input, columns.output)))
        self.told = Imported(self.folder, columns, self.own, "generation")

    def write(
        self, questions: Iterable[Row], documents: Iterable[Row] | None, wanted: task_file.Wanted
    ) -> Imported:
        self._read("rows", questions, self.columns, "id")
        if documents is None or self.own is None:
            self.database.execute("CREATE VIEW documents AS SELECT * FROM rows")
        else:
            self._read("documents", documents, self.own, "user, id")
        self.left_out.refuse()
        while wrong := self._wrong_ids():
            self.left_out.refuse()
            self.database.executemany("DELETE FROM rows WHERE number = ?", wrong)
        self._count()
        told, answers = self.told, self._answers()
        made = task_file.of(answers, self.shown, self.columns, wanted)
        told.kind, told.prompt, told.user_is = made.kind, made.prompt, wanted.user_is
        told.longest = 0 if wanted.task else answers.longest
        for name, records in ((DOCUMENTS, self._documents()), ("dev.jsonl", self._questions())):
            with written(self.folder / name) as file:
                file.writelines(map(_line, records))
        write_text(self.folder / "task.toml", made.text)
        self._notes()
        return told

    def _read(self, name: str, table: Iterable[Row], of: Columns, unique: str) -> None:
        columns = (
            "number INTEGER PRIMARY KEY, place TEXT, user TEXT, id TEXT, moment REAL, finer REAL, "
            "until REAL, shown INTEGER, spelled TEXT, record TEXT"
        )
        self.database.execute(f"CREATE TABLE {name} ({columns}, UNIQUE ({unique}))")
        same = " AND ".join(f"{key} = :{key}" for key in unique.split(", "))
        values = ", ".join(f":{column.split()[0]}" for column in columns.split(", "))
        with terminal.bar(desc=name, unit="row") as bar:
            for number, row in enumerate(table):
                bar.update(1)
                with caught(self.left_out.fault):
                    cells = {"number": number, "place": row.place, **self._cells(row, number, of)}
                    earlier = self.database.execute(
                        f"SELECT place FROM {name} WHERE {same}", cells
                    ).fetchone()
                    keep = self.reading.same_id
                    if earlier and keep == "refuse":
                        raise row.fault(of.id, f"{cells['id']!r} a second time", "ids that are unique")
                    if earlier:
                        place = row.place if keep == "first" else earlier[0]
                        self.left_out.add(f"rows with an id that recurs, whose {keep} row is kept", place)
                    if not earlier or keep == "last":
                        self.database.execute(f"INSERT OR REPLACE INTO {name} VALUES ({values})", cells)
        self.database.execute(f"CREATE INDEX {name}_by_user ON {name} (user, moment, finer, number)")

    def _cells(self, row: Row, number: int, of: Columns) -> dict[str, Any]:
        """What the database holds of a row: the dates of `parse_exact`, whether its document has a text, the
        user's name as it is and as it is spelled, and the record, which has the cells as they are."""
        cells: dict[str, Any] = {}
        for what, name in of.named.items():
            cells[what] = _ids(row, name) if what in ("relevant", "history") else row.text(name)
        spelled, cells["user"] = cells["user"], person(cells["user"])
        cells |= {what: cells[what].strip() for what in ("id", "category") if what in cells}
        for what in ("user", "input"):
            if what in cells and not cells[what].strip():
                raise row.fault(getattr(of, what), "nothing", "a text", "fill it in, or take the row out")
        if cells["user"].startswith(_TRAINING):
            raise row.fault(of.user, f"{cells['user']!r:.60}", f"a name that does not begin {_TRAINING!r}")
        shown = any(row.text(name).strip() for name in self.shown)
        if of is self.own and not shown:
            raise row.fault(of.document[0], "nothing", "a text", "fill it in, or take the row out")
        moment, until, finer = self._date(row, of.time, cells) if of.time else (None, None, 0.0)
        cells["id"] = cells.get("id") or f"{'row' if of is self.columns else 'document'}-{number + 1}"
        dates = {"moment": moment, "until": until, "finer": finer}
        names = {"user": cells["user"], "spelled": spelled, "id": cells["id"]}
        return {**dates, **names, "shown": shown, "record": json.dumps(cells)}

    def _date(self, row: Row, column: str, cells: dict[str, Any]) -> tuple[float, float, float]:
        """The moments of a row's date (`parse_exact`), which stands in the cells as data has it."""
        written, form = cells["time"], self.reading.date_format
        cells["time"] = self.reading.date(written)
        if (found := parse_exact(cells["time"])) is not None:
            return found
        raise row.fault(
            column, f"{written!r:.40}",
            f"a date of the form {form}" if form else "a date such as 2024-02-03 or 2024-02-03T14:05",
            "write it so, or name its form, such as --date-format %d/%m/%Y, or take the column out if the "
            "oldest row is the first",
        )  # fmt: skip

    def _answers(self) -> task_file.Answers:
        answers = task_file.Answers()
        for (record,) in self.database.execute("SELECT record FROM rows ORDER BY number"):
            target = json.loads(record).get("output", "").strip()
            self.told.without_answer += not target
            answers.add(target)
        return answers

    def _count(self) -> None:
        told, count = self.told, "SELECT count(*), count(DISTINCT user) FROM rows"
        told.questions, told.users = self.database.execute(count).fetchone()
        if not told.questions:
            raise _no_row(self.name, self.left_out)
        (told.documents,) = self.database.execute("SELECT count(*) FROM documents WHERE shown").fetchone()
        if self.own is None and told.users == told.questions > 1:
            raise UserError(
                f"{self.name}: column '{self.columns.user}': found {told.users} users in as many rows, so "
                f"nobody has a history; name the column that says who wrote a row: {flag('user')}"
            )
        some = "SELECT 1 FROM rows JOIN documents USING (user) LIMIT 1"
        if self.own is not None and not self.database.execute(some).fetchone():
            raise UserError(
                f"column '{self.own.user}' of the documents: found none of the {told.users} users of column "
                f"'{self.columns.user}' of the table; name the column that both have: {flag('user')}"
            )

    @property
    def _sees(self) -> str:
        """Whether the question `r` sees the document `d`, by dates or else by their places (`data.own`)."""
        if self.columns.history:
            return "EXISTS (SELECT 1 FROM json_each(r.record, '$.history') WHERE value = d.id)"
        if self.columns.time and (self.own is None or self.own.time):
            return "d.until < r.moment"
        return "d.number < r.number" if self.own is None else "1"

    def _wrong_ids(self) -> list[tuple[int]]:
        """The numbers of rows that name a document which is not the user's, or a relevant one that the
        question does not see. Each is a fault."""
        earlier = "(ifnull(d.moment, 0), d.finer, d.number) < (ifnull(r.moment, 0), r.finer, r.number)"
        numbers: dict[tuple[int], None] = {}
        faults = {
            "history": (earlier, "no earlier row of the user") if self.own is None
            else ("1", "no document of the user"),
            "relevant": (self._sees, "which the question does not see"),
        }  # fmt: skip
        for what, (condition, found) in faults.items():
            if not (column := getattr(self.columns, what)):
                continue
            wrong = self.database.execute(
                f"SELECT r.number, r.place, named.value FROM rows r, json_each(r.record, '$.{what}') named "
                "WHERE NOT EXISTS "
                f"(SELECT 1 FROM documents d WHERE d.user = r.user AND d.id = named.value AND d.shown "
                f"AND {condition}) "
                "ORDER BY r.number"
            )
            wanted = f"ids of {'earlier rows' if self.own is None else 'documents'} of the user"
            for number, place, value in wrong:
                if (number,) not in numbers:
                    self.left_out.fault(Row({}, place).fault(column, f"{value!r:.60}, {found}", wanted))
                numbers[number,] = None
        return list(numbers)

    def _documents(self) -> Iterator[dict[str, Any]]:
        """A record of every document."""
        names = {name: what for what, name in (self.own or self.columns).named.items()}
        for user, cells, place in self._in_order("documents"):
            texts = {name: text for name in self.shown if (text := cells[names[name]]).strip()}
            if not texts:
                continue
            begin = {"id": cells["id"], "user": user}
            begin |= {} if self.own is not None else {"order": place, "question": cells["id"]}
            yield {**begin, **_some(cells, "time"), "text": " ".join(texts.values()), "fields": texts}

    def _questions(self) -> Iterator[dict[str, Any]]:
        """A record of every question."""
        needed = "relevant" if self.told.kind == "retrieval" else "target"
        labelled = self.told.kind in ("classification", "rating")
        for user, cells, place in self._in_order("rows"):
            question = {"id": cells["id"], "user": user, **({} if self.own is not None else {"order": place})}
            question |= _some(cells, "time", "input", "query")
            target = cells.get("output", "")
            target = target.strip() if labelled or not target.strip() else target
            question |= {"target": target} if target else {}
            question |= _some(cells, "category", "relevant")
            question |= {"history": cells["history"]} if self.columns.history else {}
            yield question if needed in question else {**question, "scored": False}

    def _in_order(self, table: str) -> Iterator[tuple[str, dict[str, Any], int]]:
        """Each row's user, cells, and place among the user's rows. Of two tables the order is that of the
        files, so that a sample of the questions is that of any other reader of them."""
        order, place = "number", "0"
        if self.own is None:
            order = "user, moment, finer, number"
            place = "row_number() OVER (PARTITION BY user ORDER BY moment, finer, number) - 1"
        for user, record, at in self.database.execute(
            f"SELECT user, record, {place} FROM {table} ORDER BY {order}"
        ):
            yield user, json.loads(record), at

    def _notes(self) -> None:
        told, of, notes = self.told, self.columns, self.told.notes
        none = "json_array_length(r.record, '$.history') = 0"  # or else the user's first is not seen
        (told.without_history,) = self.database.execute(
            "SELECT count(*) FROM rows r LEFT JOIN (SELECT user, min(until) AS until, min(number) AS number "
            "FROM documents WHERE shown GROUP BY user) d ON d.user = r.user WHERE "
            f"{none if of.history else f'd.user IS NULL OR NOT {self._sees}'}"
        ).fetchone()
        if of.time:
            ends = "SELECT record FROM rows WHERE moment IS NOT NULL ORDER BY moment {} LIMIT 1"
            told.first, told.last = (
                readable(json.loads(self.database.execute(ends.format(way)).fetchone()[0])["time"])
                for way in ("", "DESC")
            )
        elif self.own is None:
            notes.append("no column of dates: rows count in the order of the file")
        if self.own is not None and not of.history and self._sees == "1":
            lacks = "documents" if of.time else "questions"
            notes.append(f"no dates of {lacks}: every question sees all documents of its user")
        if not of.output:
            notes.append("no column of answers: only which documents are found can be measured")
        elif told.without_answer:
            notes.append(f"{told.without_answer} rows have no answer: they are not scored")
        spellings = (
            "SELECT user FROM (SELECT user, spelled FROM rows UNION SELECT user, spelled FROM documents) "
            "GROUP BY user HAVING count(*) > 1 ORDER BY user"
        )
        if joined := self.database.execute(spellings).fetchall():
            notes.append(
                f"{len(joined)} users are spelled in several ways, which differ in blanks, invisible "
                f"characters or the form of Unicode, and count as one each: {joined[0][0]!r:.60} is the first"
            )
        self.database.create_function("hash", 1, hash)  # texts are long to sort
        copies = "SELECT count(*) - 1 AS more FROM rows GROUP BY user, hash(json_remove(record, '$.id'))"
        if more := self.database.execute(f"SELECT sum(more) FROM ({copies})").fetchone()[0]:
            notes.append(f"{more} rows repeat another of the same user in all but the id: take out copies")
        if not of.relevant:
            notes.append("no column of relevant ids (--relevant): recall is not measured")
        told.examples = [_line(question) for question in islice(self._questions(), _SHOWN)]


def _ids(row: Row, name: str) -> list[str]:
    value = row.values.get(name)
    if isinstance(value, list | tuple):
        return [whole(str(item)) for item in value]
    return row.text(name).replace(",", " ").split()


def _some(cells: dict[str, Any], *names: str) -> dict[str, Any]:
    """The cells of these names that hold something."""
    return {name: cells[name] for name in names if cells.get(name)}


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"

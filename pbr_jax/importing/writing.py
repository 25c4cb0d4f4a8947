"""A table as a folder of the benchmark `own`: documents, questions and a task that anyone can edit.

Rows of a user are in the order of their dates, without dates in that of the file. Every row is a question,
and a document of the user's later questions, so no history holds what came after.
"""

import json
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

from pbr_jax import terminal
from pbr_jax.data.dates import parse_interval
from pbr_jax.data.own import DOCUMENTS
from pbr_jax.files import write_lines, write_text
from pbr_jax.importing import task_file
from pbr_jax.importing.columns import Columns, proposed
from pbr_jax.importing.tables import Row, rows
from pbr_jax.types import UserError

_SAMPLE = 1000  # rows that columns are proposed from
_SHOWN = 3  # questions that are shown


@dataclass
class Imported:
    """What was understood of a table. `histories`: how many questions have so many earlier rows."""

    folder: Path
    columns: Columns
    kind: str
    questions: int = 0
    users: int = 0
    without_history: int = 0
    without_answer: int = 0
    first: str = ""
    last: str = ""
    examples: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def import_table(
    source: str | Path | Iterable[Any], out: str | Path, columns: Columns | None = None, instruction: str = ""
) -> Imported:
    """Writes a table (`tables.rows`) as a folder; the folder is new or empty.

    Raises UserError for a folder that holds something, for columns that are not there or cannot be guessed,
    and for rows without a user or an input, with an id that stands twice, or a date that cannot be read.
    """
    folder = Path(out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(
            f"{folder}: found something there, wanted a new or an empty folder; choose another --out"
        )
    table = rows(source)
    sample = list(islice(table, _SAMPLE))
    if not sample:
        raise UserError(
            f"{source if isinstance(source, str | Path) else 'the table'}: found no row, wanted at least one"
        )
    chosen = proposed(columns or Columns(), sample)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=folder.parent, prefix=".pbr_jax-import-") as scratch,
        closing(sqlite3.connect(Path(scratch, "rows.sqlite"))) as database,
    ):
        made = Path(scratch, "made")
        made.mkdir()
        told = _Import(database, chosen, made, instruction).write(chain(sample, table))
        made.replace(folder)  # at once, so that no half of it is ever taken for data
    return replace(told, folder=folder)


class _Import:
    """One import: rows go into a database on disk, and come out user by user in the order of time."""

    def __init__(
        self, database: sqlite3.Connection, columns: Columns, folder: Path, instruction: str
    ) -> None:
        self.database, self.columns, self.folder, self.instruction = database, columns, folder, instruction
        self.targets: Counter[str] = Counter()
        self.told = Imported(folder, columns, "generation")

    def write(self, table: Iterable[Row]) -> Imported:
        self._read(table)
        told, shown = (
            self.told,
            self.columns.document or tuple(filter(None, (self.columns.input, self.columns.output))),
        )
        counted = self.database.execute("SELECT count(*), count(DISTINCT user) FROM rows").fetchone()
        told.questions, told.users = counted
        if told.users == told.questions > 1:
            raise UserError(
                f"column '{self.columns.user}': found {told.users} users in as many rows, so nobody has a "
                "history; name the column that says who wrote a row: --user COLUMN"
            )
        task = task_file.of(self.targets, told.questions, shown, self.columns, self.instruction)
        told.kind = task.kind
        write_lines(self.folder / DOCUMENTS, (line for line, _ in self._lines(shown)))
        write_lines(self.folder / "dev.jsonl", (line for _, line in self._lines(shown)))
        write_text(self.folder / "task.toml", task.text)
        self._notes()
        return told

    def _read(self, table: Iterable[Row]) -> None:
        self.database.execute(
            "CREATE TABLE rows "
            "(number INTEGER PRIMARY KEY, user TEXT, id TEXT UNIQUE, moment REAL, record TEXT)"
        )
        with terminal.bar(desc="rows", unit="row") as bar:
            for number, row in enumerate(table):
                values = self._record(row, number)
                taken = self.database.execute(
                    "INSERT OR IGNORE INTO rows VALUES (?, ?, ?, ?, ?)",
                    (number, values["user"], values["id"], values.pop("moment"), json.dumps(values)),
                )
                if not taken.rowcount:
                    raise row.fault(self.columns.id, f"{values['id']!r} a second time", "ids that are unique")
                bar.update(1)
        self.database.execute("CREATE INDEX by_user ON rows (user, moment, number)")

    def _record(self, row: Row, number: int) -> dict[str, Any]:
        """A row's cells as the files have them."""
        of, cells = self.columns, {}
        for what, name in of.named.items():
            cells[what] = row.text(name) if what != "relevant" else " ".join(_ids(row, name))
        for what in ("user", "input"):
            if not cells[what].strip():
                raise row.fault(getattr(of, what), "nothing", "a text", "fill it in, or take the row out")
        moment = None
        if of.time:
            interval = parse_interval(cells["time"])
            if interval is None:
                raise row.fault(
                    of.time, f"{cells['time']!r:.40}", "a date such as 2024-02-03 or 2024-02-03T14:05",
                    "write it so, or take --time away: rows then count in the order of the file",
                )  # fmt: skip
            moment = interval[0]
        if target := cells.get("output", ""):
            self.targets[target] += len(self.targets) < 100 or target in self.targets
        else:
            self.told.without_answer += 1
        return {**cells, "id": cells.get("id") or f"row-{number + 1}", "moment": moment}

    def _lines(self, shown: Sequence[str]) -> Iterator[tuple[str, str]]:
        """A document and a question of every row."""
        names = {name: what for what, name in self.columns.named.items()}
        previous, place = None, 0
        for user, record in self.database.execute(
            "SELECT user, record FROM rows ORDER BY user, moment, number"
        ):
            cells = json.loads(record)
            place = place + 1 if user == previous else 0
            previous = user
            begin = {"id": cells["id"], "user": user, "order": place}
            dated = {"time": cells["time"]} if self.columns.time else {}
            texts = {name: text for name in shown if (text := cells[names[name]])}
            document = {**begin, **dated, "question": cells["id"], "text": " ".join(texts.values())}
            question = {**begin, **dated, "input": cells["input"]}
            if cells.get("output"):
                question["target"] = cells["output"]
            if cells.get("category"):
                question["category"] = cells["category"]
            if cells.get("relevant"):
                question["relevant"] = cells["relevant"].split()
            needed = "relevant" if self.told.kind == "retrieval" else "target"
            if needed not in question:
                question["scored"] = False
            yield _line(document | {"fields": texts}), _line(question)

    def _notes(self) -> None:
        told, of = self.told, self.columns
        (told.without_history,) = self.database.execute("SELECT count(DISTINCT user) FROM rows").fetchone()
        if of.time:
            ends = "SELECT record FROM rows WHERE moment IS NOT NULL ORDER BY moment {} LIMIT 1"
            told.first, told.last = (
                json.loads(self.database.execute(ends.format(way)).fetchone()[0])["time"]
                for way in ("", "DESC")
            )
        else:
            told.notes.append("no column of dates: rows count in the order of the file")
        if not of.output:
            told.notes.append("no column of answers: only which documents are found can be measured")
        elif told.without_answer:
            told.notes.append(f"{told.without_answer} rows have no answer: they are not scored")
        if not of.relevant:
            told.notes.append("no relevant ids: recall cannot be measured")
        told.examples = [line for _, line in islice(self._lines(of.document or (of.input,)), _SHOWN)]


def _ids(row: Row, name: str) -> list[str]:
    value = row.values.get(name)
    if isinstance(value, list | tuple):
        return [str(item) for item in value]
    return row.text(name).replace(",", " ").split()


def _line(record: dict[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False) + "\n"

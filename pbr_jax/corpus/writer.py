"""What writes a document store: all at once (`build`), or a living one bit by bit."""

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from pbr_jax import faults
from pbr_jax.corpus.database import connected
from pbr_jax.corpus.schema import FORGOTTEN, GONE, SHARED, TABLES, flags, stored
from pbr_jax.corpus.values import check_texts, latest, moment, values_of
from pbr_jax.corpus.visibility import answer_key, key
from pbr_jax.locks import locked
from pbr_jax.types import Document, Example, UserError

_MODULUS = 1 << 256

Row = tuple[Any, ...]


def build(
    path: Path,
    examples: Iterable[Example],
    document_target: str | None = None,
    training: Iterable[Example] = (),
    *,
    newest: int | None = None,
    shared: Mapping[str, Iterable[Document]] | None = None,
) -> None:
    """Writes the examples, their documents and the `shared` ones to a new SQLite file, streaming.

    `document_target` names the field of a document that plays the role of an answer. `training` are
    the examples of the training split. `newest` cuts what every example that is not of it sees of its own
    history to so many documents; others see the whole of it, and whether it nearly held the target is judged
    of the whole one. `shared` documents stand by their source. Raises UserError, which names the source, for
    two shared documents of one id.
    """
    path.unlink(missing_ok=True)
    with faults.located(path), closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript(
            "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA secure_delete=ON; "
            f"PRAGMA cache_size=-65536; {TABLES} BEGIN;"
        )
        writer = Writer(connection, document_target)
        for example in examples:
            writer.example(example, training=False, newest=newest)
        for example in training:
            writer.example(example, training=True)
        for source, documents in (shared or {}).items():
            for number, document in enumerate(documents):
                writer.passage(document, f"{source}: record {number}")
        writer.finish()
        connection.execute("COMMIT")


class Writer:
    """Writes to an open database, inside a transaction of the caller's; `finish` comes last."""

    def __init__(self, connection: sqlite3.Connection, document_target: str | None = None) -> None:
        self._sql = connection
        self._codes: dict[str, int] = {}
        names = ("rows", "codes", "positions", "documents", "users", "erased", "generation", "restored",
                 "remarks")  # fmt: skip
        self.values: dict[str, Any] = {**dict.fromkeys(names, 0), "content": "0", "target": document_target}
        self.values |= connection.execute("SELECT name, value FROM summary").fetchall()
        self.values["generation"] += 1
        self._before = self.values["erased"]
        self._target = self.values["target"]
        self._content = int(self.values["content"], 16)

    @property
    def erased(self) -> bool:
        """Whether this writer has deleted anything."""
        return self.values["erased"] > self._before

    def finish(self) -> None:
        """Writes the counts and the hash of the content."""
        self.values["content"] = f"{self._content:064x}"
        self._sql.executemany("INSERT OR REPLACE INTO summary VALUES (?,?)", self.values.items())

    def example(self, example: Example, *, training: bool, newest: int | None = None) -> None:
        """Adds an example; the documents of its profile that are there already keep their rows."""
        # All are kept, for whom the user is a neighbour; the example sees those that are left.
        whole = []
        for document in example.profile:
            user, row, _ = self._known(document)
            whole.append(self._document(user, document) if row is None else row)
        rows = [whole[i] for i in latest(example.profile, newest)]
        position = self._next("positions")
        values = (
            position, int(training), key(example.id), self._user(example.user_id), moment(example.time),
            answer_key(example.target), *flags(example.target, example.profile, self._target),
            int(example.scored), example.id, example.query, example.input, example.target,
            json.dumps(example.relevant), example.category, json.dumps(example.alternatives),
        )  # fmt: skip
        self._insert("examples", values)
        if example.unit:
            self._insert("units", (position, example.unit))
        if example.options:
            self._insert("choices", (position, json.dumps(example.options)))
        self._insert("profiles", (position, _blob(rows), _blob(whole)))

    def passage(self, document: Document, place: str) -> None:
        """Adds a document of a shared collection; `place` is where it was read."""
        user, row, others = self._known(document)
        if row is not None or others:
            raise UserError(
                f"{place}, field 'id': found {document.id!r} a second time, wanted ids that are unique among "
                "all passages; give every passage its own"
            )
        self._document(user, document)

    def append(self, documents: Iterable[Document]) -> list[int]:
        """Rows of documents that are added; one of an id that its owner has replaces what was there."""
        changed: dict[int, dict[int, int]] = {}
        order, placed = [], {}
        for document in documents:
            check_texts(document)
            user, row, older = self._known(document)
            row = self._document(user, document) if row is None else row
            for one in older:
                self._erase(one)
                changed.setdefault(user, {})[one] = row
            placed[user, document.id] = row
            order.append((user, document.id))
        for user, rows in changed.items():
            self._mend_profiles(user, rows)
        return [placed[place] for place in order]

    def delete(self, user: int, ids: Iterable[str] | None = None) -> list[int]:
        """Rows of a user's documents that are deleted: those of some ids, or all."""
        all_ = self._sql.execute("SELECT row FROM documents WHERE user=?", (user,)) if ids is None else ()
        rows = [row for (row,) in all_]
        for id in dict.fromkeys(ids or ()):
            of_id = self._of_id(user, id, hidden=True)
            if not of_id:
                raise UserError(f"document {id!r} is not in the store; nothing was deleted")
            rows += of_id
        for row in rows:
            self._erase(row)
        self._mend_profiles(user, dict.fromkeys(rows, GONE))
        return rows

    def forget(self, user: int) -> None:
        """Deletes a user: documents, examples and name. The code is not given to anybody else."""
        if user == SHARED:
            raise UserError(
                'found user "", want the user to forget: nobody owns shared documents; delete them'
            )
        self.delete(user)
        columns = [name for _, name, *_ in self._sql.execute("PRAGMA table_info(examples)")][1:]
        query = (
            "SELECT position, unit, options FROM examples LEFT JOIN units USING (position) "
            "LEFT JOIN choices USING (position) WHERE user=?"
        )
        for position, unit, options in self._sql.execute(query, (user,)).fetchall():
            if unit is not None:
                self._change("units", position, False, unit=None)
            if options is not None:
                self._change("choices", position, False, options=None)
            self._change("examples", position, False, **dict.fromkeys(columns))
            self._change("profiles", position, False, rows=None, whole=None)
        self._change("users", user, False, key=None, name=None, gone=self.values["generation"])
        self.values["users"] -= 1
        self.values["erased"] += 1

    def hide(self, user: str, id: str) -> bool:
        """Takes a document of a user ("": a shared one) from sight, until `restore`; whether it was there.

        Its row, its text and its place in what examples see stay.
        """
        rows = self._of_id(self.code(user), id)
        for row in rows:
            self._change("documents", row, True, gone=self.values["generation"])
            self.values["documents"] -= 1
        return bool(rows)

    def restore(self, user: str, id: str) -> bool:
        """Shows a document again in the row that it had; nothing where another of its id has come since."""
        code = self.code(user)
        rows = () if self._of_id(code, id) else list(self._of_id(code, id, hidden=True))[-1:]
        for row in rows:
            self._change("documents", row, True, gone=None)
            self.values["documents"] += 1
            self.values["restored"] = self.values["generation"]
        return bool(rows)

    def admit(self, user: str) -> None:
        """Makes a user known who may have no documents yet."""
        self._user(user)

    def erase(self, user: str, id: str) -> None:
        """Deletes a document of a user ("": a shared one) where it is there, be it hidden."""
        if self._of_id(self.code(user), id, hidden=True):
            self.delete(self.code(user), [id])

    def code(self, user: str) -> int:
        """The code of a user, `SHARED` for "", `GONE` where there is none of this name."""
        query = "SELECT code FROM users WHERE key=? AND name=?"
        known = self._sql.execute(query, (key(user), user)).fetchone() if user else (SHARED,)
        return GONE if known is None else known[0]

    # -- one row ---------------------------------------------------------------------------------------

    def _insert(self, table: str, values: Row) -> None:
        self._sql.execute(f"INSERT INTO {table} VALUES ({','.join('?' * len(values))})", values)
        self._count(table, values, 1)

    def _change(self, table: str, place: int, living: bool, **values: Any) -> None:
        """Overwrites columns of a row, which is `living` or counts for the hash of the content no more."""
        query = f"SELECT * FROM {table} WHERE rowid=?"
        self._count(table, self._sql.execute(query, (place,)).fetchone(), -1)
        names = ", ".join(f"{name}=?" for name in values)
        self._sql.execute(f"UPDATE {table} SET {names} WHERE rowid=?", (*values.values(), place))
        if living:
            self._count(table, self._sql.execute(query, (place,)).fetchone(), 1)

    def _count(self, table: str, values: Row, sign: int) -> None:
        """Adds a row to the hash of the content: the sum of the hashes of living rows, in any order."""
        item = hashlib.blake2b(repr((table, *values)).encode(), digest_size=32).digest()
        self._content = (self._content + sign * int.from_bytes(item, "big")) % _MODULUS

    def _next(self, counter: str) -> int:
        self.values[counter] += 1
        return self.values[counter] - 1

    def _user(self, name: str) -> int:
        """The code of a user, who may be new."""
        if not name:
            raise UserError("a user_id is empty, want the user's name: nobody owns shared documents")
        if name.startswith(FORGOTTEN):
            raise UserError(f"the user_id {name!r} begins with a NUL character; give the user another name")
        if name not in self._codes:
            query = "SELECT code FROM users WHERE key=? AND name=?"
            known = self._sql.execute(query, (key(name), name)).fetchone()
            self._codes[name] = self._next("codes") if known is None else known[0]
            if known is None:
                self._insert("users", (self._codes[name], key(name), None, name))
                self.values["users"] += 1
        return self._codes[name]

    def _known(self, document: Document) -> tuple[int, int | None, list[int]]:
        """The owner's code, the row of an equal document, and the rows of others of the same id."""
        if document.shared != (document.user_id == ""):
            raise UserError(
                f"document {document.id!r} has user_id {document.user_id!r} and shared = {document.shared}; "
                'want user_id "" for shared documents and the owner\'s name for all others'
            )
        user = SHARED if document.shared else self._user(document.user_id)
        others = self._of_id(user, document.id)
        row = next((row for row, there in others.items() if there == values_of(document)), None)
        return user, row, [one for one in others if one != row]

    def _of_id(self, user: int, id: str, *, hidden: bool = False) -> dict[int, Row]:
        """The documents of this owner and id, by row: (id, text, fields, time, until)."""
        query = (
            "SELECT row, id, text, fields, time, until FROM documents JOIN texts USING (row) "
            f"WHERE user=? AND key=? {'' if hidden else 'AND gone IS NULL '}ORDER BY row"
        )
        records = self._sql.execute(query, (user, key(id)))
        return {row: tuple(values) for row, *values in records if values[0] == id}

    def _document(self, user: int, document: Document) -> int:
        row = self._next("rows")
        id, text, fields, time, until = values_of(document)
        answer = answer_key(document.fields.get(self._target)) if self._target else None
        self._insert("documents", (row, user, key(id), answer, time, until, None))
        self._insert("texts", (row, id, text, fields))
        self.values["documents"] += 1
        return row

    def _erase(self, row: int) -> None:
        seen = self._seen(row)
        self._change("texts", row, False, id=None, text=None, fields=None)
        self._change("documents", row, False, user=GONE, key=None, answer=None, time=None, until=None,
                     gone=self.values["generation"])  # fmt: skip
        self.values["documents"] -= seen
        self.values["erased"] += 1

    def _seen(self, row: int) -> int:
        """1 for a document that is not hidden, else 0."""
        return self._sql.execute("SELECT gone IS NULL FROM documents WHERE row=?", (row,)).fetchone()[0]

    def _mend_profiles(self, user: int, changed: Mapping[int, int]) -> None:
        """Puts newer rows in place of old ones in what this user's examples see; `GONE`: nothing."""
        query = (
            "SELECT position, target, rows, whole FROM examples JOIN profiles USING (position) WHERE user=?"
        )
        for position, target, *old in self._sql.execute(query, (user,)).fetchall() if changed else ():
            rows, whole = (_current(np.frombuffer(blob, np.int64).tolist(), changed) for blob in old)
            if _blob(whole) != old[1]:
                self._change("profiles", position, True, rows=_blob(rows), whole=_blob(whole))
                documents = [stored(self._sql, row) for row in whole if self._seen(row)]
                empty, held, near = flags(target, documents, self._target)
                self._change("examples", position, True, empty=empty, held=held, near=near)


@contextmanager
def writing(path: Path) -> Iterator[Writer]:
    """A writer, alone among all threads and processes; what it did is kept as a whole, or nothing is.

    What it has deleted stays in the store's files until `Database.purge`.
    """
    with locked(path.with_name(f"{path.name}.lock")), connected(path) as connection:
        connection.execute("BEGIN IMMEDIATE")
        try:
            writer = Writer(connection)
            yield writer
            writer.finish()
            connection.execute("COMMIT")
        finally:
            connection.rollback()
        if writer.erased and writer.values["erased"] > writer.values["documents"] + 1000:
            connection.execute("UPDATE summary SET value=0 WHERE name='erased'")
            connection.execute("VACUUM")


def _current(rows: Iterable[int], changed: Mapping[int, int]) -> list[int]:
    """Rows with newer ones in place of old ones, each once."""
    current: dict[int, None] = {}
    for row in rows:
        while row in changed:
            row = changed[row]
        current[row] = None
    current.pop(GONE, None)
    return list(current)


def _blob(rows: Sequence[int]) -> bytes:
    return np.array(rows, np.int64).tobytes()

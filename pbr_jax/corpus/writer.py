"""Writing a document store: all at once (`build`), or a living one bit by bit (`writing`)."""

import hashlib
import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from pbr_jax.base import system_errors, terminal
from pbr_jax.base.locks import locked
from pbr_jax.base.types import Document, Example, UserError
from pbr_jax.corpus.database import connected
from pbr_jax.corpus.schema import (
    FORGOTTEN,
    GONE,
    SHARED,
    TABLES,
    check_texts,
    corpus_of,
    flags,
    latest,
    moment,
    values_of,
    whole_of,
)  # fmt: skip
from pbr_jax.corpus.visibility import answer_key, key
from pbr_jax.options import Corpus
from pbr_jax.text.passages import passages

_MODULUS = 1 << 256

Row = tuple[Any, ...]


class Writer:
    """Writes to an open database, inside a transaction of the caller's; `finish` comes last."""

    def __init__(
        self, connection: sqlite3.Connection, document_target: str | None = None, corpus: Corpus | None = None
    ) -> None:
        self._sql = connection
        self._codes: dict[str, int] = {}
        self._latest: dict[tuple[str, str], tuple[Document, list[int]]] = {}  # of the last example's profile
        names = ("rows", "codes", "positions", "documents", "users", "erased", "generation", "remarks")
        self.values: dict[str, Any] = {**dict.fromkeys(names, 0), "content": "0", "target": document_target}
        if corpus is not None:
            self.values["corpus"] = json.dumps(asdict(corpus))
        self.values |= connection.execute("SELECT name, value FROM summary").fetchall()
        self._corpus = corpus_of(self.values.get("corpus", 0))
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
        whole, before, self._latest = [], self._latest, {}
        for document in example.profile:
            place = document.user_id, document.id
            known, rows = self._latest.get(place) or before.get(place) or (None, [])
            if known != document:
                user, rows, _ = self._known(document)
                rows = rows or self._document(user, document)
            self._latest[place] = document, rows
            whole.append(rows)
        rows = [row for i in latest(example.profile, newest) for row in whole[i]]
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
        self._insert("profiles", (position, _blob(rows), _blob([row for of in whole for row in of])))

    def passage(self, document: Document, place: str) -> None:
        """Adds a document of a shared collection; `place` is where it was read."""
        user, rows, others = self._known(document)
        if rows or others:
            raise UserError(
                f"{place}, field 'id': found {document.id!r} a second time, wanted ids that are unique among "
                "all passages; give every passage its own"
            )
        self._document(user, document)

    def append(self, documents: Iterable[Document]) -> list[int]:
        """Rows of documents that are added, of all their passages; one of an id that its owner has replaces
        what was there."""
        changed: dict[int, dict[int, list[int]]] = {}
        order, placed = [], {}
        for document in documents:
            check_texts(document)
            user, rows, older = self._known(document)
            rows = rows or self._document(user, document)
            for one in older:
                self._erase(one)
                changed.setdefault(user, {})[one] = rows
            placed[user, document.id] = rows
            order.append((user, document.id))
        for user, replaced in changed.items():
            self._mend_profiles(user, replaced)
        return [row for place in order for row in placed[place]]

    def delete(self, user: int, ids: Iterable[str] | None = None) -> list[int]:
        """Rows of a user's documents that are deleted: those of some ids, or all; and examples with such an
        id, as of a table whose rows are questions and documents."""
        all_ = self._sql.execute("SELECT row FROM documents WHERE user=?", (user,)) if ids is None else ()
        rows = [row for (row,) in all_]
        for id in (ids := [*dict.fromkeys(ids or ())]):
            of_id = self._of_id(user, id, hidden=True)
            if not of_id:
                raise UserError(f"document {id!r} is not in the store; nothing was deleted")
            rows += of_id
        for row in rows:
            self._erase(row)
        self._mend_profiles(user, {row: [] for row in rows})
        self._forget_examples(user, ids)
        return rows

    def forget(self, user: int) -> None:
        """Deletes a user: documents, examples and name. The code is not given to anybody else."""
        if user == SHARED:
            raise UserError(
                'found user "", want the user to forget: nobody owns shared documents; delete them'
            )
        self.delete(user)
        self._forget_examples(user)
        self._change("users", user, False, key=None, name=None, gone=self.values["generation"])
        self.values["users"] -= 1
        self.values["erased"] += 1

    def _forget_examples(self, user: int, ids: Sequence[str] | None = None) -> None:
        """Deletes a user's examples: those with one of these ids, or all."""
        columns = [name for _, name, *_ in self._sql.execute("PRAGMA table_info(examples)")][1:]
        query = (
            "SELECT position, id, unit, options FROM examples LEFT JOIN units USING (position) "
            "LEFT JOIN choices USING (position) WHERE user=?"
        )
        for position, id, unit, options in self._sql.execute(query, (user,)).fetchall():
            if ids is not None and id not in ids:
                continue
            if unit is not None:
                self._change("units", position, False, unit=None)
            if options is not None:
                self._change("choices", position, False, options=None)
            self._change("examples", position, False, **dict.fromkeys(columns))
            self._change("profiles", position, False, rows=None, whole=None)
            self.values["erased"] += 1

    def hide(self, user: str, id: str) -> None:
        """Takes a document of a user ("": a shared one) from sight, where it is there.

        Its row, its text and its place in what examples see stay.
        """
        for row in self._of_id(self.code(user), id):
            self._change("documents", row, True, gone=self.values["generation"])
            self.values["documents"] -= 1

    def admit(self, user: str) -> None:
        """Makes a user known who may have no documents yet."""
        self._user(user)

    def erase(self, user: str, *ids: str) -> None:
        """Deletes documents of a user ("": shared ones) that are there, be they hidden."""
        code = self.code(user)
        if there := [id for id in ids if self._of_id(code, id, hidden=True)]:
            self.delete(code, there)

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
        self._latest = {}
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

    def _known(self, document: Document) -> tuple[int, list[int], list[int]]:
        """The owner's code, the rows of an equal document, and the rows of others of the same id."""
        if document.shared != (document.user_id == ""):
            raise UserError(
                f"document {document.id!r} has user_id {document.user_id!r} and shared = {document.shared}; "
                'want user_id "" for shared documents and the owner\'s name for all others'
            )
        if document.part_of:
            raise UserError(
                f"document {document.id!r} is a passage of {document.part_of!r}; add the whole document, "
                "which is cut here"
            )
        user = SHARED if document.shared else self._user(document.user_id)
        wholes, values = self._of_id(user, document.id), values_of(document)
        firsts = {whole: row for row, whole in reversed(wholes.items())}.items()
        equal = next((n for n, row in firsts if values_of(whole_of(self._sql, row)) == values), None)
        rows = [row for row, whole in wholes.items() if whole == equal]
        return user, rows, [row for row, whole in wholes.items() if whole != equal]

    def _whole(self, row: int) -> int:
        """The first of the rows of the document that this row is a passage of; the row itself if of none."""
        found = self._sql.execute("SELECT whole FROM passages WHERE row=?", (row,)).fetchone()
        return row if found is None else found[0]

    def _of_id(self, user: int, id: str, *, hidden: bool = False) -> dict[int, int]:
        """The rows of the documents of this owner and id, and of their passages, ascending; each with the
        first row of its document."""
        query = (
            "SELECT row, id, coalesce(whole, row) FROM documents JOIN texts USING (row) LEFT JOIN passages "
            f"USING (row) WHERE user=? AND key=? {'' if hidden else 'AND gone IS NULL '}ORDER BY row"
        )
        return {row: whole for row, name, whole in self._sql.execute(query, (user, key(id))) if name == id}

    def _document(self, user: int, document: Document) -> list[int]:
        """The rows of a document that is added: of its passages, where documents are cut."""
        id, _, _, time, until = values_of(document)
        answer = answer_key(document.fields.get(self._target)) if self._target else None
        parts = [document] if self._corpus is None else passages(document, self._corpus)
        rows = [self._next("rows") for _ in parts]
        for row, part in zip(rows, parts, strict=True):
            self._insert("documents", (row, user, key(id), answer, time, until, None))
            self._insert("texts", (row, id, *values_of(part)[1:3]))
            if part.part_of:
                self._insert("passages", (row, rows[0], *part.span))
        if parts[0].part_of:
            self._insert("wholes", (rows[0], *values_of(document)[1:3]))
        self.values["documents"] += len(rows)
        return rows

    def _erase(self, row: int) -> None:
        seen, whole = self._seen(row), self._whole(row)
        if self._sql.execute("SELECT 1 FROM passages WHERE row=?", (row,)).fetchone():
            if whole == row:
                self._change("wholes", row, False, text=None, fields=None)
            self._change("passages", row, False, whole=None, start=None, stop=None)
        self._change("texts", row, False, id=None, text=None, fields=None)
        self._change("documents", row, False, user=GONE, key=None, answer=None, time=None, until=None,
                     gone=self.values["generation"])  # fmt: skip
        self.values["documents"] -= seen
        self.values["erased"] += 1

    def _seen(self, row: int) -> int:
        """1 for a document that is not hidden, else 0."""
        return self._sql.execute("SELECT gone IS NULL FROM documents WHERE row=?", (row,)).fetchone()[0]

    def _mend_profiles(self, user: int, changed: Mapping[int, Sequence[int]]) -> None:
        """Puts newer rows in place of old ones in what this user's examples see."""
        query = (
            "SELECT position, target, rows, whole FROM examples JOIN profiles USING (position) WHERE user=?"
        )
        for position, target, *old in self._sql.execute(query, (user,)).fetchall() if changed else ():
            rows, whole = (_current(np.frombuffer(blob, np.int64).tolist(), changed) for blob in old)
            if _blob(whole) != old[1]:
                self._change("profiles", position, True, rows=_blob(rows), whole=_blob(whole))
                wholes = dict.fromkeys(self._whole(row) for row in whole if self._seen(row))
                documents = [whole_of(self._sql, row) for row in wholes]
                empty, held, near = flags(target, documents, self._target)
                self._change("examples", position, True, empty=empty, held=held, near=near)


def _current(rows: Iterable[int], changed: Mapping[int, Sequence[int]]) -> list[int]:
    """Rows with newer ones in place of old ones, each once."""
    current: dict[int, None] = {}
    waiting = [*rows][::-1]
    while waiting:
        row = waiting.pop()
        if row in changed:
            waiting += reversed(changed[row])
        else:
            current[row] = None
    return list(current)


def _blob(rows: Sequence[int]) -> bytes:
    return np.array(rows, np.int64).tobytes()


def build(
    path: Path,
    examples: Iterable[Example],
    document_target: str | None = None,
    training: Iterable[Example] = (),
    *,
    newest: int | None = None,
    shared: Mapping[str, Iterable[Document]] | None = None,
    corpus: Corpus | None = None,
) -> None:
    """Writes the examples, their documents and the `shared` ones to a new SQLite file, streaming.

    `document_target` names the field of a document that plays the role of an answer. `training` are
    the examples of the training split. `newest` cuts what every example that is not of it sees of its own
    history to so many documents; others see the whole of it, and whether it nearly held the target is judged
    of the whole one. `shared` documents stand by their source. `corpus` says how documents are cut into
    passages, also those that are added later; None: not at all. Raises UserError, which names the source, for
    two shared documents of one id.
    """
    path.unlink(missing_ok=True)
    with system_errors.located(path), closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript(
            "PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA secure_delete=ON; "
            f"PRAGMA cache_size=-65536; {TABLES} BEGIN;"
        )
        writer = Writer(connection, document_target, corpus)
        for example in terminal.bar(examples, desc="examples"):
            writer.example(example, training=False, newest=newest)
        for example in terminal.bar(training, desc="training examples"):
            writer.example(example, training=True)
        for source, documents in (shared or {}).items():
            for number, document in enumerate(terminal.bar(documents, desc="passages")):
                writer.passage(document, f"{source}: record {number}")
        writer.finish()
        connection.execute("COMMIT")


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
            with suppress(sqlite3.OperationalError):  # of a full disk; the next deletion tries again
                connection.execute("VACUUM")
                connection.execute("UPDATE summary SET value=0 WHERE name='erased'")

"""Documents and examples on disk. `visibility` defines which documents a question may see.

A split of LaMP can have millions of documents, so few texts are kept in memory (`Held`). Documents are stored
in SQLite, and the pipeline reads the rows that it needs. A document is stored once per user, even if several
of the user's questions list it. Its row number is its index in arrays over documents. Row numbers are never
reused, so a deleted document leaves a gap.

A store can contain the training split in addition to the evaluated split. Methods learn from its questions,
and its users can be neighbours. Shared documents belong to no user.

A store that `build` made is never changed. A living store is a copy (`Store.copy_to`) that can be changed
while it is read: by any number of threads and processes, with one writer. Each call reads one state.
"""

import json
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from pbr_jax.base import system_errors
from pbr_jax.base.files import private_folder
from pbr_jax.base.types import Document, Example, UserError
from pbr_jax.corpus import schema
from pbr_jax.corpus.columns import EMPTY, Columns, advanced
from pbr_jax.corpus.database import PATIENCE, Database, copy
from pbr_jax.corpus.schema import GONE, SHARED
from pbr_jax.corpus.visibility import Visibility, key
from pbr_jax.corpus.writer import Writer, build, writing
from pbr_jax.text.passages import passages

__all__ = ["GONE", "SHARED", "Store", "Summary", "build"]

_HELD = 16_000_000  # characters of texts; what a process holds of them is a few times as many bytes
_PAGE = 512  # records that are read at once, so that nobody who streams keeps a writer waiting

_ELSEWHERE = """
SELECT COUNT(*) FROM examples e WHERE training = 0 AND EXISTS
    (SELECT 1 FROM documents d WHERE d.answer = e.answer AND d.user != e.user)
"""


class Held:
    """Documents that were read last, by their rows. All go when they have more than `most` characters.

    For stores that nobody writes to: what was deleted would still be found here.
    """

    def __init__(self, most: int = _HELD) -> None:
        self._most, self._size = most, 0
        self._documents: dict[int, Document] = {}

    def read(
        self, rows: Sequence[int] | np.ndarray, read: Callable[[list[int]], dict[int, Document]]
    ) -> list[Document]:
        """The documents of rows, in their order; `read` reads those that are not here."""
        wanted = np.asarray(rows, np.int64).tolist()
        held = self._documents  # another thread may put a new one in its place
        found = {row: held[row] for row in wanted if row in held}
        if missing := [row for row in dict.fromkeys(wanted) if row not in found]:
            new = read(missing)
            found |= new
            self._keep(new)
        return [found[row] for row in wanted]

    def _keep(self, new: dict[int, Document]) -> None:
        size = sum(len(document.text) for document in new.values())
        if self._size + size > self._most:
            self._documents, self._size = {}, 0
        if size <= self._most:
            self._documents.update(new)
            self._size += size


class Summary(NamedTuple):
    """Counts: of users and documents in both splits, and otherwise in the evaluated split.

    `targets_in_history` and `targets_elsewhere` count examples whose target occurs in the user's own history
    (kept, as released) or in those of others (never a candidate). `near_targets` counts examples for which a
    document of the user's own history contains at least 0.6 of the target's words.
    """

    examples: int
    training: int
    users: int
    documents: int
    empty_profiles: int
    targets_in_history: int
    targets_elsewhere: int
    near_targets: int


class Store(Visibility):
    """The questions and documents of a run. `visible` returns the row numbers that a question may see, and
    `documents` reads these rows. Examples have no history (`Example.profile` is empty)."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise UserError(f"document store not found: {path}; run the configuration again to rebuild it")
        self._path, self._database = path, Database(path)
        self.living = self._database.living
        self._lock = threading.Lock()
        self._columns = EMPTY
        self._firsts = "", np.zeros(0, np.int64)
        self._held = Held()
        _ = self.content  # an unreadable file is an error now
        for table in ("units", "choices", "passages"):
            if not self._rows("SELECT 1 FROM sqlite_master WHERE name=?", (table,)):
                raise UserError(f"{path} was written by an older version, without {table}; copy a new store")

    def close(self) -> None:
        """Closes the files. Later calls open them again."""
        self._database.close()

    # -- reading ---------------------------------------------------------------------------------------

    def reading(self) -> AbstractContextManager[sqlite3.Connection]:
        """All reads of this thread in the `with` block see one state, even if others write meanwhile.

        Deletions wait for readers of an older state, so the block should be short.
        """
        return self._database.reading()

    @property
    def columns(self) -> Columns:
        """Current owners, times and answers of all documents."""
        last = self._columns
        if last is not EMPTY and not self.living:
            return last
        with self.reading() as connection, system_errors.located(self._path):
            generation = _value(connection, "generation")
            if last.generation != generation:  # a later one was read by a thread that sees more
                last = advanced(connection, generation, last if last.generation < generation else EMPTY)
            with self._lock:
                if self._columns.generation < generation:
                    self._columns = last
            return last

    def _rows(self, query: str, values: tuple[Any, ...] = ()) -> list[Any]:
        """What a query finds. Raises OSError that names the file where that cannot be read."""
        with self.reading() as connection, system_errors.located(self._path):
            return connection.execute(query, values).fetchall()

    def _value(self, name: str) -> Any:
        with self.reading() as connection, system_errors.located(self._path):
            return _value(connection, name)

    @property
    def content(self) -> str:
        """The hash (hexadecimal) of the store's contents: documents and their rows, users and examples."""
        return self._value("content")

    @property
    def identity(self) -> str:
        """For a living store a unique identifier, otherwise `content`."""
        return f"{self._value('identity')} {self._path.resolve()}" if self.living else self.content

    @property
    def remarks(self) -> int:
        """The version of the log of remarks (`pbr_jax.remarks`) that the documents reflect; 0: none."""
        return self._value("remarks")

    @property
    def origin(self) -> str:
        """For a living store the content of the store that it was copied from; "" where that is unknown."""
        return self._value("origin") or ""

    @property
    def origin_rows(self) -> int:
        """The number of rows that it was copied with."""
        return self._value("origin_rows")

    @property
    def rows(self) -> int:
        """The number of rows, including gaps: the length of arrays over documents."""
        return self._value("rows")

    @property
    def summary(self) -> Summary:
        """Counts of the current contents."""
        query = (
            "SELECT training, COUNT(*), SUM(empty), SUM(held), SUM(near) FROM examples "
            "WHERE training IS NOT NULL GROUP BY training"
        )
        with self.reading():
            counts = {training: numbers for training, *numbers in self._rows(query)}
            examples, empty, held, near = counts.get(0, (0, 0, 0, 0))
            ((elsewhere,),) = self._rows(_ELSEWHERE)
            users, documents = (self._value(name) for name in ("users", "documents"))
        training = counts.get(1, (0,))[0]
        return Summary(examples, training, users, documents, empty, held, elsewhere, near)

    @property
    def users(self) -> list[str]:
        """User names by code. A forgotten user is replaced by a user without documents."""
        return self.columns.users

    @property
    def owners(self) -> np.ndarray:
        """The user code of every row, int32 [rows]; `SHARED` for shared documents, `GONE` for gaps."""
        return self.columns.table["user"]

    @property
    def has_shared(self) -> bool:
        """Whether there are shared documents."""
        return self.columns.has_shared

    @property
    def times(self) -> np.ndarray:
        """Start of every row's date, in seconds since 1970, float64 [rows]; nan: no date or a gap."""
        return self.columns.table["time"]

    @property
    def near_targets(self) -> np.ndarray:
        """Whether each evaluated example's history nearly contains its target, bool [e]; see `Summary`."""
        flags = self._rows("SELECT near FROM examples WHERE +training=0 ORDER BY position")
        return np.array([near for (near,) in flags], bool)

    def asked(self, *, training: bool) -> np.ndarray:
        """Which questions of a split's file belong to the split, bool [q]: here all of them."""
        summary = self.summary
        return np.ones(summary.training if training else summary.examples, bool)

    @property
    def example_times(self) -> np.ndarray:
        """The times of all dated examples of both splits, in seconds since 1970, ascending; float64."""
        times = self._rows("SELECT time FROM examples WHERE time IS NOT NULL ORDER BY time")
        return np.array(times, np.float64).reshape(-1)

    def texts(self, rows: Sequence[int] | np.ndarray | None = None) -> Iterator[tuple[int, str]]:
        """Yields row numbers and texts of documents, in the order of `rows`; None: all rows, ascending.

        Deleted documents are left out.
        """
        if rows is not None:
            for row in rows:
                yield from self._rows(
                    "SELECT row, text FROM texts WHERE row=? AND text IS NOT NULL", (int(row),)
                )
            return
        query = "SELECT row, text FROM texts WHERE row > ? AND text IS NOT NULL ORDER BY row LIMIT ?"
        last = -1
        while page := self._rows(query, (last, _PAGE)):
            yield from page
            last = page[-1][0]

    def gone(self, rows: Iterable[int]) -> list[int]:
        """Those of these rows whose documents were deleted; all of them where the store itself was."""
        there = {row for row, _ in self.texts([*rows])} if self._path.is_file() else set()
        return [row for row in rows if row not in there]

    def texts_of(self, user: str, ids: Collection[str] | None = None) -> list[str]:
        """The texts of all documents of a user, hidden ones too, or of those with these ids; of passages too.
        Raises UserError for an unknown user."""
        query = "SELECT id, text FROM texts JOIN documents USING (row) WHERE user=?"
        found = self._rows(query, (self.code(user),))
        return [text for id, text in found if ids is None or id in ids]

    def by_user(self, what: Literal["id", "text"]) -> list[tuple[str, str, float | None]]:
        """Users, ids or texts, and times of all users' documents, hidden ones and passages too."""
        query = (
            f"SELECT name, {what}, documents.time FROM documents JOIN texts USING (row) "
            "JOIN users ON code = user WHERE text IS NOT NULL AND name IS NOT NULL"
        )
        return self._rows(query)

    def places(self) -> dict[tuple[str, str], bool]:
        """The owner ("": shared) and id of all documents, hidden ones too, and whether one is to be seen."""
        query = (
            "SELECT COALESCE(name, ''), id, MAX(documents.gone IS NULL) FROM documents "
            "JOIN texts USING (row) LEFT JOIN users ON code = user WHERE text IS NOT NULL GROUP BY name, id"
        )
        return {(user, id): bool(seen) for user, id, seen in self._rows(query)}

    def holds(self, user: str, id: str) -> bool:
        """Whether a user ("": the shared documents) has a document with this id that is not hidden."""
        code = self.columns.codes.get(user) if user else SHARED
        query = "SELECT id FROM documents JOIN texts USING (row) WHERE user=? AND key=? AND gone IS NULL"
        return (id,) in self._rows(query, (code, key(id)))

    def documents(self, rows: Sequence[int] | np.ndarray) -> list[Document]:
        """The documents in these rows, in this order. Raises UserError for a deleted row."""
        return (Held(0) if self.living else self._held).read(rows, self._documents)

    def _documents(self, rows: list[int]) -> dict[int, Document]:
        with self.reading() as connection, system_errors.located(self._path):
            return schema.stored(connection, rows)

    def wholes(self, rows: Sequence[int] | np.ndarray) -> list[Document]:
        """The whole documents of these rows, in this order; for passages those that they were cut from."""
        with self.reading() as connection, system_errors.located(self._path):
            return [schema.whole_of(connection, int(row)) for row in rows]

    def cut(self, text: str) -> list[str]:
        """The texts of the passages into which this store would cut a document with this text."""
        corpus = schema.corpus_of(self._value("corpus"))
        return [text] if corpus is None else [p.text for p in passages(Document("", "", text), corpus)]

    @property
    def firsts(self) -> np.ndarray:
        """For every row the first row of its document, int64 [rows]. It is the same for all passages of a
        document, and the row itself for a document that is not cut."""
        with self.reading():
            content = self.content
            if self._firsts[0] != content:
                found = np.arange(self.rows, dtype=np.int64)
                pairs = self._rows("SELECT row, whole FROM passages WHERE whole IS NOT NULL")
                rows, wholes = np.array(pairs, np.int64).reshape(-1, 2).T
                found[rows] = wholes
                self._firsts = content, found
            return self._firsts[1]

    @property
    def most_passages(self) -> int:
        """The largest number of passages of a document, at least 1."""
        return int(np.bincount(self.firsts).max(initial=1))

    def spans(self, row: int) -> list[tuple[int, int]]:
        """The spans of all passages of the document that this row belongs to, ascending."""
        return self._rows(
            "SELECT start, stop FROM passages WHERE whole=(SELECT whole FROM passages WHERE row=?) "
            "ORDER BY row",
            (int(row),),
        )

    def examples(self, *, training: bool = False) -> Iterator[Example]:
        """Yields all examples of the evaluated or the training split in file order, without profiles."""
        query = (
            "SELECT position, id, name, query, input, target, time, relevant, category, scored, "
            "alternatives, unit, options FROM examples JOIN users ON code = user "
            "LEFT JOIN units USING (position) LEFT JOIN choices USING (position) "
            "WHERE +training=? AND position > ? ORDER BY position LIMIT ?"
        )
        last = -1
        while page := self._rows(query, (int(training), last, _PAGE)):
            for (
                _, id, user, text, input, target, time, relevant, category, scored, others, unit, options,
            ) in page:  # fmt: skip
                groups = tuple(tuple(group) for group in json.loads(relevant))
                yield Example(
                    id, user, text, input, target, (), time, groups, category, bool(scored),
                    tuple(json.loads(others)), training, unit or "", tuple(json.loads(options or "[]")),
                )  # fmt: skip
            last = page[-1][0]

    # -- writing ---------------------------------------------------------------------------------------

    def copy_to(self, path: Path) -> "Store":
        """Makes a living copy in a new file with mode 0600. Raises UserError if the file exists."""
        private_folder(path.parent)
        with self.reading() as connection:
            copy(connection, path)
        return Store(path)

    def append(self, documents: Iterable[Document]) -> np.ndarray:
        """Adds documents of known or new users, or shared ones. Returns the rows of all passages, int64 [d].

        If the owner has a document with the same id and other content, the new one replaces it. It gets a new
        row, the old document is deleted, and examples that saw the old version see the new one.
        """
        with self.changing() as writer:
            return np.array(writer.append(documents), np.int64)

    def delete(self, user: str, ids: Iterable[str] | None = None) -> np.ndarray:
        """Deletes documents with these ids, or all, of a user ("": shared). Returns their rows, int64 [d].

        Afterwards the files of the store contain no bytes of these documents. Raises UserError for an unknown
        user or id. It also does so if another reader uses an older state for over a minute. The documents are
        then deleted, but their bytes remain until the next call after that reader has ended.
        """
        with self.changing() as writer:
            return np.array(writer.delete(self.code(user), ids), np.int64)

    def forget(self, user: str) -> None:
        """Deletes a user: all documents, the examples of both splits, and the name. See `delete`."""
        with self.changing() as writer:
            writer.forget(self.code(user))

    @contextmanager
    def changing(self) -> Iterator[Writer]:
        """Writes to a living store. All changes in the `with` block are saved together, or none of them."""
        if not self.living:
            raise UserError(
                f"{self._path} is what runs are made from and stays as it is; write to a copy of it"
            )
        if self._database.mode != "rw":
            raise UserError(f"{self._path} may only be read here; copy its folder, and write to the copy")
        if self._database.is_reading:
            raise RuntimeError("a store is written to inside `reading`, which holds an older state")
        erased = False
        try:
            with writing(self._path) as writer:
                yield writer
            erased = writer.erased
        finally:
            self._database.purge(PATIENCE if erased else 0)
        if self._database.late and erased:
            raise UserError(
                f"{self._path}: the documents are deleted, but someone has read an older state for "
                f"{PATIENCE} s, or the disk is full, so their bytes are still in the files; they go when "
                "that has ended and the store is opened, read, written to or closed again; do not repeat the "
                "call"
            )


def _value(connection: sqlite3.Connection, name: str) -> Any:
    found = connection.execute("SELECT value FROM summary WHERE name=?", (name,)).fetchone()
    return 0 if found is None else found[0]  # stores of older versions know fewer names

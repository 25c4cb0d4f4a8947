"""Documents and examples of one benchmark split on disk, and who may see what.

A split of LaMP can hold millions of documents, so nothing here keeps texts in memory: readers stream
in, SQLite holds, and the pipeline asks for the rows that it needs. A document is stored once per user,
however many of the user's questions list it; its row number is its place in the embedding matrix.

A store may hold the training split beside the evaluated one: its questions are what methods learn from,
and its users are there to be found as neighbours.

The rule against leakage lives here, in `Store.visible`: a question sees its own profile list as released;
of another user it sees only documents dated before the question, and none that is its own target. A coarse
date counts as its last moment: what is dated "2015" was not before any question of that year.
"""

import hashlib
import json
import math
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pbr_jax import faults
from pbr_jax.types import Document, Example, UserError
from pbr_jax.words import composed, words

_SCHEMA = """
CREATE TABLE users(code INTEGER PRIMARY KEY, name TEXT UNIQUE);
CREATE TABLE documents(row INTEGER PRIMARY KEY, user INTEGER, id TEXT, text TEXT, fields TEXT, time REAL,
                       until REAL, answer INTEGER, digest BLOB, UNIQUE(user, digest));
CREATE INDEX answers ON documents(answer);
CREATE TABLE examples(position INTEGER PRIMARY KEY, training INTEGER, id TEXT, user INTEGER, query TEXT,
                      input TEXT, target TEXT, time REAL, relevant TEXT, category TEXT, scored INTEGER,
                      rows BLOB, whole BLOB, answer INTEGER, alternatives TEXT, near INTEGER,
                      UNIQUE(training, id));
CREATE INDEX askers ON examples(user);
CREATE TABLE summary(name TEXT PRIMARY KEY, value TEXT);
"""

SHARED = -1  # what stands in `Store.owners` for the owner of shared documents
_NEAR = 0.6  # of the target's words in one document of the history: the answer is nearly there to be copied


class Summary(NamedTuple):
    """Counts. Users and documents are those of both splits, all else is of the evaluated one.

    `targets_in_history` and `targets_elsewhere` count examples whose target stands in their own history
    (kept, as released) and in other users' (never a candidate); `near_targets` those of which one document of
    their own history holds at least .6 of the target's words. `texts` is the hash of all document texts in
    row order.
    """

    examples: int
    training: int
    users: int
    documents: int
    empty_profiles: int
    targets_in_history: int
    targets_elsewhere: int
    near_targets: int
    texts: str


def build(
    path: Path,
    examples: Iterable[Example],
    document_target: str | None = None,
    training: Iterable[Example] = (),
    *,
    newest: int | None = None,
    shared: Iterable[Document] = (),
) -> Summary:
    """Writes the examples, their documents and the `shared` ones to a new SQLite file, streaming.

    `document_target` names the field of a document that plays the role of an answer. `training` are
    the examples of the training split. `newest` cuts what every example that is not of it sees of its own
    history to so many documents; others see the whole of it, and whether it nearly held the target is told
    of the whole one.
    """
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    with faults.located(path), closing(connection):
        connection.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;" + _SCHEMA)
        writer = _Writer(connection, document_target)
        empty = leaks = 0
        for example in examples:
            empty += not example.profile
            leaks += _holds_target(example, document_target)
            writer.add(example, training=False, newest=newest)
        evaluated = writer.examples
        for example in training:
            writer.add(example, training=True)
        for document in shared:
            writer.document(document)
        digest = hashlib.sha256()
        for (text,) in connection.execute("SELECT text FROM documents ORDER BY row"):
            digest.update(hashlib.sha256(text.encode()).digest())
        (elsewhere,) = connection.execute(_ELSEWHERE).fetchone()
        (near,) = connection.execute("SELECT COUNT(*) FROM examples WHERE NOT training AND near").fetchone()
        summary = Summary(
            examples=evaluated,
            training=writer.examples - evaluated,
            users=len(writer.users),
            documents=writer.documents,
            empty_profiles=empty,
            targets_in_history=leaks,
            targets_elsewhere=elsewhere,
            near_targets=near,
            texts=digest.hexdigest()[:16],
        )
        connection.executemany("INSERT INTO summary VALUES (?,?)", summary._asdict().items())
        connection.commit()
    return summary


_ELSEWHERE = """
SELECT COUNT(*) FROM examples e WHERE NOT training AND EXISTS
    (SELECT 1 FROM documents d WHERE d.answer = e.answer AND d.user != e.user)
"""


class _Writer:
    """Inserts examples, each document once."""

    def __init__(self, connection: sqlite3.Connection, document_target: str | None) -> None:
        self.connection = connection
        self.document_target = document_target
        self.users: dict[str, int] = {}
        self.documents = 0
        self.examples = 0

    def add(self, example: Example, *, training: bool, newest: int | None = None) -> None:
        # All are kept, for whom the user is a neighbour; the example sees those that are left.
        places = [self.document(document) for document in example.profile]
        rows = np.array([places[i] for i in _latest(example.profile, newest)], np.int64)
        values = (
            self.examples, training, example.id, self.user(example.user_id), example.query, example.input,
            example.target, example.time, json.dumps(example.relevant), example.category, example.scored,
            rows.tobytes(), np.array(places, np.int64).tobytes(), _answer(example.target),
            json.dumps(example.alternatives),
            _nearly_holds_target(example, self.document_target),
        )  # fmt: skip
        self.connection.execute("INSERT INTO examples VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)", values)
        self.examples += 1

    def user(self, name: str) -> int:
        if not name:
            raise UserError(
                "an example's user_id is empty, want the user's name: no user owns shared documents"
            )
        if name not in self.users:
            self.users[name] = len(self.users)
            self.connection.execute("INSERT INTO users VALUES (?,?)", (self.users[name], name))
        return self.users[name]

    def document(self, document: Document) -> int:
        fields = json.dumps(dict(document.fields), ensure_ascii=False)
        identity = json.dumps([document.id, document.text, fields, document.time, document.until])
        if document.shared != (not document.user_id):
            raise UserError(
                f"document {document.id!r} has user_id {document.user_id!r} and shared = {document.shared}; "
                'want user_id "" for shared documents and the owner\'s name for all others'
            )
        user = SHARED if document.shared else self.user(document.user_id)
        digest = hashlib.sha256(identity.encode()).digest()
        answer = _answer(document.fields.get(self.document_target)) if self.document_target else None
        values = (
            self.documents, user, document.id, document.text, fields, document.time, document.until, answer,
            digest,
        )  # fmt: skip
        inserted = "INSERT OR IGNORE INTO documents VALUES (?,?,?,?,?,?,?,?,?)"
        if self.connection.execute(inserted, values).rowcount:
            self.documents += 1
            return self.documents - 1
        found = self.connection.execute("SELECT row FROM documents WHERE user=? AND digest=?", (user, digest))
        return found.fetchone()[0]


def _latest(profile: Sequence[Document], newest: int | None) -> Sequence[int]:
    """Places of so many of the latest documents, undated ones being the oldest, in order; None: all."""
    if newest is None:
        return range(len(profile))
    by_age = sorted(range(len(profile)), key=lambda i: -math.inf if (t := profile[i].time) is None else t)
    return sorted(by_age[max(len(profile) - newest, 0) :])


def _answer(text: str | None) -> int | None:
    """A number by which equal answers are known; None where there is no answer."""
    if text is None or not text.strip():
        return None
    written = composed(text).strip().encode()
    return int.from_bytes(hashlib.sha256(written).digest()[:8], "big", signed=True) or 1


def _holds_target(example: Example, document_target: str | None) -> bool:
    if document_target is None or example.target is None:
        return False
    target = composed(example.target).strip()
    return any(composed(d.fields.get(document_target, "")).strip() == target for d in example.profile)


def _nearly_holds_target(example: Example, document_target: str | None) -> bool:
    """Whether a document's answer (its text, where it has none) holds most words of the target."""
    if document_target is None or example.target is None:
        return False
    wanted = set(words(example.target))
    least = _NEAR * len(wanted)
    held = (d.fields.get(document_target) or d.text for d in example.profile)
    return bool(wanted) and any(len(wanted.intersection(words(text))) >= least for text in held)


class Store:
    """Reads what `build` wrote. Examples come without their profile: ask `visible` for its rows."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise UserError(f"document store not found: {path}; run the configuration again to rebuild it")
        self._path = path
        self._connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        values: dict[str, Any] = dict(self._rows("SELECT name, value FROM summary"))
        counts = {name: int(values[name]) for name in Summary._fields if name != "texts"}
        self.summary = Summary(**counts, texts=values["texts"])

    def close(self) -> None:
        self._connection.close()

    def _rows(self, query: str, values: tuple[Any, ...] = ()) -> Iterator[Any]:
        """What a query finds. Raises OSError that names the file where that cannot be read."""
        with faults.located(self._path):
            yield from self._connection.execute(query, values)

    @cached_property
    def users(self) -> list[str]:
        """User names by code."""
        return [name for (name,) in self._rows("SELECT name FROM users ORDER BY code")]

    @cached_property
    def owners(self) -> np.ndarray:
        """The user code of every document, int32 [n]; `SHARED` for those that nobody owns."""
        return self._column("user", np.int32)

    @cached_property
    def has_shared(self) -> bool:
        """Whether there are shared documents."""
        return bool((self.owners == SHARED).any())

    @cached_property
    def times(self) -> np.ndarray:
        """The time of every document, the first moment of its date, in seconds, float64 [n]; nan: undated."""
        return self._column("time", np.float64, np.nan)

    @cached_property
    def _ends(self) -> np.ndarray:
        """The last moment that the date of every document may mean, float64 [n]; nan where undated."""
        return self._column("COALESCE(until, time)", np.float64, np.nan)

    @cached_property
    def _answers(self) -> np.ndarray:
        """What every document would give away as an answer, int64 [n]; 0 for nothing."""
        return self._column("answer", np.int64, 0)

    def _column(self, name: str, dtype: type, missing: int | float = 0) -> np.ndarray:
        cursor = self._rows(f"SELECT {name} FROM documents ORDER BY row")
        values = (missing if value is None else value for (value,) in cursor)
        return np.fromiter(values, dtype, count=self.summary.documents)

    @cached_property
    def near_targets(self) -> np.ndarray:
        """Whether the history of each evaluated example nearly holds its target, bool [e]; see `Summary`."""
        found = self._rows("SELECT near FROM examples WHERE NOT training ORDER BY position")
        return np.array([bool(near) for (near,) in found], bool)

    @cached_property
    def example_times(self) -> np.ndarray:
        """The times of all dated examples, of both splits, ascending; float64."""
        cursor = self._rows("SELECT time FROM examples WHERE time IS NOT NULL ORDER BY time")
        return np.array([time for (time,) in cursor], np.float64)

    def texts(self) -> Iterator[str]:
        """All document texts in row order, streamed."""
        return (text for (text,) in self._rows("SELECT text FROM documents ORDER BY row"))

    def documents(self, rows: Sequence[int] | np.ndarray) -> list[Document]:
        """The documents of these rows, in this order."""
        return [self._document(int(row)) for row in rows]

    def _document(self, row: int) -> Document:
        query = "SELECT id, user, text, fields, time, until FROM documents WHERE row=?"
        id, user, text, fields, time, until = next(self._rows(query, (row,)))
        shared = user == SHARED
        name = "" if shared else self.users[user]
        return Document(id, name, text, json.loads(fields), time, until, shared)

    def examples(self, *, training: bool = False) -> Iterator[Example]:
        """All examples of the evaluated or the training split in file order, streamed, without profiles."""
        columns = "id, user, query, input, target, time, relevant, category, scored, alternatives"
        query = f"SELECT {columns} FROM examples WHERE training=? ORDER BY position"
        for row in self._rows(query, (training,)):
            id, user, query, input, target, time, relevant, category, scored, alternatives = row
            groups = tuple(tuple(group) for group in json.loads(relevant))
            yield Example(
                id, self.users[user], query, input, target, (), time, groups, category, bool(scored),
                tuple(json.loads(alternatives)), training,
            )  # fmt: skip

    def visible(self, example: Example, user_id: str) -> np.ndarray:
        """Rows of the user's documents that may answer this example, int64 [r], in profile order; "": shared.

        The asking user's own documents are the example's profile list; an example that is not stored (a new
        question) sees the user's whole history. Of other users, and of the shared documents, it sees undated
        ones and those dated before it (an example without a time sees no dated ones), but none that holds its
        target. An unknown user is an error, never everybody.
        """
        if user_id and user_id == example.user_id:
            query, key = "SELECT rows FROM examples WHERE training=? AND id=?", (example.training, example.id)
            found = next(self._rows(query, key), None)
            return self.history(user_id) if found is None else np.frombuffer(found[0], np.int64)
        rows = self.before(user_id, example.time)
        return rows[~self.leaks_target(example, rows)]

    def leaks_target(self, example: Example, rows: np.ndarray) -> np.ndarray:
        """Which of these rows hold the example's own target as their answer, bool [r]."""
        answer = _answer(example.target)
        return np.zeros(len(rows), bool) if answer is None else self._answers[rows] == answer

    def training_rows(self, user_id: str) -> np.ndarray:
        """Rows of the user's documents that may be learned from, int64 [r], in the order of `history`.

        Of a user with evaluated questions, those that every one of them sees: where a history grows from
        question to question, a later document holds the target of an earlier one. Of other users, all.
        """
        rows = self.history(user_id)
        query = "SELECT whole FROM examples WHERE NOT training AND user=?"
        for (seen,) in self._rows(query, (self.code(user_id),)):
            rows = rows[np.isin(rows, np.frombuffer(seen, np.int64))]
        return rows

    def before(self, user_id: str, time: float | None) -> np.ndarray:
        """Rows of a user's documents that are undated or dated before a time, int64 [r]; None: undated.

        The whole interval of a coarse date must lie before.
        """
        rows = self.history(user_id)
        ends = self._ends[rows]
        return rows[np.isnan(ends) | (ends < (-np.inf if time is None else time))]

    def history(self, user_id: str) -> np.ndarray:
        """All rows of one user's documents, int64 [r]; "": of the shared ones."""
        starts, order = self._by_user
        code = self.code(user_id)
        return order[starts[code + 1] : starts[code + 2]]  # shared ones come first

    def code(self, user_id: str) -> int:
        """The number that stands for a user in `owners`, `SHARED` for ""; UserError for an unknown user."""
        if not user_id and self.has_shared:
            return SHARED
        found = next(self._rows("SELECT code FROM users WHERE name=?", (user_id,)), None)
        if found is None:
            raise UserError(
                f"user {user_id!r} is not among the {len(self.users)} users of this data; "
                f"there are, for example, {', '.join(self.users[:5])}"
            )
        return found[0]

    @cached_property
    def _by_user(self) -> tuple[np.ndarray, np.ndarray]:
        """Segments: rows sorted by owner, and where each owner's rows start."""
        order = np.argsort(self.owners, kind="stable").astype(np.int64)
        return np.searchsorted(self.owners[order], np.arange(SHARED, len(self.users) + 1)), order

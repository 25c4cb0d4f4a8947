"""Which cached answers were made from which of users' texts, and whom the cache has forgotten.

Beside the cache of answers, in SQLite. A text or a user's name is there as its HMAC by a secret of this
file, an answer as its key. A pair is on disk before the answer is. Where a prompt may show any text of some
users, the pairs are (user, answer), or (user, these users together) and (these users together, answer).
"""

import contextlib
import hmac
import os
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path

from pbr_jax.base.files import cache_folder
from pbr_jax.base.system_errors import located
from pbr_jax.llm.answers_file import Answers, opened, transaction
from pbr_jax.llm.answers_file import location as answers
from pbr_jax.llm.cache import noted
from pbr_jax.llm.usage import bound

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS reads(text BLOB, key TEXT, PRIMARY KEY (text, key)) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS of_key ON reads(key)",
    "CREATE TABLE IF NOT EXISTS secret(id INTEGER PRIMARY KEY, value BLOB)",
    "CREATE TABLE IF NOT EXISTS forgotten(name BLOB PRIMARY KEY) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS gone(name BLOB, mark BLOB, time REAL, PRIMARY KEY (name, mark))",
)
_KEEP = (
    "INSERT INTO gone VALUES (?,?,?) ON CONFLICT DO UPDATE SET "
    "time=ifnull(min(time, excluded.time), ifnull(time, excluded.time))"
)
ANYONE = "\0"
"""In place of a user whose texts a prompt may show: any user's."""

_LATE = b""
"""In place of a text: the answer is under way, and goes with the end of its request or the next erasure."""

Gone = Sequence[tuple[bytes, bytes]]  # what stands for a user, and for a text
_Shown = Sequence[Iterable[str]]
_questions: ContextVar[_Shown] = ContextVar("questions", default=())
_prompts: ContextVar[tuple[_Shown, Sequence[bool]] | None] = ContextVar("prompts", default=None)


def location() -> Path:
    """The file, in the folder of all artefacts."""
    return cache_folder() / "reads.sqlite"


def note(keys: Iterable[str], texts: Iterable[Sequence[str]]) -> None:
    """Keeps which texts each answer is made from; one that is made from none goes when it is finished."""
    with _connection() as (connection, mark):
        for key, own in zip(keys, texts, strict=True):
            connection.execute("DELETE FROM reads WHERE key=? AND text=?", (key, _LATE))
            pairs = [(mark(text), key) for text in own] or [(_LATE, key)]
            connection.executemany("INSERT OR IGNORE INTO reads VALUES (?,?)", pairs)


def in_order(told: Sequence[bool]) -> contextlib.AbstractContextManager[object]:
    """Around one request of a language model with one prompt for each question of `of_questions`, in order;
    `told`: whether a prompt holds a text about its user, which may be written from others' documents."""
    return bound(_prompts, (_questions.get(), told))


@contextlib.contextmanager
def of_questions(shown: _Shown, *, texts_of_others: bool) -> Iterator[None]:
    """Around what asks a language model about questions, whose prompts may show any text of these users.

    `texts_of_others`: whether texts about users may be written from anybody's documents.
    """
    others, keys = {ANYONE} if texts_of_others else set(), list[str]()

    def keep(new: Sequence[str]) -> None:
        keys.extend(new)
        questions, told = _prompts.get() or (None, ())
        if questions is shown and len(told) == len(new) == len(shown):
            users = [{*own, *(others if is_told else ())} for own, is_told in zip(shown, told)]
            note(new, [[_name(user) for user in own] for own in users])
            return
        if not all(map(set, shown)):  # one is of nobody by whom it could be found
            note(new, [()] * len(new))
            return
        names = sorted(map(_name, others.union(*shown)))
        with _connection() as (_, mark):
            together = mark("\n".join(names)).hex()
        note([together, *new], [names, *([together] for _ in new)])

    try:
        with noted(keep), bound(_questions, shown):
            yield
    finally:
        if keys:
            erase_late(keys)


def erase(texts: Iterable[str], users: Iterable[str] = (), *, gone: Gone = (), unknown: bool = False) -> int:
    """Erases all cached answers that were made from one of these texts, or of these users'; how many.

    `gone`: the same for texts that no store has (`gone`). `unknown`: also those of which nobody has noted
    whose texts they were made from.
    """
    if not (location().is_file() or (unknown and answers().is_file())):
        return 0
    with _connection() as (connection, mark):

        def found(marks: Iterable[bytes]) -> set[str]:
            find = "SELECT key FROM reads WHERE text=?"
            return {key for one in marks for (key,) in connection.execute(find, (one,))}

        keys = found(map(mark, texts))
        if owners := {*(mark(_name(user)) for user in users), *(name for name, _ in gone)}:
            together = found({*owners, mark(_name(ANYONE))})
            keys |= together | found(map(mark, together)) | found(one for _, one in gone)
        if unknown:
            noted = {key for (key,) in connection.execute("SELECT DISTINCT key FROM reads")}
            keys |= Answers(answers()).keys() - noted
        keys |= found([_LATE])
        new = keys - Answers(answers()).keys() if keys else ()
        under_way = [key for key in new if not found([mark(key)])]  # the others stand for several users
        erased = Answers(answers()).erase(keys)
        connection.executemany("DELETE FROM reads WHERE key=?", [(key,) for key in keys])
        connection.executemany("INSERT INTO reads VALUES (?,?)", [(_LATE, key) for key in under_way])
    return erased


def erase_late(keys: Iterable[str]) -> None:
    """Erases those of these answers whose texts were erased while they were made."""
    with _connection() as (connection, _):
        find = "SELECT 1 FROM reads WHERE key=? AND text != ? LIMIT 1"
        late = [key for key in keys if connection.execute(find, (key, _LATE)).fetchone() is None]
        if late:
            Answers(answers()).erase(late)
            connection.executemany("DELETE FROM reads WHERE key=?", [(key,) for key in late])


# -- who is forgotten ----------------------------------------------------------------------------------


def leave_out(documents: Mapping[str, Collection[str]]) -> None:
    """From now on these documents of users, or all records where none are named, are left out of data that
    are read."""
    names = [name for u, ids in documents.items() for name in [_document(u, i) for i in ids] or [_name(u)]]
    with _connection() as (connection, mark):
        connection.executemany("INSERT OR IGNORE INTO forgotten VALUES (?)", [(mark(n),) for n in names])


def left_out() -> Callable[[str, str | None], bool] | None:
    """Whether a user, or a document (by its id) of a user, is left out; None: nothing is."""
    if not location().is_file():
        return None
    with _connection() as (connection, mark):
        gone = {name for (name,) in connection.execute("SELECT name FROM forgotten")}
    if not gone:
        return None
    return lambda user, id: mark(_name(user) if id is None else _document(user, id)) in gone


def keep_marks(texts: Iterable[tuple[str, str, float | None]], digest: Callable[[str], bytes]) -> None:
    """Keeps by what users' texts are known, for the time when no store has them.

    Args:
      texts: users, texts and their times.
      digest: what the vector of a text is known by.
    """
    with _connection() as (connection, mark):
        for user, text, time in texts:
            rows = [(mark(_name(user)), one, time) for one in (mark(text), mark(digest(text).hex()))]
            connection.executemany(_KEEP, rows)


def gone(user: str, before: float | None) -> Gone:
    """By what texts are known that no store may have: those of a user ("": of anybody), or those of them that
    are dated before a moment, in seconds since 1970."""
    where = "WHERE (?1 IS NULL OR name=?1) AND (?2 IS NULL OR time<?2)"
    with _connection() as (connection, mark):
        name = mark(_name(user)) if user else None
        return connection.execute(f"SELECT name, mark FROM gone {where}", (name, before)).fetchall()


def digests_in(gone: Gone) -> Callable[[bytes], bool]:
    """Whether one of these texts has a digest."""
    kept = {one for _, one in gone}
    with _connection() as (_, mark):
        return lambda digest: bool(kept) and mark(digest.hex()) in kept


def knows(user: str) -> bool:
    """Whether an answer, or a text that no store has, is noted as a user's."""
    with _connection() as (connection, mark):
        find = "SELECT 1 FROM reads WHERE text=:name UNION SELECT 1 FROM gone WHERE name=:name"
        return connection.execute(find, {"name": mark(_name(user))}).fetchone() is not None


def _name(user: str) -> str:
    """What stands for all texts of a user; no document has this text."""
    return f"user\0{user}"


def _document(user: str, id: str) -> str:
    return f"document\0{user}\0{id}"


@contextlib.contextmanager
def _connection() -> Iterator[tuple[sqlite3.Connection, Callable[[str], bytes]]]:
    """A transaction, and what stands for a text."""
    with located(location()), opened(location()) as connection, transaction(connection):
        for statement in _SCHEMA:
            connection.execute(statement)
        connection.execute("INSERT OR IGNORE INTO secret VALUES (0,?)", (os.urandom(32),))
        (secret,) = connection.execute("SELECT value FROM secret").fetchone()
        yield (
            connection,
            lambda text: hmac.digest(secret, text.encode("utf-8", "surrogatepass"), "sha256"),
        )

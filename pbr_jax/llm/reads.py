"""Which cached answers were made from which of users' texts, so that they are erased with them.

Beside the cache of answers, in SQLite: a text is there as its hash, an answer as its key. A pair is on disk
before the answer is. Where a prompt may show any text of some users, the pairs are (user, these users
together) and (these users together, answer).
"""

import contextlib
import hashlib
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pbr_jax.base.files import cache_folder
from pbr_jax.base.system_errors import located
from pbr_jax.llm.answers_file import Answers, opened, transaction
from pbr_jax.llm.answers_file import location as answers
from pbr_jax.llm.cache import noted

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS reads(text BLOB, key TEXT, PRIMARY KEY (text, key)) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS of_key ON reads(key)",
)


def location() -> Path:
    """The file, in the folder of all artefacts."""
    return cache_folder() / "reads.sqlite"


def note(keys: Iterable[str], texts: Iterable[Sequence[str]]) -> None:
    """Keeps which texts each answer is made from."""
    pairs = [(_hash(text), key) for key, own in zip(keys, texts, strict=True) for text in own]
    with _connection() as connection:
        connection.executemany("INSERT OR IGNORE INTO reads VALUES (?,?)", pairs)


@contextlib.contextmanager
def of_users(users: Iterable[str]) -> Iterator[None]:
    """Around what asks a language model: its prompts may show any text of these users."""
    names = sorted({_name(user) for user in users})
    together, keys = _hash("\n".join(names)).hex(), list[str]()

    def keep(new: Sequence[str]) -> None:
        keys.extend(new)
        note([together, *new], [names, *([together] for _ in new)])

    try:
        with noted(keep):
            yield
    finally:
        if keys:
            erase_late(keys)


def erase(texts: Iterable[str], user: str | None = None) -> int:
    """Erases all cached answers that were made from one of these texts, or of the user's; how many."""
    if not location().is_file():
        return 0
    with _connection() as connection:

        def found(texts: Iterable[str]) -> set[str]:
            find = "SELECT key FROM reads WHERE text=?"
            return {key for text in texts for (key,) in connection.execute(find, (_hash(text),))}

        keys = found(texts)
        if user is not None:
            together = found([_name(user)])
            keys |= together | found(together)
        erased = Answers(answers()).erase(keys)
        connection.executemany("DELETE FROM reads WHERE key=?", [(key,) for key in keys])
    return erased


def erase_late(keys: Iterable[str]) -> None:
    """Erases those of these answers whose texts were erased while they were made."""
    with _connection() as connection:
        find = "SELECT 1 FROM reads WHERE key=? LIMIT 1"
        late = [key for key in keys if connection.execute(find, (key,)).fetchone() is None]
    if late:
        Answers(answers()).erase(late)


def _name(user: str) -> str:
    """What stands for all texts of a user; no document has this text."""
    return f"user\0{user}"


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


@contextlib.contextmanager
def _connection() -> Iterator[sqlite3.Connection]:
    with located(location()), opened(location()) as connection, transaction(connection):
        for statement in _SCHEMA:
            connection.execute(statement)
        yield connection

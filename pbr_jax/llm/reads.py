"""Which cached answers were made from which of users' texts, so that they are erased with them.

Beside the cache of answers, in SQLite: a text is there as its hash, an answer as its key. A pair is on disk
before the answer is.
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

_SCHEMA = "CREATE TABLE IF NOT EXISTS reads(text BLOB, key TEXT, PRIMARY KEY (text, key)) WITHOUT ROWID"


def location() -> Path:
    """The file, in the folder of all artefacts."""
    return cache_folder() / "reads.sqlite"


def note(keys: Iterable[str], texts: Iterable[Sequence[str]]) -> None:
    """Keeps which texts each answer is made from."""
    pairs = [(_hash(text), key) for key, own in zip(keys, texts, strict=True) for text in own]
    with _connection() as connection:
        connection.executemany("INSERT OR IGNORE INTO reads VALUES (?,?)", pairs)


def erase(texts: Iterable[str]) -> int:
    """Erases all cached answers that were made from one of these texts; how many there were."""
    if not location().is_file():
        return 0
    with _connection() as connection:
        find = "SELECT key FROM reads WHERE text=?"
        keys = {key for text in texts for (key,) in connection.execute(find, (_hash(text),))}
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


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


@contextlib.contextmanager
def _connection() -> Iterator[sqlite3.Connection]:
    with located(location()), opened(location()) as connection, transaction(connection):
        connection.execute(_SCHEMA)
        yield connection

"""Writing a document store: all at once (`build`), or a living one bit by bit (`writing`)."""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from pbr_jax.base import system_errors
from pbr_jax.base.locks import locked
from pbr_jax.base.types import Document, Example
from pbr_jax.corpus.database import connected
from pbr_jax.corpus.schema import TABLES
from pbr_jax.corpus.writer import Writer
from pbr_jax.options.corpus import Corpus


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
        for example in examples:
            writer.example(example, training=False, newest=newest)
        for example in training:
            writer.example(example, training=True)
        for source, documents in (shared or {}).items():
            for number, document in enumerate(documents):
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
            connection.execute("UPDATE summary SET value=0 WHERE name='erased'")
            connection.execute("VACUUM")

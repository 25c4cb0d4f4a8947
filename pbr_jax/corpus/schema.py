"""The tables of a document store, and documents as the values of their columns.

SQLite keeps copies of what it moves between pages, which no deletion reaches. So whatever a user wrote
stands in tables that grow at their end alone (`users`, `texts`, `wholes`, `examples`, `units`, `choices`)
and is overwritten where it stands; with `secure_delete` nothing of it is left there. All that is moved,
indices first of all, holds numbers and hashes.
"""

import json
import math
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from pbr_jax.base.types import Document, UserError
from pbr_jax.base.words import composed, words
from pbr_jax.options import Corpus
from pbr_jax.text.passages import as_passage

SHARED = -1  # the code that stands for the owner of shared documents
GONE = -2  # the code that stands for the owner of deleted documents
FORGOTTEN = "\0"  # begins what stands in place of a user's name, and has no documents

TABLES = """
CREATE TABLE users(code INTEGER PRIMARY KEY, key INTEGER, gone INTEGER, name TEXT);
CREATE INDEX users_by_name ON users(key);
CREATE INDEX users_by_deletion ON users(gone) WHERE gone IS NOT NULL;
CREATE TABLE documents(row INTEGER PRIMARY KEY, user INTEGER, key INTEGER, answer INTEGER, time REAL,
                       until REAL, gone INTEGER);
CREATE INDEX documents_by_id ON documents(user, key);
CREATE INDEX documents_by_answer ON documents(answer);
CREATE INDEX documents_by_deletion ON documents(gone) WHERE gone IS NOT NULL;
CREATE TABLE texts(row INTEGER PRIMARY KEY, id TEXT, text TEXT, fields TEXT);
CREATE TABLE passages(row INTEGER PRIMARY KEY, whole INTEGER, start INTEGER, stop INTEGER);
CREATE INDEX passages_by_whole ON passages(whole);
CREATE TABLE wholes(whole INTEGER PRIMARY KEY, text TEXT, fields TEXT);
CREATE TABLE examples(position INTEGER PRIMARY KEY, training INTEGER, key INTEGER, user INTEGER, time REAL,
                      answer INTEGER, empty INTEGER, held INTEGER, near INTEGER, scored INTEGER, id TEXT,
                      query TEXT, input TEXT, target TEXT, relevant TEXT, category TEXT, alternatives TEXT,
                      UNIQUE(training, key));
CREATE INDEX examples_by_user ON examples(user);
CREATE INDEX examples_by_flags ON examples(training, empty, held, near);
CREATE TABLE units(position INTEGER PRIMARY KEY, unit TEXT);
CREATE TABLE choices(position INTEGER PRIMARY KEY, options TEXT);
CREATE TABLE profiles(position INTEGER PRIMARY KEY, rows BLOB, whole BLOB);
CREATE TABLE summary(name TEXT PRIMARY KEY, value);
"""

_NEAR = 0.6  # of the target's words in one document of the history: the answer is nearly there to be copied


def stored(connection: sqlite3.Connection, rows: Iterable[int]) -> dict[int, Document]:
    """The documents by their rows. Raises UserError where one was deleted or never was."""
    query = (
        "SELECT row, id, name, text, fields, time, until, user, start, stop FROM documents "
        "JOIN texts USING (row) LEFT JOIN users ON code = user LEFT JOIN passages USING (row) "
        "WHERE row IN (SELECT value FROM json_each(?)) AND documents.gone IS NULL"
    )
    wanted, found = [*rows], {}
    for row, id, name, text, fields, time, until, user, *span in connection.execute(
        query, (json.dumps(wanted),)
    ):
        document = Document(id, name or "", text, json.loads(fields), time, until, user == SHARED)
        found[row] = document if span[0] is None else as_passage(document, (span[0], span[1]))
    if missing := [row for row in wanted if row not in found]:
        raise UserError(
            f"row {missing[0]} holds no document (any more); ask the store again for the rows to read"
        )
    return found


def corpus_of(value: str | int) -> Corpus | None:
    """How a store cuts documents, from its summary; None: not at all."""
    return Corpus(**json.loads(value)) if isinstance(value, str) else None


def whole_of(connection: sqlite3.Connection, row: int) -> Document:
    """The document that the row is a passage of, or that stands in it. UserError as of `stored`."""
    found = stored(connection, [row])[row]
    if not found.part_of:
        return found
    query = "SELECT wholes.text, wholes.fields FROM passages JOIN wholes USING (whole) WHERE row=?"
    text, fields = connection.execute(query, (row,)).fetchone()
    return replace(found, id=found.part_of, text=text, fields=json.loads(fields), part_of="", span=(0, 0))


def flags(target: str | None, profile: Sequence[Document], field: str | None) -> tuple[int, int, int]:
    """Whether a history is empty, holds the target in this field, and nearly holds it there or in a text."""
    if field is None or target is None:
        return int(not profile), 0, 0
    answer, wanted = composed(target).strip(), set(words(target))
    held = any(composed(d.fields.get(field, "")).strip() == answer for d in profile)
    least = _NEAR * len(wanted)
    near = wanted and any(len(wanted & set(words(d.fields.get(field) or d.text))) >= least for d in profile)
    return int(not profile), int(held), int(bool(near))


def values_of(document: Document) -> tuple[Any, ...]:
    """Id, text, fields as JSON, and both moments."""
    fields = json.dumps(dict(document.fields), ensure_ascii=False)
    return document.id, document.text, fields, moment(document.time), moment(document.until)


def check_texts(document: Document) -> None:
    """Raises UserError for what is no text, or has no bytes: half of a character (a lone surrogate)."""
    for name in ("user_id", "id", "text"):
        if not isinstance(value := getattr(document, name), str):
            raise UserError(f"document {document.id!r:.40} has {name} {value!r:.40}, want a text; correct it")
    try:
        " ".join((document.user_id, *values_of(document)[:3])).encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"document {document.id!r} of user {document.user_id!r} holds {error.object[error.start]!r}, "
            "which is half of a character; decode its text anew, or replace that"
        ) from error


def latest(profile: Sequence[Document], newest: int | None) -> Sequence[int]:
    """Places of so many of the latest documents, undated ones being the oldest, in order; None: all."""
    if newest is None:
        return range(len(profile))
    by_age = sorted(range(len(profile)), key=lambda i: -math.inf if (t := profile[i].time) is None else t)
    return sorted(by_age[max(len(profile) - newest, 0) :])


def moment(value: float | None) -> float | None:
    """As it is stored. Raises UserError for what is no moment: of nan SQLite makes null, which is undated."""
    if value is None:
        return None
    if not value > -math.inf:
        raise UserError(f"a time is {value}, want seconds since 1970, or None where there is no date")
    return float(value) + 0.0  # SQLite knows no -0.0

"""A store on a full disk: a call that raises keeps nothing, and everything can be read."""

import sqlite3
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pbr_jax.base.types import Document, Example, UserError
from pbr_jax.corpus import database
from pbr_jax.corpus.store import Store, build


class Full(sqlite3.Connection):
    """A connection to a disk on which files cannot grow: what is written goes to the log while it fits."""

    pages = 1 << 30
    checkpoints = True

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if "wal_checkpoint" in sql and not Full.checkpoints:
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        if sql.startswith("BEGIN IMMEDIATE"):
            super().execute(f"PRAGMA max_page_count={Full.pages}")
        return super().execute(sql, *values)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    old = Document("old", "ann", "An old text.")
    build(tmp_path / "built.sqlite", [Example("q", "ann", "q", "q", "t", (old,))])
    store = Store(tmp_path / "built.sqlite").copy_to(tmp_path / "s" / "store.sqlite")
    monkeypatch.setattr(Full, "pages", 1 << 30)
    monkeypatch.setattr(Full, "checkpoints", True)
    monkeypatch.setattr(database.sqlite3, "connect", partial(sqlite3.connect, factory=Full))
    return store


def texts(store: Store) -> list[str]:
    return sorted(text for _, text in store.texts())


def document(number: int) -> Document:
    return Document(f"d{number}", "ann", f"{number:03} " + "x" * 20_000)


def test_an_addition_is_kept_or_raises(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First the log cannot be emptied; then nothing more fits in."""
    monkeypatch.setattr(Full, "checkpoints", False)
    kept = texts(store)
    for number in range(60):
        if number == 5:
            monkeypatch.setattr(Full, "pages", 60)
        try:
            store.append([document(number)])
        except OSError:
            break
        kept = sorted([*kept, document(number).text])
        assert texts(store) == kept
    assert 6 < len(kept) < 60  # the disk became full
    assert texts(store) == texts(Store(store._path)) == kept


def test_a_deletion_says_that_bytes_are_left_and_they_go_later(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pbr_jax.corpus.store.PATIENCE", 0)
    monkeypatch.setattr(Full, "checkpoints", False)
    with pytest.raises(UserError, match="the disk is full, so their bytes are still in the files"):
        store.delete("ann", ["old"])
    assert texts(store) == []
    log = store._path.with_name("store.sqlite-wal")
    assert log.stat().st_size
    monkeypatch.setattr(Full, "checkpoints", True)
    assert texts(Store(store._path)) == []
    assert b"An old text" not in store._path.read_bytes() + log.read_bytes()

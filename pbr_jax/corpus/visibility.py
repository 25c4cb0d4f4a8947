"""The rule against leakage: who may see which documents of a store.

A question sees its own profile list as released; of another user it sees only documents dated before the
question, and none that is its own target. A coarse date counts as its last moment: what is dated "2015" was
not before any question of that year.

What depends on a store counts this module and `columns` by their source (`parts.data`).
"""

import abc
import hashlib
import sqlite3
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from pbr_jax.corpus.columns import Columns
from pbr_jax.corpus.schema import GONE
from pbr_jax.types import Example
from pbr_jax.words import composed


class Visibility(abc.ABC):
    """What a store has of the rule; the store reads."""

    @property
    @abc.abstractmethod
    def columns(self) -> Columns:
        """Owners, times and answers of all documents as they are now."""

    @abc.abstractmethod
    def reading(self) -> AbstractContextManager[sqlite3.Connection]:
        """All that this thread reads inside is of one state."""

    @abc.abstractmethod
    def _rows(self, query: str, values: tuple[Any, ...] = ()) -> list[Any]:
        """What a query finds."""

    def visible(self, example: Example, user_id: str) -> np.ndarray:
        """Rows of the user's documents that may answer this example, int64 [r], in profile order; "": shared.

        The asking user's own documents are the example's profile list; an example that is not stored (a new
        question) sees the user's whole history. Of other users, and of the shared documents, it sees undated
        ones and those dated before it (an example without a time sees no dated ones), but none that holds its
        target. An unknown user is an error, never everybody.
        """
        with self.reading():
            if user_id and user_id == example.user_id:
                query = (
                    "SELECT rows FROM examples JOIN profiles USING (position) "
                    "WHERE training=? AND key=? AND id=?"
                )
                stored = self._rows(query, (int(example.training), key(example.id), example.id))
                if not stored:
                    return self.history(user_id)
                rows = np.frombuffer(stored[0][0], np.int64)
                return rows[self.columns.table["user"][rows] != GONE]  # without hidden ones
            rows = self.before(user_id, example.time)
            if not user_id and not self.columns.shared.answers:
                return rows  # by so many questions a copy for each would be more than the memory
            return rows[~self.leaks_target(example, rows)]

    def leaks_target(self, example: Example, rows: np.ndarray) -> np.ndarray:
        """Which of these rows hold the example's own target as their answer, bool [r]."""
        answer = answer_key(example.target)
        if answer is None:
            return np.zeros(len(rows), bool)
        return self.columns.table["answer"][rows] == answer

    def training_rows(self, user_id: str) -> np.ndarray:
        """Rows of the user's documents that may be learned from, int64 [r], in the order of `history`.

        Of a user with evaluated questions, those that every one of them sees: where a history grows from
        question to question, a later document holds the target of an earlier one. Of other users, all.
        """
        query = "SELECT whole FROM examples JOIN profiles USING (position) WHERE +training=0 AND user=?"
        with self.reading():
            rows = self.history(user_id)
            for (seen,) in self._rows(query, (self.code(user_id),)):
                rows = rows[np.isin(rows, np.frombuffer(seen, np.int64))]
            return rows

    def before(self, user_id: str, time: float | None) -> np.ndarray:
        """Rows of a user's documents that are undated or dated before a time, int64 [r]; None: undated.

        The whole interval of a coarse date must lie before.
        """
        columns, moment = self.columns, -np.inf if time is None else time
        rows = columns.rows(columns.code(user_id))
        if not user_id and (columns.shared.until < moment or columns.shared.until == -np.inf):
            return rows
        ends = columns.table["until"][rows]
        return rows[np.isnan(ends) | (ends < moment)]

    def history(self, user_id: str) -> np.ndarray:
        """All rows of one user's documents, int64 [r]; "": of the shared ones."""
        columns = self.columns
        return columns.rows(columns.code(user_id))

    def code(self, user_id: str) -> int:
        """The number that stands for a user in `owners`, `SHARED` for ""; UserError for an unknown user."""
        return self.columns.code(user_id)


def answer_key(text: str | None) -> int | None:
    """A number by which equal answers are known; None where there is no answer."""
    return key(composed(text).strip()) if text is not None and text.strip() else None


def key(text: str) -> int:
    """A number of 64 bits by which a text is found; never 0."""
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True) or 1

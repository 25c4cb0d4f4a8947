"""The rule against leakage: which documents of a store a question may see.

A question sees its own profile as released. Of other users it sees only documents that are dated before the
question and are not its target. A coarse date counts as its last moment: a document dated "2015" is not
before any question of that year.

The keys of stages that read a store cover the source of this module and of `columns` (`stages.data`).
"""

import abc
import hashlib
import sqlite3
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from pbr_jax.base.types import Example, UserError
from pbr_jax.base.words import composed, person
from pbr_jax.corpus.columns import Columns
from pbr_jax.corpus.schema import GONE


class Visibility(abc.ABC):
    """The part of a store that applies the rule."""

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
        """Rows of a user's documents that this example may see, int64 [r], in profile order; "": shared ones.

        Of the asking user's documents, an example sees those in its profile. A new question, which is not in
        the store, sees the user's whole history. Of other users' and shared documents, it sees those without
        a date and those dated before it, except documents whose answer is its target. An example without a
        time sees no dated ones. Raises UserError for an unknown user.
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
        """Which of these rows have the example's own target as their answer, bool [r]."""
        answer = answer_key(example.target)
        if answer is None:
            return np.zeros(len(rows), bool)
        return self.columns.table["answer"][rows] == answer

    def training_rows(self, user_id: str) -> np.ndarray:
        """Rows of the user's documents that may be used for training, int64 [r], in the order of `history`.

        For a user with evaluated questions, these are the documents that all of the questions see: if a
        history grows from question to question, later documents contain targets of earlier questions. For
        other users, all documents.
        """
        query = "SELECT whole FROM examples JOIN profiles USING (position) WHERE +training=0 AND user=?"
        with self.reading():
            rows = self.history(user_id)
            for (seen,) in self._rows(query, (self.code(user_id),)):
                rows = rows[np.isin(rows, np.frombuffer(seen, np.int64))]
            return rows

    def before(self, user_id: str, time: float | None) -> np.ndarray:
        """Rows of a user's documents without a date or dated before a time, int64 [r]; None: without a date.

        A coarse date must end before this time.
        """
        columns, moment = self.columns, -np.inf if time is None else time
        rows = columns.rows(columns.code(user_id))
        if not user_id and (columns.shared.until < moment or columns.shared.until == -np.inf):
            return rows
        ends = columns.table["until"][rows]
        return rows[np.isnan(ends) | (ends < moment)]

    def history(self, user_id: str) -> np.ndarray:
        """All rows of one user's documents, int64 [r]; "": of the shared documents."""
        columns = self.columns
        return columns.rows(columns.code(user_id))

    def named(self, user: str) -> str:
        """A user's name as it is stored: as given if it is known, else as `words.person` gives it. Raises
        UserError for a name without a visible character."""
        name = user if user in self.columns.codes else person(user)
        if not name:
            raise UserError(f"user is {user!r:.40}, want a name with visible characters")
        return name

    def code(self, user_id: str) -> int:
        """The code of a user in `owners`; `SHARED` for "". Raises UserError for an unknown user."""
        return self.columns.code(user_id)


def answer_key(text: str | None) -> int | None:
    """A hash of an answer, equal for equal answers; None: there is no answer."""
    return key(composed(text).strip()) if text is not None and text.strip() else None


def key(text: str) -> int:
    """A 64-bit hash of a text, never 0."""
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True) or 1

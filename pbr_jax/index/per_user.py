"""Exact search inside one user's documents, or inside each of several users', for many users at once.

All users' documents are rows of one matrix; a search touches only the rows that a scope names. That
is numpy on the host on purpose: a history holds 10 to 1,000 documents, and copying so few rows and
scoring them takes less than handing them to a device (measured in benchmarks/RESULTS.md).

Every dot product is computed by itself (`np.vecdot`), not as part of a matrix product, whose last
bit depends on the rows around it: equal vectors get equal scores, and a document's score does not
depend on which others are in scope.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from pbr_jax.index.base import Owners, check_matrix
from pbr_jax.index.top_k import top_positions
from pbr_jax.types import UserError


class Scope(NamedTuple):
    """Rows of the matrix that may be returned for a query; all must be owned by `user_id`."""

    user_id: str
    rows: np.ndarray


class Hits(NamedTuple):
    """The best rows inside each scope, best first; row -1 and score -inf where there are fewer than k.

    `m` is the largest number of scopes that a query has.
    """

    rows: Int[np.ndarray, "q m k"]
    scores: Float[np.ndarray, "q m k"]


class PerUserIndex:
    """The documents of all users in one matrix, searched user by user.

    `vectors` is [n, d], an array or a memory map; `owners` gives each row's user as an id, or as an
    integer that stands for the id `str(integer)`. Rows of a user need not be neighbours, but are
    read faster where they are. Raises `UserError` for NaN, infinity, and lengths that differ.
    """

    def __init__(self, vectors: Float[np.ndarray, "n d"], owners: Sequence[str] | np.ndarray) -> None:
        if len(vectors) != len(owners):
            raise UserError(f"{len(vectors)} vectors for {len(owners)} owners; give one owner a vector")
        self.vectors = check_matrix(vectors)
        self.owners = Owners(owners)

    def __len__(self) -> int:
        return len(self.vectors)

    def rows(self, user_id: str) -> np.ndarray:
        """The rows of a user, ascending; none for a user without documents."""
        return self.owners.rows(user_id)

    def scopes(self, users: Sequence[Collection[str]]) -> list[list[Scope]]:
        """For each query, a scope with all rows of each user it names."""
        for number, named in enumerate(users):
            if isinstance(named, str):
                raise UserError(
                    f"users[{number}] is {named!r}; write [user_id] for a query that searches one user"
                )
        return [[Scope(user, self.rows(user)) for user in named] for named in users]

    def search(self, queries: Float[np.ndarray, "q d"], scopes: Sequence[Sequence[Scope]], k: int) -> Hits:
        """The `k` rows of highest dot product inside each scope of each query.

        Each scope is ranked by itself. Equal scores go to the lower row. A scope without rows (a
        new user) finds nothing. Raises `UserError`, before anything is scored, when a scope lists
        a row that its user does not own.
        """
        if len(scopes) != len(queries):
            raise UserError(
                f"{len(scopes)} lists of scopes for {len(queries)} queries; give one list a query"
            )
        if k < 1:
            raise UserError(f"k is {k}, but at least 1 result must be asked for")
        queries = check_matrix(queries, self.vectors.shape[1], "queries")
        self._check_owned(scopes)
        shape = (len(queries), max(map(len, scopes), default=0), k)
        rows, scores = np.full(shape, -1, np.int64), np.full(shape, -np.inf, np.float32)
        for q, of_query in enumerate(scopes):
            for m, scope in enumerate(of_query):
                found, values = nearest(self.vectors, scope.rows, queries[q], k)
                rows[q, m, : len(found)], scores[q, m, : len(found)] = found, values
        return Hits(rows, scores)

    def _check_owned(self, scopes: Sequence[Sequence[Scope]]) -> None:
        """Every row of every scope belongs to the scope's user, checked for all scopes at once."""
        flat = [scope for of_query in scopes for scope in of_query]
        rows = [np.asarray(scope.rows) for scope in flat]
        wrong = [
            scope
            for scope, own in zip(flat, rows)
            if (own.size and own.dtype.kind not in "iu") or own.ndim != 1
        ]
        if wrong:
            raise UserError(f"the scope of user {wrong[0].user_id!r} has no flat list of integer rows")
        if not flat:
            return
        sizes = np.array([len(own) for own in rows])
        listed = np.concatenate(rows).astype(np.int64)
        owner = np.repeat([self.owners.code(scope.user_id) for scope in flat], sizes)
        inside = (listed >= 0) & (listed < len(self))
        owned = np.zeros(len(listed), bool)
        owned[inside] = self.owners.codes[listed[inside]] == owner[inside]
        if not owned.all():
            at = int(np.argmin(owned))
            scope = flat[int(np.searchsorted(np.cumsum(sizes), at, side="right"))]
            raise UserError(
                f"row {listed[at]} is in the scope of user {scope.user_id!r}, who does not own it; "
                "take the rows of a scope from rows(user_id)"
            )


def nearest(
    vectors: Float[np.ndarray, "n d"], rows: np.ndarray, query: Float[np.ndarray, " d"], k: int
) -> tuple[Int[np.ndarray, " m"], Float[np.ndarray, " m"]]:
    """The `m = min(k, distinct rows)` rows of highest dot product with `query`, and their scores."""
    rows = np.asarray(rows, np.int64)
    if len(rows) == 0:
        return rows, np.empty(0, np.float32)
    if len(rows) > 1 and not (rows[1:] > rows[:-1]).all():
        rows = np.unique(rows)  # ascending, so that the lower position is the lower row
    first, last = int(rows[0]), int(rows[-1])
    adjacent = last - first + 1 == len(rows)  # then a view serves, and a memory map is read in one go
    documents = np.asarray(vectors[first : last + 1] if adjacent else vectors[rows], np.float32)
    scores = np.vecdot(documents, query)
    best = top_positions(scores, k)
    return rows[best], scores[best]

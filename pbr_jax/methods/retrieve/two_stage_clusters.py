"""The clusters of a user's documents, each profile's computed once (Nkhata et al., 2026, section 4.2)."""

import hashlib
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial

import numpy as np

from pbr_jax.base.files import cache_folder, private_folder, tighten
from pbr_jax.base.locks import locked, require_locks
from pbr_jax.base.types import UserError
from pbr_jax.cache.code import code_of
from pbr_jax.index.base import Matrix
from pbr_jax.index.density import NOISE, hdbscan

_SCHEMA = "CREATE TABLE IF NOT EXISTS profiles(key BLOB PRIMARY KEY, labels BLOB NOT NULL) WITHOUT ROWID"


class ProfileClusters:
    """The clusters of profiles by HDBSCAN: each is computed once, and known by the vectors of its documents.

    So a document more in one history makes the clusters of that history alone anew, whatever else moved. A
    question that sees less of a history than another has clusters of its own: a later document changes none
    of an earlier question. They are kept in one SQLite file beside the artefacts.

    Args:
      means: document vectors, float32 [n e].
    """

    def __init__(self, means: Matrix, min_cluster_size: int, min_samples: int) -> None:
        self.means = means
        self.computed = 0  # profiles, by this object
        self._cluster = partial(hdbscan, min_cluster_size=min_cluster_size, min_samples=min_samples)
        codes = code_of(self._cluster), code_of(type(self))
        self._code = f"{codes} {min_cluster_size} {min_samples}".encode()
        self._known: dict[bytes, np.ndarray] = {}

    def labels(self, profiles: Sequence[np.ndarray]) -> list[np.ndarray]:
        """For each profile, as rows, the cluster of each document: 0, 1, ... or `NOISE`. One alone is 0."""
        keys = [self._key(rows) for rows in profiles]
        missing = {key: rows for key, rows in zip(keys, profiles, strict=True) if key not in self._known}
        if missing:
            self._known |= _found(list(missing))
            made = {key: self._made(rows) for key, rows in missing.items() if key not in self._known}
            self.computed += len(made)
            self._known |= made
            _keep(made)
        return [self._known[key] for key in keys]

    def _made(self, rows: np.ndarray) -> np.ndarray:
        if len(rows) == 1:
            return np.zeros(1, np.int32)
        return self._cluster(self.means[rows]).astype(np.int32)

    def _key(self, rows: np.ndarray) -> bytes:
        vectors = np.ascontiguousarray(self.means[rows], np.float32)
        return hashlib.sha256(self._code + vectors.tobytes()).digest()


def alone(labels: np.ndarray) -> np.ndarray:
    """The same labels, each document of noise a cluster of its own."""
    noise = labels == NOISE
    found = labels.copy()
    found[noise] = labels.max(initial=NOISE) + 1 + np.arange(noise.sum())
    return found


# -- the file of clusters ------------------------------------------------------------------------------


@contextmanager
def _connection() -> Iterator[sqlite3.Connection]:
    file = cache_folder() / "clusters.sqlite"
    private_folder(file.parent)
    require_locks(file.parent)
    with closing(sqlite3.connect(file, timeout=60)) as connection:
        tighten(file)
        # Who changes the journal waits for nobody: so only of a new file, and nobody looks at it meanwhile.
        with locked(file.with_suffix(".lock")):
            if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute(_SCHEMA)
        yield connection


def _found(keys: list[bytes]) -> dict[bytes, np.ndarray]:
    with _told(), _connection() as connection:
        query = "SELECT labels FROM profiles WHERE key=?"
        rows = ((key, connection.execute(query, (key,)).fetchone()) for key in keys)
        return {key: np.frombuffer(row[0], np.int32) for key, row in rows if row is not None}


def _keep(made: dict[bytes, np.ndarray]) -> None:
    with _told(), _connection() as connection, connection:
        values = [(key, labels.tobytes()) for key, labels in made.items()]
        connection.executemany("INSERT OR IGNORE INTO profiles VALUES (?,?)", values)


@contextmanager
def _told() -> Iterator[None]:
    """Makes a UserError of what SQLite or the disk says."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        file = cache_folder() / "clusters.sqlite"
        raise UserError(
            f"{file}: {error}; it is a cache that can be spared: remove it, or mend its folder"
        ) from error

"""Vectors of texts, kept by content: shared by all runs and processes, found again by the hash of a text.

What an encoder makes of a role's texts lies in one folder of the cache, whose name is the hash of all that
those vectors depend on. `vectors.f32` holds float32 vectors one after another, `digests` the first 16 bytes
of the sha256 of each text. Both only grow, vectors first, so that a process that dies loses no more than the
texts it is encoding. A text is never stored. `erase` overwrites the vector with NaN and the digest with
zeros; the text is encoded again where somebody still has it.
"""

import hashlib
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from pbr_jax.base import terminal
from pbr_jax.base.files import cache_folder, private_folder
from pbr_jax.base.locks import locked
from pbr_jax.base.system_errors import located
from pbr_jax.base.types import UserError
from pbr_jax.corpus.store import Store
from pbr_jax.index import engines
from pbr_jax.models.sentence_folder import Role

CHUNK = 1024  # texts encoded before their vectors are on disk
_DIGEST = 16  # bytes
_ERASED = bytes(_DIGEST)
_UNKNOWN, _DELETED = -1, -2  # in place of a place


@runtime_checkable
class AnyEncoder(Protocol):
    """What makes vectors."""

    @property
    def dim(self) -> int: ...

    def vectors_key(self, role: Role) -> str: ...

    def encode(self, texts: Sequence[str], *, role: Role = "document") -> np.ndarray: ...


class VectorStore:
    """Vectors of the texts of one role by one encoder, by the texts' digests.

    Args:
      encoder: what makes the missing ones.
      role: of the texts.
      folder: whose subfolder holds them; the cache's where left out.
    """

    def __init__(self, encoder: AnyEncoder, role: Role = "document", folder: Path | None = None) -> None:
        self.encoder, self.dim = encoder, encoder.dim
        self.role: Role = role
        name = f"{encoder.vectors_key(role)[:32]}-{self.dim}"
        self.folder = (folder or cache_folder() / "vectors") / name
        self._files = _Files(self.folder, self.dim)
        self._places: dict[bytes, int] = {}
        self._count = 0  # of digests that were read

    def places(self, texts: Sequence[str]) -> np.ndarray:
        """Where each text's vector stands, int64 [n]; what is missing is encoded, and is then on disk."""
        digests = [digest(text) for text in texts]
        if any(one not in self._places for one in digests):
            with self._files.writing():
                self._refresh()
                missing = {d: t for d, t in zip(digests, texts) if d not in self._places}
                if missing:
                    vectors = self.encoder.encode(list(missing.values()), role=self.role)
                    self._files.append(list(missing), _finite(vectors))
                    self._refresh()
        return np.array([self._places[one] for one in digests], np.int64)

    def missing(self, texts: Iterable[str]) -> list[str]:
        """The texts, each once, that have no vector yet."""
        with suppress(FileNotFoundError):  # nothing was ever encoded
            self._refresh()
        return [text for text in dict.fromkeys(texts) if digest(text) not in self._places]

    def add(self, texts: Sequence[str], vectors: np.ndarray) -> None:
        """Adds vectors that the encoder made of these texts while no lock was held."""
        with self._files.writing():
            self._files.append([digest(text) for text in texts], _finite(vectors))

    def read(self, places: np.ndarray) -> np.ndarray:
        """The vectors at these places, float32 [n d]; NaN for those that were erased."""
        return self._files.read(places)

    def forget(self, places: np.ndarray) -> None:
        """Looks for the texts of erased vectors anew."""
        gone = set(places.tolist())
        self._places = {one: place for one, place in self._places.items() if place not in gone}

    def _refresh(self) -> None:
        """Reads what was added since; of two vectors of a text the later one counts."""
        new = self._files.digests(self._count)
        for place, one in enumerate(new, self._count):
            if one != _ERASED:
                self._places[one] = place
        self._count += len(new)


class _Files:
    """The two files of a folder, and its lock."""

    def __init__(self, folder: Path, dim: int) -> None:
        self.vectors, self.names, self._lock = folder / "vectors.f32", folder / "digests", folder / "lock"
        self._dim, self._size, self._mapped = dim, 4 * dim, np.zeros((0, dim), np.float32)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """One process at a time; what another left behind when it died is cut off."""
        private_folder(self.vectors.parent)
        with located(self.vectors), locked(self._lock):
            for path in (self.vectors, self.names):
                os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            count = self.names.stat().st_size // _DIGEST
            os.truncate(self.names, count * _DIGEST)
            if self.vectors.stat().st_size < count * self._size:
                raise UserError(
                    f"{self.vectors} is shorter than its {count} digests need; delete {self.vectors.parent}, "
                    "its vectors are made again"
                )
            os.truncate(self.vectors, count * self._size)
            yield

    def append(self, digests: Sequence[bytes], vectors: np.ndarray) -> None:
        _write(self.vectors, [(None, vectors.astype("<f4").tobytes())])
        _write(self.names, [(None, b"".join(digests))])  # last: now the vectors are there

    def erase(self, gone: set[bytes], also: Callable[[bytes], bool] | None) -> tuple[int, np.ndarray]:
        """How many were erased, and which places are erased now, bool [n]."""
        data = self.names.read_bytes()
        every, second = np.frombuffer(data, "<u8").reshape(-1, 2).T
        few = np.unique(np.frombuffer(b"".join([_ERASED, *gone]), "<u8")[::2])  # the first halves
        alike = (few.take(np.searchsorted(few, every), mode="clip") == every) | (also is not None)
        named = ((at, data[at * _DIGEST : (at + 1) * _DIGEST]) for at in np.flatnonzero(alike).tolist())
        places = [at for at, one in named if one != _ERASED and (one in gone or (also and also(one)))]
        nothing = np.full(self._dim, np.nan, "<f4").tobytes()
        _write(self.vectors, [(at * self._size, nothing) for at in places])
        _write(self.names, [(at * _DIGEST, _ERASED) for at in places])
        erased = (every | second) == 0
        erased[places] = True
        return len(places), erased

    def digests(self, start: int) -> list[bytes]:
        with self.names.open("rb") as file:
            file.seek(start * _DIGEST)
            data = file.read()
        return [data[at : at + _DIGEST] for at in range(0, len(data) - _DIGEST + 1, _DIGEST)]

    def read(self, places: np.ndarray) -> np.ndarray:
        if len(places) and places.max() >= len(self._mapped):
            count = self.vectors.stat().st_size // self._size
            self._mapped = np.memmap(self.vectors, "<f4", "r", shape=(count, self._dim))
        return np.asarray(self._mapped[places], np.float32)


def erase(texts: Iterable[str], also: Callable[[bytes], bool] | None = None) -> int:
    """Overwrites the vectors of these texts, by all encoders, on disk, and `also` those with such digests;
    returns how many there were.

    They are deleted from the files of all engines too.
    """
    gone, total = {digest(text) for text in texts}, 0
    for folder in sorted((cache_folder() / "vectors").glob("*-*")):
        width = int(folder.name.rpartition("-")[2])
        files = _Files(folder, width)
        with files.writing():
            count, erased = files.erase(gone, also)
        engines.erase(folder, erased, width)
        total += count
    return total


def digest(text: str) -> bytes:
    """What a text is known by."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[:_DIGEST]


def _finite(vectors: np.ndarray) -> np.ndarray:
    if not np.isfinite(vectors).all():
        raise UserError("the encoder gives NaN or infinity for a text; get its weights anew")
    return vectors


def _write(path: Path, pieces: Iterable[tuple[int | None, bytes]]) -> None:
    """Writes bytes at their offsets (None: at the end), safe on disk when it returns."""
    with path.open("r+b") as file:
        for offset, data in pieces:
            file.seek(*((0, os.SEEK_END) if offset is None else (offset,)))
            file.write(data)
        file.flush()
        os.fsync(file.fileno())


class Vectors:
    """The vectors of a store's documents, float32 [n d], by their rows.

    `vectors[rows]` finds them by the documents' texts and encodes what is missing. Documents that are added
    to the store are there at once. Deleted ones are zeros.
    """

    def __init__(self, store: Store, vectors: VectorStore) -> None:
        self._store, self._vectors = store, vectors
        self._places = np.zeros(0, np.int64)  # of the rows

    def __len__(self) -> int:
        return len(self._store.owners)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows, the numbers of deleted documents among them, and width."""
        return len(self), self._vectors.dim

    def __getitem__(self, rows: Any) -> np.ndarray:
        if len(self) > len(self._places):
            new = np.full(len(self) - len(self._places), _UNKNOWN, np.int64)
            self._places = np.concatenate([self._places, new])
        numbers = np.arange(*rows.indices(len(self))) if isinstance(rows, slice) else np.asarray(rows, int)
        flat = numbers.ravel()
        self._look_up(flat[self._places[flat] == _UNKNOWN])
        vectors = self._read(flat)
        erased = np.isnan(vectors[:, 0])
        if erased.any():
            self._vectors.forget(self._places[flat[erased]])
            self._places[flat[erased]] = _UNKNOWN
            self._look_up(flat[erased])
            vectors = self._read(flat)
        return vectors.reshape(*numbers.shape, self._vectors.dim)

    @property
    def folder(self) -> Path:
        """Where the vectors lie."""
        return self._vectors.folder

    def places(self, rows: np.ndarray) -> np.ndarray:
        """Where in their files the vectors of rows stand that were just read; below 0: deleted documents."""
        return self._places[rows]

    def _read(self, rows: np.ndarray) -> np.ndarray:
        places = self._places[rows]
        vectors = np.zeros((len(rows), self._vectors.dim), np.float32)
        there = places >= 0
        vectors[there] = self._vectors.read(places[there])
        return vectors

    def _look_up(self, rows: np.ndarray) -> None:
        self._places[rows] = _DELETED
        rows = np.unique(rows)
        for start in range(0, len(rows), CHUNK):
            with self._store.reading():  # not while encoding: a deletion waits for readers
                known = dict(self._store.texts(rows[start : start + CHUNK]))
            self._places[list(known)] = self._vectors.places(list(known.values()))
            if gone := self._store.gone(known):  # deleted while they were encoded
                erase(known[row] for row in gone)
                self._places[gone] = _DELETED


def complete(store: Store, vectors: VectorStore, label: str) -> None:
    """Encodes what is missing of a store's documents, with a progress bar."""
    with terminal.bar(desc=label, total=store.summary.documents, unit="text") as bar:
        texts = (text for _, text in store.texts())
        while some := list(itertools.islice(texts, CHUNK)):
            vectors.places(some)
            bar.update(len(some))

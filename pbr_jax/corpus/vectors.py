"""Embeddings of many texts in one file that survives a crash."""

import hashlib
import io
import itertools
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol, runtime_checkable

import numpy as np

from pbr_jax.faults import located
from pbr_jax.locks import locked
from pbr_jax.models.sentence_folder import Role
from pbr_jax.types import UserError


@runtime_checkable
class AnyEncoder(Protocol):
    """What `embed_to_file` needs of an encoder."""

    @property
    def dim(self) -> int: ...

    @property
    def fingerprint(self) -> str: ...

    def encode(self, texts: Sequence[str], *, role: Role = "document") -> np.ndarray: ...


def embed_to_file(
    encoder: AnyEncoder,
    texts: Iterable[str],
    n: int,
    path: Path,
    *,
    role: Role = "document",
    chunk: int = 4096,
) -> np.ndarray:
    """Embeddings of many texts as a memory-mapped float32 .npy file [n d].

    Chunks are written as they are encoded, and a marker beside the file (`NAME.progress.json`) holds a
    hash of each. So a run that was killed continues where it stopped, a run that was done encodes
    nothing, and where texts have changed work starts at the first chunk that differs. Memory is bounded
    by the chunk. A lock keeps two processes from writing one file.

    Args:
      texts: n texts, read once and lazily.
      n: how many they are.
      path: the file; it appears when it is complete.
      chunk: texts encoded together.

    Raises:
      UserError: there are more or fewer texts than n.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with located(path), locked(path.with_name(f"{path.name}.lock")):
        _EmbeddingFile(encoder, path, n, role, chunk).complete(iter(texts))
    return np.load(path, mmap_mode="r" if n else None, allow_pickle=False)


class _EmbeddingFile:
    """The file being written and its marker.

    A hash in the marker promises that its chunk is safe on disk, in the partial file where there is
    one, else in the complete file; every step below keeps that promise if the process dies after it.
    """

    def __init__(self, encoder: AnyEncoder, path: Path, n: int, role: Role, chunk: int):
        self.encoder, self.path, self.n, self.chunk = encoder, path, n, chunk
        self.role: Role = role
        self.partial = path.with_name(f"{path.name}.partial")
        self.marker = path.with_name(f"{path.name}.progress.json")
        self.job = dict(encoder=encoder.fingerprint, role=role, n=n, dim=encoder.dim, chunk=chunk)
        header = io.BytesIO()
        form = {"descr": "<f4", "fortran_order": False, "shape": (n, encoder.dim)}
        np.lib.format.write_array_header_1_0(header, form)
        self.header = header.getvalue()

    def complete(self, texts: Iterator[str]) -> None:
        """Bring the file to its end, whatever is there already."""
        hashes = self._recorded()
        start = 0
        for number in itertools.count():
            piece = list(itertools.islice(texts, self.chunk))
            if start + len(piece) > self.n or (not piece and start < self.n):
                found = f"only {start}" if not piece else f"more than {self.n}"
                raise UserError(
                    f"{self.path}: {found} texts came where {self.n} were announced; give their true number"
                )
            if not piece:
                break
            digest = _digest(piece)
            if hashes[number : number + 1] != [digest]:
                if hashes[number:]:
                    del hashes[number:]
                    self._detach(hashes)
                self._write(start, self.encoder.encode(piece, role=self.role))
                hashes.append(digest)
                self._record(hashes)
            start += len(piece)
        if self.partial.exists():
            os.replace(self.partial, self.path)

    def _recorded(self) -> list[str]:
        """Hashes of the chunks that are safe on disk; prepares an empty file where there are none."""
        try:
            marker = json.loads(self.marker.read_text())
            hashes = list(marker["chunks"]) if marker["job"] == self.job else []
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            hashes = []
        whole = len(hashes) * self.chunk >= self.n
        if hashes and (self.partial.exists() or (whole and self.path.exists())):
            return hashes
        self._record([])
        with _atomic(self.partial) as stream:
            stream.write(self.header)
            stream.truncate(len(self.header) + self.n * self.encoder.dim * 4)
        return []

    def _detach(self, hashes: list[str]) -> None:
        """Forget the chunks after `hashes`, and never write into the complete file."""
        if not self.partial.exists():
            with self.path.open("rb") as source, _atomic(self.partial) as stream:
                shutil.copyfileobj(source, stream)
        self._record(hashes)

    def _write(self, start: int, embeddings: np.ndarray) -> None:
        with self.partial.open("r+b") as stream:
            stream.seek(len(self.header) + start * self.encoder.dim * 4)
            stream.write(np.ascontiguousarray(embeddings, "<f4").tobytes())
            stream.flush()
            os.fsync(stream.fileno())

    def _record(self, hashes: list[str]) -> None:
        with _atomic(self.marker) as stream:
            stream.write(json.dumps(dict(job=self.job, chunks=hashes)).encode())


def _digest(texts: Sequence[str]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(b"%d:" % len(data))
        digest.update(data)
    return digest.hexdigest()


@contextmanager
def _atomic(path: Path) -> Iterator[BinaryIO]:
    """A file that appears whole: written under another name, flushed to disk, then renamed."""
    temporary = path.with_name(f"{path.name}.tmp")
    with temporary.open("wb") as stream:
        yield stream
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, path)

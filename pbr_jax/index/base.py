"""What all indices share: matrices and their checks, and the protocol of engines."""

import math
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float, Int

from pbr_jax.base.types import UserError

_REBUILT = 0.1  # share of rows added since an index was built, above which it is built again


@runtime_checkable
class Matrix(Protocol):
    """Vectors [n d]: an array, or an object whose `vectors[rows]` and `vectors[a:b]` are float32 [r d]."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any, /) -> np.ndarray: ...


class Found(NamedTuple):
    """The best rows of each query, best first, padded with row -1 and score -inf if fewer than k."""

    rows: Int[np.ndarray, "q k"]
    scores: Float[np.ndarray, "q k"]


class Rows(NamedTuple):
    """The rows of a matrix that an engine holds, at one time.

    `rows`, int [n], ascend. `vectors` is the matrix by row; the vector of a deleted document is 0. For rows
    whose vectors were just read, `places` returns the numbers by which `Engine.erase` knows them, below 0 for
    deleted documents. A later `version` of the store is larger. For each row number of the store, `owners`,
    int [N], has the code of its owner, and `untils`, float [N], the end of its date in seconds; NaN: none.
    """

    rows: np.ndarray
    vectors: Matrix
    places: Callable[[np.ndarray], np.ndarray] = np.asarray
    version: int = 0
    owners: np.ndarray = np.zeros(0, np.int32)
    untils: np.ndarray = np.zeros(0)


class Engine(ABC):
    """An index of vectors that a config names (`pbr_jax.index.engines`).

    An engine proposes rows. `corpus.search` removes those that may not be seen, and scores the others.

    Args:
      folder: for the engine's files, which no other engine or store uses; None if `saves` is False.
      width: of the vectors.
    """

    saves: ClassVar[bool] = False  # whether the engine keeps files
    everything: ClassVar[bool] = False  # whether it holds users' documents, not only shared ones
    direct: ClassVar[int] = 0  # number of rows in scope up to which it is faster to score all of them
    auto_from: ClassVar[float] = math.inf  # number of vectors from which `auto` takes it, if it is installed

    def __init__(self, folder: Path | None, width: int) -> None:
        self.folder = folder

    @staticmethod  # noqa: B027  an engine without a library needs no check
    def check_installed() -> None:
        """Raises UserError, which says what to install, if the engine's library is missing."""

    @abstractmethod
    def follow(self, current: Rows, label: str = "") -> bool:
        """Brings the index to these rows; returns False if it is already at a later version of the store.

        `label` is the name of a progress bar; no bar is shown if it is "".
        """

    @abstractmethod
    def nearest(
        self, queries: Float[np.ndarray, "q d"], k: int, scopes: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """Rows among which the `k` rows of highest dot product with each query are, in any order.

        `scopes` has the rows that may be returned for each query, ascending. Others may be proposed too, and
        are removed afterwards.
        """

    def erase(self, gone: Bool[np.ndarray, " p"]) -> None:
        """Deletes every vector whose place is `gone`. No byte of it is in a file afterwards.

        By default all files of the engine are deleted, and `follow` writes them again.
        """
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


class Rebuilt(Engine):
    """An engine whose index is built from all rows at once, and built again when a tenth was added.

    Rows that were added since are proposed in addition. Subclasses implement `build` and `positions`.
    """

    def __init__(self, folder: Path | None, width: int) -> None:
        super().__init__(folder, width)
        self.index: Any = None
        self.rows = self._added = np.zeros(0, np.int64)
        self._seen: np.ndarray | None = None

    @abstractmethod
    def build(self, vectors: Matrix) -> Any:
        """The index of these vectors, by position."""

    @abstractmethod
    def positions(self, queries: np.ndarray, k: int) -> np.ndarray:
        """Positions of the candidates for the top k of each query, int [q c]; -1 stands for none."""

    def follow(self, current: Rows, label: str = "") -> bool:
        if self._seen is not current.rows:
            self._added = np.setdiff1d(current.rows, self.rows, assume_unique=True)
            self._seen = current.rows
        if self.index is None or len(self._added) > _REBUILT * len(self.rows):
            self._load(self.build(_Part(current.vectors, current.rows)), current.rows)
        return True

    def _load(self, index: Any, rows: np.ndarray) -> None:
        """Takes an index of some rows. Others are seen as added at the next search."""
        self.index, self.rows = index, rows
        self._added, self._seen = rows[:0], None

    def nearest(self, queries: np.ndarray, k: int, scopes: Sequence[np.ndarray]) -> list[np.ndarray]:
        proposed = []
        for positions, scope in zip(self.positions(queries, k), scopes, strict=True):
            rows = self.rows[positions[positions >= 0]]
            enough = among(rows, scope).sum() >= k
            proposed.append(np.concatenate([rows, self._added]) if enough else scope)
        return proposed


class _Part:
    """Some rows of a matrix as a matrix."""

    def __init__(self, vectors: Matrix, rows: np.ndarray) -> None:
        self._vectors, self._rows = vectors, rows

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self._rows), self._vectors.shape[1]

    def __getitem__(self, positions: Any) -> np.ndarray:
        return self._vectors[self._rows[positions]]


def among(some: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Which of some rows are among ascending rows, bool [s]."""
    places = np.minimum(np.searchsorted(rows, some), len(rows) - 1)
    return rows[places] == some if len(rows) else np.zeros(len(some), bool)


def check_k(k: int) -> None:
    """Raises UserError if the number of results is below 1."""
    if k < 1:
        raise UserError(f"k is {k}, but at least 1 result must be asked for")


def check_matrix(
    vectors: Float[np.ndarray, "n d"], width: int | None = None, name: str = "vectors"
) -> Float[np.ndarray, "n d"]:
    """The matrix as contiguous float32; memory maps are not copied. UserError for a wrong width, NaN, inf."""
    if width is not None and vectors.shape[1] != width:
        raise UserError(f"{name} have width {vectors.shape[1]}, but the index holds vectors of width {width}")
    for start in range(0, len(vectors), 65_536):  # in blocks: the matrix may be a file larger than memory
        finite = np.isfinite(vectors[start : start + 65_536]).all(axis=1)
        if not finite.all():
            raise UserError(
                f"row {start + int(np.argmin(finite))} of {name} holds NaN or infinity; encode it again"
            )
    if isinstance(vectors, np.memmap):
        return vectors
    return np.ascontiguousarray(vectors, np.float32)


def unit(vectors: np.ndarray) -> np.ndarray:
    """Vectors [n d], scaled to unit length. Zero vectors stay zero."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)

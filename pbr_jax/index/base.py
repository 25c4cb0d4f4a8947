"""Shared types and checks of the indices."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from pbr_jax.base.types import UserError


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

"""Exact search by dot product over all vectors: the default index, and the reference for the others.

Vectors are processed in blocks, each sharded over all local devices. Each device ranks its rows, and the best
rows of all devices and blocks are merged. The result does not depend on the number of devices. Sizes are
rounded up to buckets, so new sizes of corpus or batch rarely need a compilation. Neither the matrix of all
scores nor, unless it is an array, the matrix of vectors is ever in memory as a whole.
"""

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Float, Int

from pbr_jax.base.types import UserError
from pbr_jax.index import base
from pbr_jax.index.base import Found, Matrix
from pbr_jax.index.top_k import top_k

QUERIES = 256  # searched together


class _Block(NamedTuple):
    """Some rows of the matrix on the devices, padded."""

    vectors: Float[Array, "n d"]
    filled: int  # rows that are not padding
    start: int


class ExactIndex:
    """Exact search over the rows of a matrix of vectors.

    Args:
      vectors: float32 [n d]. An array stays on the devices. Others (a memory map, `corpus.vectors`) with more
        than `block_rows` rows are read block by block at each search.
      mesh: the devices for the search, along one axis. None: all local devices.
      recall_target: None: exact. Otherwise the least expected share of a query's best rows that are found.
        `jax.lax.approx_max_k` chooses them, without sorting on a TPU, and vectors are bfloat16.
      block_rows: rows scored at a time. This bounds the memory of scores (64 MiB for 256 queries in float32)
        and of vectors that are read at each search.

    Raises `UserError` for an array with NaN or infinity.
    """

    def __init__(
        self,
        vectors: Matrix,
        *,
        mesh: Mesh | None = None,
        recall_target: float | None = None,
        block_rows: int = 65_536,
    ) -> None:
        self._recall, self._dtype = recall_target, jnp.float32 if recall_target is None else jnp.bfloat16
        self._mesh = _local_mesh() if mesh is None else mesh
        if len(self._mesh.axis_names) != 1:
            raise UserError(
                f"the mesh has axes {self._mesh.axis_names}, but vectors are spread over exactly one"
            )
        self._vectors = base.check_matrix(vectors) if isinstance(vectors, np.ndarray) else vectors
        self._block_rows = block_rows
        self._resident: list[_Block] | None = None

    def __len__(self) -> int:
        return len(self._vectors)

    def search(self, queries: Float[np.ndarray, "q d"], k: int) -> Found:
        """The `k` rows with the highest dot product for each query. Ties are resolved by the lower row."""
        queries = base.check_matrix(queries, self._vectors.shape[1], "queries")
        base.check_k(k)
        rows = np.full((len(queries), k), -1, np.int64)
        scores = np.full((len(queries), k), -np.inf, np.float32)
        for start in range(0, len(queries), QUERIES):
            part = slice(start, start + QUERIES)
            rows[part], scores[part] = self._search_some(queries[part], k)
        return Found(rows, scores)

    def _search_some(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        count = len(queries)
        padded = jnp.asarray(np.pad(queries, [(0, _bucket(count) - count), (0, 0)]), self._dtype)
        kept = _bucket(k)
        best = jnp.full((len(padded), kept), -jnp.inf), jnp.full((len(padded), kept), -1)
        for block in self._blocks():
            best = _merge_block(best, padded, *block, mesh=self._mesh, recall=self._recall)
        scores, rows = (np.asarray(part)[:count, :k] for part in best)
        return rows, scores

    def _blocks(self) -> Iterator[_Block]:
        """The matrix in blocks; kept on the devices unless it is large and no array."""
        starts = range(0, len(self._vectors), self._block_rows)
        array = isinstance(self._vectors, np.ndarray) and not isinstance(self._vectors, np.memmap)
        if not array and len(starts) > 1:
            return map(self._block, starts)
        if self._resident is None:
            self._resident = [self._block(start) for start in starts]
        return iter(self._resident)

    def _block(self, start: int) -> _Block:
        part = self._vectors[start : start + self._block_rows]
        devices = self._mesh.size
        size = devices * min(_fine_bucket(-(-len(part) // devices)), -(-self._block_rows // devices))
        vectors = np.zeros((size, part.shape[1]), self._dtype)
        vectors[: len(part)] = part
        over_devices = NamedSharding(self._mesh, P(*self._mesh.axis_names))
        return _Block(jax.device_put(vectors, over_devices), len(part), start)


def _local_mesh() -> Mesh:
    devices = jax.local_devices()
    return jax.make_mesh((len(devices),), ("data",), axis_types=(AxisType.Auto,), devices=devices)


def _bucket(size: int) -> int:
    """The next power of two."""
    return 1 << (size - 1).bit_length()


def _fine_bucket(size: int) -> int:
    """The next of eight sizes an octave, so that at most an eighth is padding."""
    step = max(8, 1 << max(size.bit_length() - 4, 0))
    return -(-size // step) * step


@partial(jax.jit, static_argnames=("mesh", "recall"))
def _merge_block(
    best: tuple[Float[Array, "q k"], Int[Array, "q k"]],
    queries: Float[Array, "q d"],
    vectors: Float[Array, "n d"],
    filled: int | Int[Array, ""],
    start: int | Int[Array, ""],
    *,
    mesh: Mesh,
    recall: float | None = None,
) -> tuple[Float[Array, "q k"], Int[Array, "q k"]]:
    """The best `k` of what was found in earlier blocks and of this one.

    Earlier blocks hold lower rows and come first, as devices do: equal scores thus go to the lower row.
    """
    k = best[0].shape[1]
    (axis,) = mesh.axis_names
    here = partial(_best_of_shard, k=min(k, len(vectors) // mesh.size), axis=axis, recall=recall)
    spread = jax.shard_map(
        here, mesh=mesh, in_specs=(P(), P(axis), P()), out_specs=(P(None, axis), P(None, axis))
    )
    # Said outright, so that these few are what the devices exchange, and nothing larger.
    scores, rows = lax.with_sharding_constraint(
        spread(queries, vectors, jnp.asarray(filled)), NamedSharding(mesh, P())
    )
    scores = jnp.concatenate([best[0], scores], axis=1)
    rows = jnp.concatenate([best[1], jnp.where(rows < 0, -1, rows + start)], axis=1)
    scores, places = top_k(scores, k)
    return scores, jnp.where(places < 0, -1, jnp.take_along_axis(rows, places, axis=1))


def _best_of_shard(
    queries: Float[Array, "q d"],
    vectors: Float[Array, "n d"],
    filled: Int[Array, ""],
    *,
    k: int,
    axis: str,
    recall: float | None,
) -> tuple[Float[Array, "q k"], Int[Array, "q k"]]:
    """One device's best rows, counted within the block."""
    precision, dtype = lax.Precision.HIGHEST, jnp.float32
    scores = jnp.einsum("qd,nd->qn", queries, vectors, precision=precision, preferred_element_type=dtype)
    first = lax.axis_index(axis) * len(vectors)
    inside = (first + jnp.arange(len(vectors)) < filled)[None]
    scores = jnp.where(inside, scores, -jnp.inf)
    if recall is None:
        scores, rows = top_k(scores, k)
    else:
        scores, rows = lax.approx_max_k(scores, k, recall_target=recall)
    return scores, jnp.where((rows < 0) | (scores == -jnp.inf), -1, rows + first)

"""Exact search by dot product over all vectors: the default index, and the oracle of the others.

The vectors lie in blocks, each spread over all local devices; a device ranks its rows, and the few
best of every device and block are merged. The result does not depend on the number of devices.
Sizes are rounded up to buckets, so a growing corpus or another batch of queries rarely compiles
anew, and neither the queries-by-vectors matrix nor, for a memory map, the vectors are ever held whole.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jaxtyping import Bool, Float, Int

from pbr_jax.index import base
from pbr_jax.index.base import Entries, Everyone, Found, Owners, Users
from pbr_jax.index.top_k import top_k
from pbr_jax.types import UserError

QUERIES = 256  # searched together


class _Block(NamedTuple):
    """Some rows of the matrix on the devices, padded; `owners` is the owner's code + 1, and 0 for padding."""

    vectors: Float[Array, "n d"]
    owners: Int[Array, " n"]
    start: int


class ExactIndex:
    """All documents' vectors with the ids of documents and owners.

    Args:
      vectors: one row a document; kept as float32. A memory map of more than `block_rows` rows is
        read anew, block by block, at each search; anything else stays on the devices.
      owners: the user id of each row.
      ids: the document id of each row, unique; the row number where left out.
      mesh: the devices to search on, along one axis; all local devices where left out.
      block_rows: rows scored at a time, which bounds the score matrix (256 queries of float32:
        64 MiB) and, for a memory map, the memory of vectors.

    Raises `UserError` for vectors with NaN or infinity, for repeated ids, and for lengths that differ.
    """

    def __init__(
        self,
        vectors: Float[np.ndarray, "n d"],
        owners: Sequence[str],
        *,
        ids: Sequence[str] | None = None,
        mesh: Mesh | None = None,
        block_rows: int = 65_536,
    ) -> None:
        names = tuple(str(row) for row in range(len(vectors))) if ids is None else tuple(ids)
        self._mesh = _local_mesh() if mesh is None else mesh
        if len(self._mesh.axis_names) != 1:
            raise UserError(
                f"the mesh has axes {self._mesh.axis_names}, but vectors are spread over exactly one"
            )
        self._block_rows = block_rows
        self._hold(base.check_matrix(vectors), Entries(names, tuple(owners)))

    def _hold(self, vectors: np.ndarray, entries: Entries) -> None:
        if len(vectors) != len(entries.ids):
            raise UserError(f"{len(vectors)} vectors for {len(entries.ids)} owners; give one owner a vector")
        self.vectors, self.entries, self.owners = vectors, entries, Owners(entries.owners)
        self._resident: list[_Block] | None = None

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def ids(self) -> tuple[str, ...]:
        """The document id of each row; `delete` moves later rows up."""
        return self.entries.ids

    def search(self, queries: Float[np.ndarray, "q d"], k: int, *, users: Users) -> Found:
        """The `k` rows of highest dot product for each query, among the rows of the users it may see.

        `users` is one collection of user ids a query, or `EVERYONE`. A user without rows adds
        nothing; None, an empty collection or an empty id raises `UserError`. Equal scores go to the
        lower row.
        """
        users = base.check_users(users, len(queries))
        queries = base.check_matrix(queries, self.vectors.shape[1], "queries")
        if k < 1:
            raise UserError(f"k is {k}, but at least 1 result must be asked for")
        rows = np.full((len(queries), k), -1, np.int64)
        scores = np.full((len(queries), k), -np.inf, np.float32)
        for start in range(0, len(queries), QUERIES):
            part = slice(start, start + QUERIES)
            named = users if isinstance(users, Everyone) else users[part]
            rows[part], scores[part] = self._search_some(queries[part], k, named)
        return Found(rows, scores)

    def _search_some(self, queries: np.ndarray, k: int, users: Users) -> tuple[np.ndarray, np.ndarray]:
        count = len(queries)
        padded = jnp.asarray(np.pad(queries, [(0, _bucket(count, 1) - count), (0, 0)]))
        allowed = None if isinstance(users, Everyone) else self._allowed(users, len(padded))
        kept = _bucket(k, 1)
        best = jnp.full((len(padded), kept), -jnp.inf), jnp.full((len(padded), kept), -1)
        for block in self._blocks():
            best = _merge_block(best, padded, allowed, *block, mesh=self._mesh)
        scores, rows = (np.asarray(part)[:count, :k] for part in best)
        return rows, scores

    def _allowed(self, users: Sequence[Any], count: int) -> tuple[Array, Array]:
        """A column for each owner code + 1 (0: for none), and for each query which columns it may see.

        Only users whom some query names have a column, so that the table stays small.
        """
        codes = sorted({code for named in users for code in map(self.owners.code, named) if code >= 0})
        column = np.zeros(_bucket(len(self.owners.names) + 1, 8), np.int32)
        column[np.array(codes, np.int64) + 1] = np.arange(1, len(codes) + 1)
        table = np.zeros((count, _bucket(len(codes) + 1, 8)), bool)
        for query, named in enumerate(users):
            table[query, column[[self.owners.code(user) + 1 for user in named]]] = True
        table[:, 0] = False  # padding, and owners whom no query names
        return jnp.asarray(column), jnp.asarray(table)

    def _blocks(self) -> Iterator[_Block]:
        """The matrix in blocks; kept on the devices unless it is a large memory map."""
        starts = range(0, len(self.vectors), self._block_rows)
        if isinstance(self.vectors, np.memmap) and len(starts) > 1:
            return map(self._block, starts)
        if self._resident is None:
            self._resident = [self._block(start) for start in starts]
        return iter(self._resident)

    def _block(self, start: int) -> _Block:
        part = self.vectors[start : start + self._block_rows]
        devices = self._mesh.size
        size = devices * min(_fine_bucket(-(-len(part) // devices)), -(-self._block_rows // devices))
        vectors = np.zeros((size, part.shape[1]), np.float32)
        vectors[: len(part)] = part
        owners = np.zeros(size, np.int32)
        owners[: len(part)] = self.owners.codes[start : start + len(part)] + 1
        over_devices = NamedSharding(self._mesh, P(*self._mesh.axis_names))
        return _Block(jax.device_put(vectors, over_devices), jax.device_put(owners, over_devices), start)

    def add(self, vectors: Float[np.ndarray, "m d"], owners: Sequence[str], *, ids: Sequence[str]) -> None:
        """Add documents; a known id has its vector replaced, and must keep its owner (else `UserError`)."""
        new = base.check_matrix(vectors, self.vectors.shape[1])
        entries, rows = self.entries.place(ids, owners)
        if len(rows) != len(new):
            raise UserError(f"{len(new)} vectors for {len(rows)} ids; give one id a vector")
        self._hold(base.replaced(self.vectors, rows, new), entries)

    def delete(self, ids: Sequence[str]) -> int:
        """Forget documents and say how many there were; ids that the index does not hold change nothing."""
        entries, keep = self.entries.without(ids)
        removed = len(keep) - int(keep.sum())
        if removed:
            self._hold(np.ascontiguousarray(self.vectors[keep], np.float32), entries)
        return removed

    def save(self, folder: str | Path) -> None:
        """Write index.json and the vectors (.npy); whenever it is cut short, a whole index stays."""

        def write(files: Path) -> dict[str, Any]:
            base.save_vectors(self.vectors, files / "vectors.npy")
            return {}

        base.save_folder(Path(folder), "exact", self.entries, write)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        mmap: bool = False,
        mesh: Mesh | None = None,
        block_rows: int = 65_536,
    ) -> "ExactIndex":
        """Read a saved index; `mmap` leaves the vectors in their file (see the class)."""
        files, _, entries = base.load_folder(Path(folder), "exact")
        vectors = base.load_vectors(files / "vectors.npy", len(entries.ids), mmap=mmap)
        return cls(vectors, entries.owners, ids=entries.ids, mesh=mesh, block_rows=block_rows)


def _local_mesh() -> Mesh:
    devices = jax.local_devices()
    return jax.make_mesh((len(devices),), ("data",), axis_types=(AxisType.Auto,), devices=devices)


def _bucket(size: int, least: int) -> int:
    """The next power of two, at least `least`."""
    return max(least, 1 << (size - 1).bit_length())


def _fine_bucket(size: int) -> int:
    """The next of eight sizes an octave, so that at most an eighth is padding."""
    step = max(8, 1 << max(size.bit_length() - 4, 0))
    return -(-size // step) * step


@partial(jax.jit, static_argnames="mesh")
def _merge_block(
    best: tuple[Float[Array, "q k"], Int[Array, "q k"]],
    queries: Float[Array, "q d"],
    allowed: tuple[Int[Array, " owners"], Bool[Array, "q u"]] | None,
    vectors: Float[Array, "n d"],
    owners: Int[Array, " n"],
    start: int | Int[Array, ""],
    *,
    mesh: Mesh,
) -> tuple[Float[Array, "q k"], Int[Array, "q k"]]:
    """The best `k` of what was found in earlier blocks and of this one.

    Earlier blocks hold lower rows and come first, as devices do: equal scores thus go to the lower row.
    """
    k = best[0].shape[1]
    (axis,) = mesh.axis_names
    here = partial(_best_of_shard, k=min(k, len(vectors) // mesh.size), axis=axis)
    spread = jax.shard_map(
        here, mesh=mesh, in_specs=(P(), P(), P(axis), P(axis)), out_specs=(P(None, axis), P(None, axis))
    )
    # Said outright, so that these few are what the devices exchange, and nothing larger.
    scores, rows = lax.with_sharding_constraint(
        spread(queries, allowed, vectors, owners), NamedSharding(mesh, P())
    )
    scores = jnp.concatenate([best[0], scores], axis=1)
    rows = jnp.concatenate([best[1], jnp.where(rows < 0, -1, rows + start)], axis=1)
    scores, places = top_k(scores, k)
    return scores, jnp.where(places < 0, -1, jnp.take_along_axis(rows, places, axis=1))


def _best_of_shard(
    queries: Float[Array, "q d"],
    allowed: tuple[Int[Array, " owners"], Bool[Array, "q u"]] | None,
    vectors: Float[Array, "n d"],
    owners: Int[Array, " n"],
    *,
    k: int,
    axis: str,
) -> tuple[Float[Array, "q k"], Int[Array, "q k"]]:
    """One device's best rows, counted within the block."""
    scores = jnp.einsum("qd,nd->qn", queries, vectors, precision=lax.Precision.HIGHEST)
    if allowed is None:
        visible = jnp.broadcast_to(owners > 0, scores.shape)
    else:
        column, table = allowed
        visible = table[:, column[owners]]
    scores, rows = top_k(jnp.where(visible, scores, -jnp.inf), k)
    return scores, jnp.where(rows < 0, -1, rows + lax.axis_index(axis) * len(vectors))

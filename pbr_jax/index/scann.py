"""Approximate search with ScaNN, for corpora of some 50,000 vectors and more (Linux, `pbr-jax[scann]`).

Guo et al., "Accelerating Large-Scale Inference with Anisotropic Vector Quantization", ICML 2020,
https://arxiv.org/abs/1908.10396. What the library leaves open is settled here: the search effort is
tuned by recall measured against exact search, not by a rule; results are restricted to the users
that a query names, which ScaNN cannot do; and nothing is pickled, which ScaNN's own files are.
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from pbr_jax.index import base
from pbr_jax.index.base import EVERYONE, Entries, Everyone, Found, Owners, Users
from pbr_jax.index.exact import ExactIndex
from pbr_jax.index.per_user import nearest
from pbr_jax.types import UserError

BRUTE_FORCE_BELOW = 2_000  # vectors; too few to train a quantiser on
TREE_FROM = 20_000  # vectors; below, hashing every vector is as fast and misses less
SAMPLE = 200  # queries that measure recall
LARGEST_FETCH = 1_000  # candidates to filter by user; beyond, scoring the users' own rows is faster
REBUILD_SHARE = 0.2  # of rows added and deleted; beyond, the quantiser describes other data


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How thoroughly ScaNN searches: leaves of the tree (0: there is no tree), candidates scored exactly."""

    leaves: int
    reorder: int


class ScannIndex:
    """Approximate top-k by dot product, with the contract of `ExactIndex`.

    Args:
      vectors, owners, ids: as `ExactIndex` takes them.
      k: the number of results that recall is measured at.
      target: recall to tune the effort for; tuning doubles leaves and reordering until it is met.
      floor: recall below which building raises `UserError`.
      effort: search exactly this thoroughly instead of tuning.
      queries: [q, d], real queries to measure recall with. Where left out, documents stand in for
        them, which flatters recall when queries lie far from documents.

    `recall` is the share of the exact best `k` that was found on the sample, `effort` what was tuned.
    One index must not be searched by a thread while another changes it.
    """

    def __init__(
        self,
        vectors: Float[np.ndarray, "n d"],
        owners: Sequence[str],
        *,
        ids: Sequence[str] | None = None,
        k: int = 10,
        target: float = 0.95,
        floor: float = 0.8,
        effort: Effort | None = None,
        queries: Float[np.ndarray, "q d"] | None = None,
    ) -> None:
        names = tuple(str(row) for row in range(len(vectors))) if ids is None else tuple(ids)
        self._k, self._target, self._floor, self._fixed, self._sample = k, target, floor, effort, queries
        self._hold(base.check_matrix(vectors), Entries(names, tuple(owners)))
        self.rebuild()

    def _hold(self, vectors: np.ndarray, entries: Entries) -> None:
        if len(vectors) != len(entries.ids):
            raise UserError(f"{len(vectors)} vectors for {len(entries.ids)} owners; give one owner a vector")
        self.vectors, self.entries, self.owners = vectors, entries, Owners(entries.owners)

    def _build(self) -> None:
        """Train the searcher, tune its effort and measure recall."""
        self._searcher: Any = _train(self.vectors, self.ids, self._k) if len(self) else None
        self._changed = 0
        self._order_rows()
        queries, best = self._recall_sample()
        full = Effort(leaves=_leaves(len(self)), reorder=min(len(self), 64 * self._k))
        least = Effort(leaves=min(8, full.leaves), reorder=min(4 * self._k, full.reorder))
        self.effort = self._fixed or least
        self.recall = self._measure(queries, best)
        while self._fixed is None and self.recall < self._target and self.effort != full:
            self.effort = Effort(
                leaves=min(2 * self.effort.leaves, full.leaves),
                reorder=min(2 * self.effort.reorder, full.reorder),
            )
            self.recall = self._measure(queries, best)

    def _low_recall(self) -> str:
        """What is wrong with `recall`; empty where it reaches the floor."""
        if self.recall >= self._floor:
            return ""
        return (
            f"recall@{self._k} is {self.recall:.3f} with {self.effort}, below floor={self._floor}; "
            "use ExactIndex, allow more leaves and reordering, or lower floor to accept this"
        )

    def _recall_sample(self) -> tuple[np.ndarray, np.ndarray]:
        """Queries to measure recall with, and the exact best rows of each."""
        if self._sample is not None:
            queries = base.check_matrix(self._sample[:SAMPLE], self.vectors.shape[1], "queries")
        else:
            step = max(1, len(self) // SAMPLE)  # evenly spread, so that no seed is needed
            queries = np.asarray(self.vectors[::step][:SAMPLE], np.float32)
        exact = ExactIndex(self.vectors, self.entries.owners)
        return queries, exact.search(queries, self._k, users=EVERYONE).rows

    def _measure(self, queries: np.ndarray, best: np.ndarray) -> float:
        found = self.search(queries, self._k, users=EVERYONE).rows
        wanted = best >= 0
        hit = (best[:, :, None] == found[:, None, :]).any(axis=2)
        return float((hit & wanted).sum() / wanted.sum()) if wanted.any() else 1.0

    def __len__(self) -> int:
        return len(self.vectors)

    @property
    def ids(self) -> tuple[str, ...]:
        """The document id of each row; `delete` moves later rows up."""
        return self.entries.ids

    def search(self, queries: Float[np.ndarray, "q d"], k: int, *, users: Users) -> Found:
        """The `k` rows of (approximately) highest dot product, among the rows of the users named.

        `users` is as in `ExactIndex.search`, and as strict. With users named, ScaNN fetches more
        than `k` and rows of others are dropped; a query whose users own so little that fewer than
        it is owed survive is answered exactly from its users' rows.
        """
        users = base.check_users(users, len(queries))
        queries = base.check_matrix(queries, self.vectors.shape[1], "queries")
        if k < 1:
            raise UserError(f"k is {k}, but at least 1 result must be asked for")
        if isinstance(users, Everyone):
            return self._fetch(queries, k)
        owned = [sum(len(self.owners.rows(user)) for user in set(named)) for named in users]
        fetch = np.array([math.ceil(2 * k * len(self) / max(count, 1)) for count in owned], np.int64)
        rows = np.full((len(queries), k), -1, np.int64)
        scores = np.full((len(queries), k), -np.inf, np.float32)
        filtered = np.flatnonzero(fetch <= LARGEST_FETCH)
        if len(filtered):
            found = self._fetch(queries[filtered], int(fetch[filtered].max()))
            for q, some, values in zip(filtered.tolist(), *found):
                codes = [code for code in map(self.owners.code, users[q]) if code >= 0]
                keep = np.flatnonzero((some >= 0) & np.isin(self.owners.codes[some], codes))[:k]
                rows[q, : len(keep)], scores[q, : len(keep)] = some[keep], values[keep]
        for q, count in enumerate(owned):
            if (rows[q] >= 0).sum() < min(k, count):
                some, values = nearest(self.vectors, self.owners.rows_of_all(users[q]), queries[q], k)
                rows[q, : len(some)], scores[q, : len(some)] = some, values
        return Found(rows, scores)

    def _fetch(self, queries: np.ndarray, k: int) -> Found:
        """ScaNN's best `k` of all rows, ordered as `ExactIndex` orders: equal scores by row."""
        rows = np.full((len(queries), k), -1, np.int64)
        scores = np.full((len(queries), k), -np.inf, np.float32)
        wanted = min(k, len(self))
        if self._searcher is None or not len(queries) or not wanted:
            return Found(rows, scores)
        reorder, leaves = max(self.effort.reorder, wanted), max(self.effort.leaves, 1)
        places, values = self._searcher.searcher.search_batched(queries, wanted, reorder, leaves, True, 256)
        absent = np.isnan(values)  # ScaNN's filling where its leaves held fewer than asked for
        some = np.where(absent, -1, self._row_of_place[np.where(absent, 0, places)])
        values = np.where(absent, -np.inf, values)
        order = np.lexsort((some, -values), axis=1)
        rows[:, :wanted] = np.take_along_axis(some, order, axis=1)
        scores[:, :wanted] = np.take_along_axis(values, order, axis=1)
        return Found(rows, scores)

    def _order_rows(self) -> None:
        """Recompute which row stands at each of ScaNN's places: it fills holes with its last vector."""
        row_of = {id: row for row, id in enumerate(self.ids)}
        held = self._searcher.docids if self._searcher is not None else []
        self._row_of_place = np.array([row_of[id] for id in held], np.int64)

    def add(self, vectors: Float[np.ndarray, "m d"], owners: Sequence[str], *, ids: Sequence[str]) -> None:
        """Add documents; a known id has its vector replaced, and must keep its owner (else `UserError`)."""
        new = base.check_matrix(vectors, self.vectors.shape[1])
        entries, rows = self.entries.place(ids, owners)
        if len(rows) != len(new):
            raise UserError(f"{len(new)} vectors for {len(rows)} ids; give one id a vector")
        if not len(new):
            return
        self._hold(base.replaced(self.vectors, rows, new), entries)
        if self._searcher is None:
            return self.rebuild()
        self._searcher.upsert(list(ids), np.asarray(new, np.float32), batch_size=len(new))
        self._count_changes(len(new))

    def delete(self, ids: Sequence[str]) -> int:
        """Forget documents and say how many there were; ids that the index does not hold change nothing.

        Their vectors and ids are gone at once, from the next `save` also on disk. The trained codebook
        still reflects them statistically until `rebuild`, which many changes bring about by themselves.
        """
        entries, keep = self.entries.without(ids)
        gone = [id for id, kept in zip(self.ids, keep) if not kept]
        if gone:
            self._hold(np.ascontiguousarray(self.vectors[keep], np.float32), entries)
            self._searcher.delete(gone)
            self._count_changes(len(gone))
        return len(gone)

    def _count_changes(self, count: int) -> None:
        self._changed += count
        if len(self) and self._changed <= REBUILD_SHARE * len(self):
            return self._order_rows()
        self._build()
        if self._low_recall():  # the change itself is done: nothing to undo by an error
            warnings.warn(self._low_recall(), stacklevel=3)

    def rebuild(self) -> None:
        """Train, tune and measure again on the documents held now; `UserError` below the floor."""
        self._build()
        if self._low_recall():
            raise UserError(self._low_recall())

    def save(self, folder: str | Path) -> None:
        """Write vectors, ids and ScaNN's files; whenever it is cut short, a whole index stays."""

        def write(files: Path) -> dict[str, Any]:
            base.save_vectors(self.vectors, files / "vectors.npy")
            if self._searcher is not None:
                # The inner serialize: the outer one would add scann_docids.pkl.
                self._searcher.searcher.serialize(str(files), True)
                base.write_json(files / "docids.json", self._searcher.docids)
            return {
                "k": self._k, "target": self._target, "floor": self._floor, "recall": self.recall,
                "tuned": self._fixed is None, "leaves": self.effort.leaves, "reorder": self.effort.reorder,
                "changed": self._changed,
            }  # fmt: skip

        base.save_folder(Path(folder), "scann", self.entries, write)

    @classmethod
    def load(cls, folder: str | Path) -> "ScannIndex":
        """Read a saved index, wherever its folder was moved to; a pickle in it raises `UserError`.

        `queries` given to the constructor are not saved: a later rebuild measures with documents.
        """
        files, header, entries = base.load_folder(Path(folder), "scann")
        index = cls.__new__(cls)
        try:
            index.effort = Effort(leaves=header["leaves"], reorder=header["reorder"])
            index._k, index._target, index._floor = header["k"], header["target"], header["floor"]
            index.recall, index._changed = header["recall"], header["changed"]
            index._fixed = None if header["tuned"] else index.effort
        except KeyError as error:
            raise UserError(f"{Path(folder) / 'index.json'} lacks {error}; build the index again") from None
        index._sample = None
        index._hold(base.load_vectors(files / "vectors.npy", len(entries.ids)), entries)
        index._searcher = _read_searcher(files, entries.ids) if entries.ids else None
        index._order_rows()
        return index


def _leaves(n: int) -> int:
    """Leaves of the tree over `n` vectors; 0 for no tree."""
    return int(math.sqrt(n)) if n >= TREE_FROM else 0


def _scann() -> Any:
    """ScaNN's functions, or advice where it is not installed."""
    try:
        from scann.scann_ops.py import scann_ops_pybind
    except ImportError as error:
        raise UserError(
            f"ScaNN cannot be imported ({error}); pip install 'pbr-jax[scann]' (Linux), or use ExactIndex"
        ) from None
    return scann_ops_pybind


def _train(vectors: np.ndarray, ids: Sequence[str], k: int) -> Any:
    """A searcher fit for the number of vectors."""
    n = len(vectors)
    builder = _scann().builder(np.asarray(vectors, np.float32), min(k, n), "dot_product")
    if n < BRUTE_FORCE_BELOW:
        return builder.score_brute_force().build(docids=list(ids))
    if n >= TREE_FROM:
        builder = builder.tree(_leaves(n), max(1, _leaves(n) // 10), training_sample_size=min(n, 100_000))
    builder = builder.score_ah(2, anisotropic_quantization_threshold=0.2)
    return builder.reorder(4 * k).build(docids=list(ids))


def _read_searcher(files: Path, ids: Sequence[str]) -> Any:
    """The searcher that `save` wrote; its ids come from docids.json and must be those of the index."""
    docids = base.read_json(files / "docids.json")
    if not isinstance(docids, list) or set(docids) != set(ids) or len(docids) != len(ids):
        raise UserError(f"{files / 'docids.json'} lists other ids than index.json; build the index again")
    try:
        searcher = _scann().load_searcher(str(files), assets_backcompat_shim=False)
    except (ValueError, RuntimeError, OSError) as error:
        raise UserError(f"{files} cannot be read by ScaNN ({error}); build the index again") from None
    if searcher.size() != len(docids):
        raise UserError(
            f"{files} holds {searcher.size()} vectors for {len(docids)} ids; build the index again"
        )
    searcher.docids = docids
    searcher.docid_to_id = {id: place for place, id in enumerate(docids)}
    return searcher

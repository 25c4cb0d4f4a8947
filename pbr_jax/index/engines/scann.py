"""Approximate search with ScaNN, for collections of some 50,000 vectors and more (Linux, `pbr-jax[scann]`).

Guo et al., "Accelerating Large-Scale Inference with Anisotropic Vector Quantization", ICML 2020,
https://arxiv.org/abs/1908.10396. ScaNN stores codes (half a byte for two dimensions) instead of vectors. It
returns candidates, whose exact scores are computed elsewhere (`corpus.search`). The search effort is tuned by
the recall, measured against exact search. Nothing is pickled.
"""

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from pbr_jax.base.files import parse_json, private_folder, write_text
from pbr_jax.base.locks import locked
from pbr_jax.base.types import UserError
from pbr_jax.index import base
from pbr_jax.index.base import Matrix, Rows
from pbr_jax.index.exact import ExactIndex

BRUTE_FORCE_BELOW = 2_000  # vectors; too few to train a quantiser on
TREE_FROM = 20_000  # vectors; below, hashing every vector is as fast and misses less
PART = 200_000  # vectors of one searcher: building takes some five times their memory
SAMPLE = 200  # queries that measure recall
_HEADER, _ROWS, _PLACES = "index.json", "rows.npy", "places.npy"


@dataclass(frozen=True, kw_only=True)
class Effort:
    """ScaNN's search effort: leaves of the tree to search (0: no tree), and candidates per result."""

    leaves: int
    candidates: int


class ScannIndex:
    """An approximate index, which returns candidates for the top k by dot product.

    Args:
      vectors: float32 [n d]. They are not kept.
      k: the number of results at which recall is measured.
      target: the recall for which the effort is tuned. Tuning doubles leaves and candidates until it is met.
      floor: if the recall is below this value, `UserError` is raised.
      effort: a fixed search effort. None: it is tuned.

    `recall` is the share of the exact top `k` that was found, with documents as queries. It is too optimistic
    if real queries are far from documents. `effort` is the search effort in use.
    """

    def __init__(
        self,
        vectors: Matrix,
        *,
        k: int = 10,
        target: float = 0.95,
        floor: float = 0.8,
        effort: Effort | None = None,
    ) -> None:
        self._count, self._width = len(vectors), vectors.shape[1]
        starts = range(0, len(vectors), PART)
        self._parts = [_train(np.asarray(vectors[at : at + PART], np.float32), k) for at in starts]
        sample = np.arange(0, len(vectors), max(1, len(vectors) // SAMPLE))[:SAMPLE]  # without a seed
        queries = np.asarray(vectors[sample], np.float32)
        best = ExactIndex(vectors).search(queries, k).rows
        full = Effort(leaves=_leaves(min(len(self), PART)), candidates=64)
        self.effort = effort or Effort(leaves=min(8, full.leaves), candidates=4)
        self.recall = self._measure(queries, best)
        while effort is None and self.recall < target and self.effort != full:
            leaves, candidates = 2 * self.effort.leaves, 2 * self.effort.candidates
            self.effort = Effort(leaves=min(leaves, full.leaves), candidates=min(candidates, full.candidates))
            self.recall = self._measure(queries, best)
        if self.recall < floor:
            raise UserError(
                f"recall@{k} is {self.recall:.3f} with {self.effort}, below floor={floor}; use ExactIndex "
                "(retrieve.index exact), allow more leaves and candidates, or lower floor to accept this"
            )

    def _measure(self, queries: np.ndarray, best: np.ndarray) -> float:
        found = self.candidates(queries, best.shape[1])
        wanted = best >= 0
        hit = (best[:, :, None] == found[:, None, :]).any(axis=2)
        return float((hit & wanted).sum() / wanted.sum()) if wanted.any() else 1.0

    def __len__(self) -> int:
        return self._count

    def candidates(self, queries: Float[np.ndarray, "q d"], k: int) -> Int[np.ndarray, "q c"]:
        """Candidate rows for the top k: up to `effort.candidates` times k per part of the index; -1: none."""
        queries = base.check_matrix(queries, self._width, "queries")
        base.check_k(k)
        leaves, found = max(self.effort.leaves, 1), [np.full((len(queries), 1), -1, np.int64)]
        for number, part in enumerate(self._parts if len(queries) else []):
            wanted = min(k * self.effort.candidates, part.size())
            rows, scores = part.search_batched_parallel(queries, wanted, wanted, leaves)
            absent = np.isnan(scores)  # ScaNN's filling where its leaves held fewer than asked for
            found.append(np.where(absent, -1, rows.astype(np.int64) + number * PART))
        return np.concatenate(found, axis=1)

    def save(self, folder: Path) -> None:
        """Writes ScaNN's files to a folder, and index.json last."""
        for number, part in enumerate(self._parts):
            (folder / str(number)).mkdir(exist_ok=True)
            part.serialize(str(folder / str(number)), True)
        header = {
            "effort": asdict(self.effort),
            "recall": self.recall,
            "shape": [self._count, self._width, PART],
        }
        write_text(folder / _HEADER, json.dumps(header))

    @classmethod
    def load(cls, folder: Path) -> "ScannIndex":
        """Reads a saved index. Raises `UserError` if it is damaged or contains a pickle (never read)."""
        pickles = sorted(folder.rglob("*.pkl")) + sorted(folder.rglob("*.pickle"))
        if pickles:
            raise UserError(
                f"{pickles[0]} is a pickle, which can run code when read; delete it or build the index again"
            )
        index = cls.__new__(cls)
        try:
            header = parse_json((folder / _HEADER).read_bytes())
            index.effort, index.recall = Effort(**header["effort"]), float(header["recall"])
            index._count, index._width, part = map(int, header["shape"])
            if part != PART:
                raise ValueError(f"parts of {part} vectors, want {PART}")
            numbers = range(-(-index._count // PART))
            index._parts = [_scann().load_searcher(str(folder / str(number)), False) for number in numbers]
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f"{folder} is no index of ScaNN ({error}); build the index again") from error
        held = sum(part.size() for part in index._parts)
        if held != index._count:
            raise UserError(
                f"{folder} holds {held} vectors, and index.json says {index._count}; build the index again"
            )
        return index


class Engine(base.Rebuilt):
    """The ScaNN index of a collection, kept in a folder."""

    saves = True
    auto_from = 50_000

    @staticmethod
    def check_installed() -> None:
        _scann()

    def build(self, vectors: Matrix) -> ScannIndex:
        return ScannIndex(vectors)

    def positions(self, queries: np.ndarray, k: int) -> np.ndarray:
        return self.index.candidates(queries, k)

    def follow(self, current: Rows, label: str = "") -> bool:
        """Reads the saved index first. An index that was built is saved."""
        if self.folder is None:
            return super().follow(current, label)
        private_folder(self.folder)
        with locked(self.folder / "lock", f"waiting for another process that writes to {self.folder}"):
            if self.index is None and (self.folder / _HEADER).is_file():
                self._load(ScannIndex.load(self.folder), np.load(self.folder / _ROWS, allow_pickle=False))
            before = self.rows
            super().follow(current, label)
            if self.rows is not before:
                self._save(self.folder, current)
        return True

    def _save(self, folder: Path, current: Rows) -> None:
        (folder / _HEADER).unlink(missing_ok=True)
        np.save(folder / _ROWS, self.rows, allow_pickle=False)
        np.save(folder / _PLACES, current.places(self.rows), allow_pickle=False)
        self.index.save(folder)

    def erase(self, gone: np.ndarray) -> None:
        """Raises ValueError if the index holds such a vector: its files are then deleted as a whole."""
        assert self.folder is not None
        with locked(self.folder / "lock"):
            places = np.load(self.folder / _PLACES, allow_pickle=False)
        if gone[places[places >= 0]].any():
            raise ValueError("codes of single vectors cannot be deleted")


def _leaves(n: int) -> int:
    """Leaves of the tree over `n` vectors; 0 for no tree."""
    return int(math.sqrt(n)) if n >= TREE_FROM else 0


def _scann() -> Any:
    """ScaNN's functions, or advice where it is not installed."""
    try:
        from scann.scann_ops.py import scann_ops_pybind
    except ImportError as error:
        raise UserError(
            f"ScaNN cannot be imported ({error}); pip install 'pbr-jax[scann]' (Linux), or set "
            "retrieve.index (neighbours.index) to exact"
        ) from None
    return scann_ops_pybind


def _train(vectors: np.ndarray, k: int) -> Any:
    """A searcher fit for the number of vectors."""
    n = len(vectors)
    builder = _scann().builder(vectors, min(k, n), "dot_product")
    if n < BRUTE_FORCE_BELOW:
        return builder.score_brute_force().build()
    if n >= TREE_FROM:
        builder = builder.tree(_leaves(n), max(1, _leaves(n) // 10), training_sample_size=min(n, 100_000))
    return builder.score_ah(2, anisotropic_quantization_threshold=0.2).build()

"""A million vectors kept by content and searched: memory, recall, and CPU time beside numpy's.

    python benchmarks/vectors_1m.py [--vectors 1000000] [--queries 200] [--kinds exact scann] [--folder DIR]

Vectors are random, clustered and seeded, 384 wide, of unit length. Each phase is a process of its own, whose
peak of resident memory is printed: keep (vectors into the store of vectors), index (build and save ScaNN's),
load, and search through `corpus.search`. CPU-ms are of the whole process, all threads, a query; numpy's brute
force takes blocks of 65,536 vectors.

    python benchmarks/vectors_1m.py --append

Counts the texts that are encoded for 200,000 documents, for 1 % more, and for a part of them, and times it
with an encoder that costs nothing.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pbr_jax.corpus.search import Collection, save_index
from pbr_jax.corpus.store import Store, build
from pbr_jax.corpus.vectors import Vectors, VectorStore, complete
from pbr_jax.types import Document, Example

WIDTH, K, BLOCK = 384, 10, 65_536


class Clustered:
    """Text number i has vector number i: one of 5,000 centres and noise."""

    dim = WIDTH

    def __init__(self) -> None:
        self._centres = np.random.default_rng(7).normal(size=(5_000, WIDTH)).astype(np.float32)
        self.encoded = 0

    def vectors_key(self, role: str) -> str:
        return "c" * 64

    def encode(self, texts: Sequence[str], *, role: str = "document") -> np.ndarray:
        self.encoded += len(texts)
        rng = np.random.default_rng(int(texts[0].split()[-1]))
        vectors = self._centres[rng.integers(0, 5_000, len(texts))]
        vectors = vectors + 0.7 * rng.normal(size=vectors.shape).astype(np.float32)
        return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


class Kept:
    """Vectors of texts 0 to n - 1 as a matrix, as `Vectors` gives those of a store."""

    def __init__(self, vectors: VectorStore, n: int) -> None:
        self._vectors, self.shape = vectors, (n, WIDTH)
        found = [vectors.places(texts(start, min(start + 1024, n))) for start in range(0, n, 1024)]
        self._places = np.concatenate(found)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        return self._vectors.read(self._places[rows])


def texts(start: int, end: int) -> list[str]:
    return [f"text {i}" for i in range(start, end)]


def numpy_top_k(vectors: Any, queries: np.ndarray) -> np.ndarray:
    """Blocks of a matrix product, and the best of each."""
    scores, rows = np.zeros((len(queries), 0), np.float32), np.zeros((len(queries), 0), np.int64)
    for start in range(0, len(vectors), BLOCK):
        block = queries @ vectors[start : start + BLOCK].T
        best = np.argpartition(-block, K, axis=1)[:, :K]
        scores = np.concatenate([scores, np.take_along_axis(block, best, 1)], axis=1)
        rows = np.concatenate([rows, best + start], axis=1)
    order = np.argsort(-scores, axis=1)[:, :K]
    return np.take_along_axis(rows, order, 1)


def cpu(run: Callable[[], Any]) -> tuple[Any, float]:
    """What a call gives, and its CPU seconds."""
    start = time.process_time()
    return run(), time.process_time() - start


def phase(name: str, folder: Path, n: int, count: int) -> None:
    """One phase; prints what it took."""
    started = time.perf_counter()
    kept = Kept(VectorStore(Clustered(), folder=folder / "vectors"), n)  # type: ignore[arg-type]
    every, index, line = np.arange(n), folder / "index", ""
    queries = Clustered().encode([f"query {n}"] * count)
    if name == "index":
        index.mkdir(exist_ok=True)
        save_index(kept, every, "scann", index)
    if name == "numpy":
        best, seconds = cpu(lambda: numpy_top_k(kept, queries))
        np.save(folder / "best.npy", best)
        line = f", {1000 * seconds / count:.2f} CPU-ms a query"
    if name in ("exact", "scann"):
        collection = Collection(kept, lambda: every, name, index)  # type: ignore[arg-type]
        collection.search(queries, K)  # loads and compiles
        loaded = time.perf_counter() - started
        found, seconds = cpu(lambda: collection.search(queries, K, [every] * count))
        best = np.load(folder / "best.npy")
        recall = np.mean([len(set(a) & set(b)) / K for a, b in zip(best.tolist(), found.rows.tolist())])
        line = f" ({loaded:.1f} of it until the second search), recall@{K} {recall:.4f}, "
        line += f"{1000 * seconds / count:.2f} CPU-ms a query"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{name}: {time.perf_counter() - started:.1f} s{line}, peak {peak:.2f} GiB", flush=True)


def append(folder: Path, n: int = 200_000) -> None:
    """Encoded texts and seconds of a first embedding, of 1 % more documents, and of a smaller part."""
    encoder = Clustered()

    def embedded(store: Store) -> str:
        before, started = encoder.encoded, time.perf_counter()
        kept = VectorStore(encoder, folder=folder / "vectors")  # type: ignore[arg-type]
        complete(store, kept, "embed")
        Vectors(store, kept)[np.arange(10)]
        return f"{encoder.encoded - before} texts encoded, {time.perf_counter() - started:.2f} s"

    def made(name: str, count: int) -> Store:
        documents = tuple(Document(f"d{i}", "u", text) for i, text in enumerate(texts(0, count)))
        build(folder / name, [Example("q", "u", "query", "in", "t", documents)])
        return Store(folder / name)

    store = made("whole", n)
    print(f"{n} documents: {embedded(store)}")
    living = store.copy_to(folder / "living")
    living.append([Document(f"d{i}", "u", f"text {i}") for i in range(n, n + n // 100)])
    print(f"1 % more: {embedded(living)}")
    print(f"limited to {n // 2}: {embedded(made('half', n // 2))}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--kinds", nargs="*", default=["exact", "scann"])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--append", action="store_true")
    parser.add_argument("--phase", default="", help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.phase:
        return phase(told.phase, told.folder, told.vectors, told.queries)
    with tempfile.TemporaryDirectory() as temporary:
        folder = told.folder or Path(temporary)
        if told.append:
            return append(folder)
        for name in ["keep", "numpy", *(["index"] if "scann" in told.kinds else []), *told.kinds]:
            sizes = ["--vectors", str(told.vectors), "--queries", str(told.queries)]
            call = [sys.executable, __file__, "--folder", str(folder), "--phase", name, *sizes]
            subprocess.run(call, check=True)


if __name__ == "__main__":
    main()

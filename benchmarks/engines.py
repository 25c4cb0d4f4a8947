"""A million shared documents through each index: build, search, append, delete.

    python benchmarks/engines.py [--documents 1000000] [--queries 1000] [--changed 10000] [--folder DIR]
        [--engines exact scann lancedb]

Vectors are random, clustered and seeded, 384 wide, of unit length. Documents are built once, and all
vectors encoded; numpy's brute force says what is right, before and after the changes. Then each index is a
process of its own, over its own living copy of the documents and vectors. It builds the index, searches as
a run does (`parts.search`: who may see what, the index, exact scores, the documents' texts), appends
documents, deletes as many with their vectors, and searches again. The first search of a state is timed
apart: it loads, compiles, and takes in the changes. Peaks are of resident memory, the pages of the mapped
file of vectors included. CPU-ms are of all threads.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from pbr_jax.base.types import Document, Example
from pbr_jax.corpus import vectors as vector_store
from pbr_jax.corpus.search import EngineSearch, Kind, shared_search
from pbr_jax.corpus.store import Store, build
from pbr_jax.corpus.vectors import Vectors, VectorStore, complete
from pbr_jax.index.engines import ENGINES
from pbr_jax.pipeline import Neighbour, Query
from pbr_jax.stages.search import search

WIDTH, K, BLOCK, CENTRES = 384, 10, 65_536, 5_000


class Clustered:
    """The vector of a text that ends in a number: one of the centres, and noise drawn by the number."""

    dim = WIDTH

    def __init__(self) -> None:
        self._centres = np.random.default_rng(7).normal(size=(CENTRES, WIDTH)).astype(np.float32)

    def vectors_key(self, role: str) -> str:
        return "c" * 64

    def encode(self, texts: Sequence[str], *, role: str = "document") -> np.ndarray:
        vectors = np.stack([self._vector(role, int(text.split()[-1])) for text in texts])
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def _vector(self, role: str, number: int) -> np.ndarray:
        draw = np.random.default_rng([role == "query", number])
        noise = draw.standard_normal(WIDTH, np.float32)
        return self._centres[draw.integers(CENTRES)] + np.float32(0.7) * noise


def documents(start: int, stop: int) -> list[Document]:
    texts = [f"what is said in number {i}" for i in range(start, stop)]
    return [Document(f"d{i}", "", text, shared=True) for i, text in enumerate(texts, start)]


def brute_force(vectors: Vectors, rows: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Blocks of a matrix product, and the best of each."""
    scores, best = np.zeros((len(queries), 0), np.float32), np.zeros((len(queries), 0), np.int64)
    for start in range(0, len(rows), BLOCK):
        some = rows[start : start + BLOCK]
        block = queries @ vectors[some].T
        first = np.argpartition(-block, K, axis=1)[:, :K]
        scores = np.concatenate([scores, np.take_along_axis(block, first, 1)], axis=1)
        best = np.concatenate([best, some[first]], axis=1)
    return np.take_along_axis(best, np.argsort(-scores, axis=1)[:, :K], 1)


class Steps:
    """Prints a row for every step: seconds, CPU seconds, peak memory since the step before."""

    def __init__(self, engine: str) -> None:
        self._engine = engine

    def timed(self, step: str, work: Callable[[], Any], told: Callable[[Any], str] = lambda _: " | ") -> Any:
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # the peak counts from now on
        start, cpu = time.perf_counter(), time.process_time()
        value = work()
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
        self.cpu, peak = cpu, re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())
        size = int(peak[1]) / 2**20 if peak else float("nan")
        print(
            f"| {self._engine} | {step} | {seconds:.1f} | {cpu:.1f} | {size:.2f} | {told(value)} |",
            flush=True,
        )
        return value


def prepare(folder: Path, count: int, queries: int, changed: int) -> None:
    """The documents, their vectors, and what is right before and after the changes."""
    steps = Steps("–")
    os.environ["PBR_JAX_CACHE"] = str(folder / "cache")
    path = folder / "store.sqlite"
    steps.timed("build the store", lambda: build(path, [], shared={"made": documents(0, count)}))
    store, kept = Store(path), VectorStore(Clustered())
    steps.timed("encode, keep vectors", lambda: complete(store, kept, "embed"))
    living = store.copy_to(folder / "changed.sqlite")
    asked, vectors = (
        Clustered().encode([f"query {i}" for i in range(queries)], role="query"),
        Vectors(store, kept),
    )
    every = store.history("")
    np.save(
        folder / "before.npy",
        steps.timed("numpy", lambda: brute_force(vectors, every, asked), _per(steps, queries)),
    )
    living.append(documents(count, count + changed))
    living.delete("", [f"d{i}" for i in range(changed)])
    after = brute_force(Vectors(living, kept), living.history(""), asked)
    np.save(folder / "after.npy", after)


def _per(steps: Steps, queries: int) -> Callable[[Any], str]:
    return lambda _: f" | {1000 * steps.cpu / queries:.2f}"


def measure(engine: Any, folder: Path, count: int, queries: int, changed: int) -> None:
    """All steps of one index."""
    own, steps = folder / engine, Steps(engine)
    os.environ["PBR_JAX_CACHE"] = str(own / "cache")
    shutil.copytree(folder / "cache", own / "cache")
    encoder: Any = Clustered()
    store = Store(folder / "store.sqlite").copy_to(own / "store.sqlite")
    vectors = Vectors(store, VectorStore(encoder))
    found = steps.timed("build", lambda: _built(engine, store, vectors))
    asked = [Example(f"q{i}", "u", f"query {i}", "", None) for i in range(queries)]

    def ranked(some: list[Example]) -> np.ndarray:
        slot = search(store, encoder, vectors, K, shared=found)
        rankings = slot(some, [Query((e.query,)) for e in some], [[Neighbour("")]] * len(some))
        return np.array([[c.row for c in ranking] for ranking in rankings])

    def searched(what: str, right: str) -> None:
        steps.timed(f"first search, {what}", lambda: ranked(asked[:1]))
        best = np.load(folder / f"{right}.npy")

        def told(rows: np.ndarray) -> str:
            recall = np.mean([len({*a} & {*b}) / K for a, b in zip(best.tolist(), rows.tolist())])
            return f"{recall:.4f} | {1000 * steps.cpu / queries:.2f}"

        steps.timed(f"search, {what}", lambda: ranked(asked), told)

    searched("as built", "before")
    steps.timed(f"append {changed:,}", lambda: store.append(documents(count, count + changed)))
    gone = documents(0, changed)

    def deleted() -> None:
        vector_store.erase([document.text for document in gone])
        store.delete("", [document.id for document in gone])

    steps.timed(f"delete {changed:,}", deleted)
    searched("changed", "after")
    size = sum(file.stat().st_size for file in own.rglob("*") if file.is_file())
    print(f"| {engine} | on disk: {size / 2**30:.2f} GiB | | | | | |", flush=True)


def _built(engine: Kind, store: Store, vectors: Vectors) -> Any:
    found = shared_search(store, vectors, engine)
    if isinstance(found, EngineSearch):
        found.follow("")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--queries", type=int, default=1_000)
    parser.add_argument("--changed", type=int, default=10_000)
    parser.add_argument("--engines", nargs="+", default=[*ENGINES], choices=[*ENGINES])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--process", default="", help=argparse.SUPPRESS)
    told = parser.parse_args()
    sizes = (told.documents, told.queries, told.changed)
    if told.process:
        if told.process == "prepare":
            return prepare(told.folder, *sizes)
        return measure(told.process, told.folder, *sizes)
    heads = ("index", "step", "seconds", "CPU s", "peak GiB", "recall@10", "CPU-ms a query")
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    with tempfile.TemporaryDirectory() as temporary:
        folder = told.folder or Path(temporary)
        folder.mkdir(exist_ok=True, parents=True)
        for name in [*([] if (folder / "after.npy").exists() else ["prepare"]), *told.engines]:
            shutil.rmtree(folder / name, ignore_errors=True)
            named = zip(("--documents", "--queries", "--changed"), map(str, sizes))
            call = [sys.executable, __file__, "--folder", str(folder), "--process", name, *sum(named, ())]
            subprocess.run(call, check=True)
    return None


if __name__ == "__main__":
    main()

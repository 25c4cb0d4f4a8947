"""How fast the anchors of many users are, next to networkx and scipy, in the same process.

    python benchmarks/page_rank.py [--users 2000] [--repeats 3] [--record FILE]

Histories of about 90 documents, the size of PersonaBench's, 384 wide, of clustered synthetic vectors. All
start from the document vectors and end with the anchors, damping .85, the same stopping rule. Peers: a loop
over users with networkx (a tenth of them, times ten), a loop with scipy's sparse matrices, and scipy with the
graphs of all users as one matrix. In turn, in pairs; the ratio is the median of the pairs'.
"""

import argparse
import datetime
import os
import platform
import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import networkx as nx
import numpy as np
import scipy.sparse as sp

from pbr_jax.index.page_rank import Walk, anchors

WIDTH = 384
NEAR = 1e-6  # similarities that are closer than this are put in order by the rounding of float32
WALK = Walk(theta=0.75, k=10, damping=0.85)
Histories = list[np.ndarray]


def corpus(users: int, seed: int = 0) -> tuple[np.ndarray, Histories]:
    """Unit vectors; a user's documents lie around a few topics, some of them within the threshold.

    A history is drawn again where rounding would decide its edges, so that all must find the same anchors.
    """
    rng = np.random.default_rng(seed)
    sizes = np.clip(rng.lognormal(np.log(88), 0.3, users).astype(int), 10, 400)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    vectors = np.empty((starts[-1], WIDTH), np.float32)
    for start, end in pairwise(starts):
        vectors[start:end] = history(end - start, rng)
        while not decided(vectors[start:end]):
            vectors[start:end] = history(end - start, rng)
    return vectors, [np.arange(start, end) for start, end in pairwise(starts)]


def history(size: int, rng: np.random.Generator) -> np.ndarray:
    topics = rng.normal(size=(8, WIDTH)).astype(np.float32)
    noise = rng.normal(size=(size, WIDTH)).astype(np.float32)
    documents = topics[rng.integers(0, 8, size)] + 0.5 * noise
    return documents / np.linalg.norm(documents, axis=1, keepdims=True)


def decided(documents: np.ndarray) -> bool:
    """Whether no similarity is near the threshold, and none at rank k near the next."""
    similarity = -np.sort(-documents.astype(np.float64) @ documents.T.astype(np.float64), axis=1)
    last, after = similarity[:, WALK.k - 1 : WALK.k], similarity[:, WALK.k : WALK.k + 1]
    tied = (last - after < NEAR) & (after >= WALK.theta - NEAR)
    return not tied.any() and not (np.abs(similarity - WALK.theta) < NEAR).any()


def edges(documents: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, columns and weights of one user's graph, in numpy."""
    similarity = documents @ documents.T
    k = min(WALK.k, len(documents))
    columns = np.argpartition(-similarity, k - 1, axis=1)[:, :k]
    weights = np.take_along_axis(similarity, columns, 1)
    rows = np.broadcast_to(np.arange(len(documents))[:, None], columns.shape)
    kept = weights >= WALK.theta
    return rows[kept], columns[kept], weights[kept]


def with_networkx(vectors: np.ndarray, histories: Histories) -> np.ndarray:
    found = []
    for own in histories:
        documents = vectors[own[0] : own[-1] + 1]
        graph = nx.DiGraph()
        graph.add_nodes_from(range(len(own)))
        graph.add_weighted_edges_from(zip(*(part.tolist() for part in edges(documents))))
        tolerance = WALK.tolerance / len(own)  # networkx multiplies it by the number of nodes
        ranks = nx.pagerank(graph, alpha=WALK.damping, tol=tolerance, max_iter=WALK.iterations)
        found.append(np.array([ranks[i] for i in range(len(own))]) @ documents)
    return np.stack(found)


def iterated(transposed: sp.csr_matrix, restart: np.ndarray) -> np.ndarray:
    ranks = restart
    for _ in range(WALK.iterations):
        moved = WALK.damping * (transposed @ ranks) + (1 - WALK.damping) * restart
        if np.linalg.norm(moved - ranks) < WALK.tolerance:
            break
        ranks = moved
    return ranks


def transposed(rows: np.ndarray, columns: np.ndarray, weights: np.ndarray, n: int) -> sp.csr_matrix:
    total = np.bincount(rows, weights, n)
    return sp.csr_matrix((weights / total[rows], (columns, rows)), (n, n))


def with_scipy(vectors: np.ndarray, histories: Histories) -> np.ndarray:
    found = []
    for own in histories:
        documents = vectors[own[0] : own[-1] + 1]
        n = len(own)
        found.append(iterated(transposed(*edges(documents), n), np.full(n, 1 / n)) @ documents)
    return np.stack(found)


def with_one_matrix(vectors: np.ndarray, histories: Histories) -> np.ndarray:
    parts, restart = [], np.empty(len(vectors))
    for own in histories:
        rows, columns, weights = edges(vectors[own[0] : own[-1] + 1])
        parts.append((rows + own[0], columns + own[0], weights))
        restart[own] = 1 / len(own)
    rows, columns, weights = map(np.concatenate, zip(*parts))
    ranks = iterated(transposed(rows, columns, weights, len(vectors)), restart)
    return np.add.reduceat(ranks[:, None] * vectors, [own[0] for own in histories])


def ours(vectors: np.ndarray, histories: Histories) -> np.ndarray:
    return anchors(vectors, histories, WALK)


PEERS: dict[str, tuple[Callable[[np.ndarray, Histories], np.ndarray], int]] = {
    "networkx, a loop over users": (with_networkx, 10),  # timed on every tenth user
    "scipy.sparse, a loop over users": (with_scipy, 1),
    "scipy.sparse, all users in one matrix": (with_one_matrix, 1),
}


def seconds(run: Callable[[np.ndarray, Histories], np.ndarray], *arguments: object) -> float:
    start = time.perf_counter()
    run(*arguments)  # type: ignore[arg-type]
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--users", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--record", type=Path, help="append the table to this file")
    options = parser.parse_args()
    vectors, histories = corpus(options.users)
    expected = ours(vectors, histories)  # compiles
    lines = []
    for name, (peer, share) in PEERS.items():
        some = histories[: max(1, len(histories) // share)]
        np.testing.assert_allclose(peer(vectors[: some[-1][-1] + 1], some), expected[: len(some)], atol=1e-5)
        pairs = [
            (seconds(ours, vectors, histories), share * seconds(peer, vectors[: some[-1][-1] + 1], some))
            for _ in range(options.repeats)
        ]
        own, theirs = (statistics.median(times) for times in zip(*pairs))
        ratio = statistics.median(b / a for a, b in pairs)
        lines.append(f"| {name} | {own:.2f} s | {theirs:.2f} s | {ratio:.1f} |")
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    header = (
        "## Anchors of many users\n\n"
        f"{datetime.date.today()}; {machine}; {options.users:,} users, {len(vectors):,} documents; "
        f"`python benchmarks/page_rank.py --repeats {options.repeats}`. Ratio: how many times faster ours "
        "is.\n\n"
        "| peer | ours | peer | ratio |\n|---|---|---|---|\n"
    )
    text = header + "\n".join(lines) + "\n"
    print(text)
    if options.record:
        with options.record.open("a", encoding="utf-8") as file:
            file.write("\n" + text)


if __name__ == "__main__":
    main()

"""How fast search is, next to what one would write in numpy, in the same process.

    python benchmarks/search.py [--documents 100000] [--users 1000] [--record FILE]

Vectors are synthetic and clustered, 384 wide. Peers: a score matrix with `argpartition`; a loop over
users with a matrix product each; rank_bm25's formula in Python. Times are medians of repeated runs;
on a busy machine read the ratios. `--record` appends the table to a file.
"""

import argparse
import datetime
import math
import os
import platform
import statistics
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from pbr_jax.base.types import UserError
from pbr_jax.corpus.search import InScope, over
from pbr_jax.text.bm25 import BM25

K = 10
Row = tuple[str, str, str, str]  # what, ours, peer, ratio


def seconds(run: Callable[[], object], repeats: int = 5) -> float:
    """Median seconds of a call, after one that warms up."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def clustered(rng: np.random.Generator, n: int, width: int = 384) -> np.ndarray:
    """Unit vectors around 500 fixed centres."""
    centres = np.random.default_rng(7).normal(size=(500, width)).astype(np.float32)
    vectors = centres[rng.integers(0, 500, n)] + 0.7 * rng.normal(size=(n, width)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def numpy_top_k(queries: np.ndarray, vectors: np.ndarray, chunk: int = 64) -> np.ndarray:
    """The plain way: scores of a chunk of queries, argpartition, sort."""
    found = []
    for start in range(0, len(queries), chunk):
        scores = queries[start : start + chunk] @ vectors.T
        best = np.argpartition(-scores, K, axis=1)[:, :K]
        order = np.argsort(-np.take_along_axis(scores, best, 1), axis=1)
        found.append(np.take_along_axis(best, order, 1))
    return np.concatenate(found)


def row(what: str, ours: float, peer: float, count: int, unit: str = "q/s") -> Row:
    return what, f"{count / ours:,.0f} {unit}", f"{count / peer:,.0f} {unit}", f"{peer / ours:.2f}"


def search_rows(vectors: np.ndarray, queries: np.ndarray) -> list[Row]:
    """Exact and ScaNN over the whole collection."""
    rows = []
    exact = over(vectors, "exact")
    best = exact.search(queries, K).rows
    for count in (1, len(queries)):
        some = queries[:count]
        peer = seconds(lambda some=some: numpy_top_k(some, vectors))
        ours = seconds(lambda some=some: exact.search(some, K))
        rows.append(row(f"exact, {count} queries | numpy argpartition", ours, peer, count))
    scann, start = over(vectors, "scann"), time.perf_counter()
    try:
        found = scann.search(queries, K).rows
    except UserError:
        return [*rows, ("ScaNN is not installed", "", "", "")]
    built = time.perf_counter() - start
    recall = np.mean([len(set(a) & set(b)) / K for a, b in zip(best.tolist(), found.tolist())])
    for count in (1, len(queries)):
        some = queries[:count]
        peer = seconds(lambda some=some: exact.search(some, K))
        ours = seconds(lambda some=some: scann.search(some, K))
        what = f"ScaNN (recall {recall:.3f}, built in {built:.0f} s), {count} queries | exact"
        rows.append(row(what, ours, peer, count))
    return rows


def per_user_rows(vectors: np.ndarray, owners: list[str], queries: np.ndarray) -> list[Row]:
    """One user and ten users a query, against a dict of row lists and a matrix product each."""
    index, rng = InScope(vectors), np.random.default_rng(3)
    codes = np.array(owners)
    rows_of = {user: np.flatnonzero(codes == user) for user in set(owners)}
    every, rows = sorted(set(owners)), []
    for m in (1, 10):
        users = [[every[i] for i in rng.choice(len(every), m, replace=False)] for _ in queries]
        scopes = [rows_of[user] for named in users for user in named]
        repeated = np.repeat(queries, m, axis=0)

        def naive(users: list[list[str]] = users) -> None:
            for query, named in zip(queries, users):
                for user in named:
                    own = rows_of[user]
                    own[np.argsort(-(vectors[own] @ query))[:K]]

        ours = seconds(lambda q=repeated, s=scopes: index.search(q, K, s)) / len(queries)
        peer = seconds(naive) / len(queries)
        rows.append(row(f"per user, {m} a query | bare loop", ours, peer, 1))
    return rows


def python_okapi(texts: list[str], query: str) -> list[float]:
    """rank_bm25's way: counters, and a vector over documents for each query term."""
    counts = [Counter(text.split()) for text in texts]
    lengths = np.array([sum(count.values()) for count in counts])
    holding = Counter(word for count in counts for word in count)
    idf = {w: math.log(len(texts) - n + 0.5) - math.log(n + 0.5) for w, n in holding.items()}
    floor = 0.25 * sum(idf.values()) / len(idf)
    scores = np.zeros(len(texts))
    for word in query.split():
        f = np.array([count.get(word) or 0 for count in counts])
        weight = idf.get(word, 0.0)
        scores += (
            (weight if weight >= 0 else floor)
            * f
            * 2.5
            / (f + 1.5 * (0.25 + 0.75 * lengths / lengths.mean()))
        )
    return scores.tolist()


def bm25_rows() -> list[Row]:
    """Index a profile and score one query, as a benchmark run does for each example."""
    rng, rows = np.random.default_rng(0), []
    for documents, words in ((20, 20), (80, 20), (80, 150), (500, 100)):
        draws = np.minimum(rng.zipf(1.3, (8, documents, words)), 5_000)
        profiles = [[" ".join(f"w{word}" for word in text) for text in profile] for profile in draws]
        queries = [profile[0] for profile in profiles]
        ours = seconds(lambda p=profiles, q=queries: [BM25(texts).scores(one) for texts, one in zip(p, q)])
        peer = seconds(lambda p=profiles, q=queries: [python_okapi(texts, one) for texts, one in zip(p, q)])
        what = f"BM25, profiles of {documents} x {words} words | rank_bm25's way in Python"
        rows.append(row(what, ours, peer, len(profiles), "profiles/s"))
    return rows


def table(rows: list[Row], arguments: argparse.Namespace) -> str:
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    size = f"{arguments.documents:,} documents of {arguments.users:,} users"
    lines = [
        "## Search and BM25",
        "",
        f"{datetime.date.today()}; {machine}; {size}, "
        f"k = {K}; `python benchmarks/search.py`. Ratio: how many times faster ours is.",
        "",
        "| ours, and the peer | ours | peer | ratio |",
        "|---|---|---|---|",
        *("| " + " | ".join((what.replace(" | ", ", against "), *rest)) + " |" for what, *rest in rows),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--users", type=int, default=1_000)
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--record", type=Path, help="append the table to this file")
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    vectors, queries = clustered(rng, arguments.documents), clustered(rng, arguments.queries)
    owners = [f"user{code}" for code in np.sort(rng.integers(0, arguments.users, arguments.documents))]
    rows = search_rows(vectors, queries) + per_user_rows(vectors, owners, queries) + bm25_rows()
    text = table(rows, arguments)
    print(text)
    if arguments.record:
        with arguments.record.open("a", encoding="utf-8") as file:
            file.write("\n" + text)


if __name__ == "__main__":
    main()

"""How long users take to be clustered, in how much memory, and whether the labels are scikit-learn's.

    python benchmarks/cohorts.py [--users 20000] [--min-samples 3] [--record FILE]
    python benchmarks/cohorts.py --silhouette  # what choosing among six smallest groups costs

Unit vectors 384 wide of made-up users around cohort centres, in three worlds: 200 cohorts that lie apart,
small ones (a third as many as users), and 200 in so much noise that hardly any is found. Up to 8,000 users
the labels are compared with scikit-learn's, which holds all distances; above, only we are timed.
Every measurement is a process of its own, so that its peak of memory is its own.
"""

import argparse
import datetime
import json
import os
import platform
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

WIDTH = 384
WORLDS = {"apart": (200, 0.8), "small": (0, 0.8), "noise": (200, 3.0)}
EXACT = (1000, 4000, 8000)


def users(name: str, count: int) -> np.ndarray:
    cohorts, noise = WORLDS[name]
    draw = np.random.default_rng(0)
    centres = draw.normal(size=(cohorts or count // 3, WIDTH))
    found = centres[draw.integers(0, len(centres), count)] + noise * draw.normal(size=(count, WIDTH))
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


def measured(name: str, count: int, how: str, samples: int, file: Path) -> None:
    """Clusters in this process, and prints what it took; labels go to a file."""
    import sklearn.cluster  # noqa: F401  its import is not what is timed

    from pbr_jax.index.density import DENSE, hdbscan

    vectors = users(name, count)
    start = time.perf_counter()
    labels = hdbscan(vectors, min_samples=samples, dense={"blocks": 0, "all": count, "chosen": DENSE}[how])
    spent = time.perf_counter() - start
    np.save(file, labels, allow_pickle=False)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        json.dumps(
            {
                "seconds": spent,
                "GiB": peak,
                "clusters": int(labels.max()) + 1,
                "noise": float((labels < 0).mean()),
            }
        )
    )


def run(name: str, count: int, how: str, samples: int) -> tuple[dict[str, float], np.ndarray]:
    file = Path(f"/tmp/cohorts-{os.getpid()}.npy")
    words = [sys.executable, __file__, "--one", name, str(count), how, str(samples), str(file)]
    told = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    labels = np.load(file, allow_pickle=False)
    file.unlink()
    return told, labels


def table(largest: int, samples: int) -> list[str]:
    from sklearn.metrics import adjusted_rand_score

    lines = [
        "| world | users | clusters | noise | scikit-learn: s, GiB | in blocks: s, GiB | adjusted Rand |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in WORLDS:
        for count in (*EXACT, largest):
            ours, labels = run(name, count, "blocks", samples)
            theirs, agreement = "–", "–"
            if count in EXACT:
                told, wanted = run(name, count, "all", samples)
                theirs = f"{told['seconds']:.1f}, {told['GiB']:.2f}"
                agreement = f"{adjusted_rand_score(wanted, labels):.4f}"
            lines.append(
                f"| {name} | {count:,} | {ours['clusters']:,.0f} | {ours['noise']:.1%} | {theirs} | "
                f"{ours['seconds']:.1f}, {ours['GiB']:.2f} | {agreement} |"
            )
            print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--users", type=int, default=20_000)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--min-samples", type=int, default=3)
    parser.add_argument("--one", nargs=5)
    arguments = parser.parse_args()
    if arguments.one:
        name, count, how, samples, file = arguments.one
        measured(name, int(count), how, int(samples), Path(file))
        return
    lines = table(arguments.users, arguments.min_samples)
    if arguments.record:
        cores = len(os.sched_getaffinity(0))
        head = (
            f"\n## Cohorts, {datetime.date.today()}, {cores} core(s), Python {platform.python_version()}\n\n"
        )
        with arguments.record.open("a", encoding="utf-8") as file:
            file.write(head + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

"""What a living store costs: appending and deleting beside building anew, and what readers keep in memory.

    python benchmarks/corpus.py [--documents 200000] [--users 2000] [--share 0.01] [--passages 1000000]

Made-up documents of 50 words, by user; a share of as many is appended to a living copy, in one call and one
by one, then deleted. Seconds and CPU seconds; ratios are of the CPU seconds of a build of all. "columns" is
what a reader computes when a store has changed. With `--passages`, so many shared
passages are built in a process of their own, from a TSV file, for its peak memory.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pbr_jax.base.types import Document, Example
from pbr_jax.config import Benchmark
from pbr_jax.corpus.store import Store, build
from pbr_jax.data import passages

WORDS = 50


def document(user: int, number: int) -> Document:
    draw = np.random.default_rng([user, number])
    text = " ".join(f"w{word}" for word in draw.integers(0, 50_000, WORDS))
    return Document(f"{user}-{number}", f"u{user}", text, {"text": text}, float(number))


def examples(users: int, each: int) -> Iterator[Example]:
    for user in range(users):
        profile = tuple(document(user, number) for number in range(each))
        yield Example(f"q{user}", f"u{user}", "q", "q", None, profile, float(each))


def peak_megabytes() -> int:
    """Of this program; `ru_maxrss` has that of the one that started it too."""
    found = re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())
    return int(found[1]) >> 10 if found else -1


def timed(what: str, act: Callable[[], Any], whole: float | None = None) -> tuple[Any, float]:
    start, cpu = time.perf_counter(), time.process_time()
    value = act()
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    ratio = "" if whole is None else f"{cpu / whole:.2%} of building"
    print(f"| {what} | {seconds:.2f} s | {cpu:.3f} s | {ratio} |", flush=True)
    return value, cpu


def living(folder: Path, documents: int, users: int, share: float) -> None:
    print("| step | seconds | CPU seconds | ratio |\n|---|---|---|---|")
    made = list(examples(users, documents // users))  # drawing words is not what is measured
    _, whole = timed(f"build {documents:,} documents of {users:,} users", lambda: build(folder / "b", made))
    store, _ = timed(
        "copy to a living store", lambda: Store(folder / "b").copy_to(folder / "live" / "s"), whole
    )
    timed("columns of a store that is opened", lambda: store.owners, whole)
    count = int(documents * share)
    added = [document(n % users, documents + n) for n in range(count)]
    timed(f"append {count:,} documents", lambda: store.append(added), whole)
    timed("columns after that", lambda: store.owners, whole)
    timed(
        "append 100 more, one by one",
        lambda: [store.append([document(0, 10**6 + n)]) for n in range(1, 101)],
        whole,
    )
    new = [Document(d.id, d.user_id, f"{d.text} again", d.fields, d.time) for d in added]
    timed(f"append {count:,} new versions", lambda: store.append(new), whole)
    of_user = [d.id for d in added if d.user_id == "u1"]
    timed(f"delete {len(of_user)} documents of a user", lambda: store.delete("u1", of_user), whole)
    timed("columns after that", lambda: store.owners, whole)
    each = len(store.history("u2"))
    timed(f"delete {each} documents, all of a user", lambda: store.delete("u2"), whole)
    some = max(1, count * users // documents)
    timed(
        f"forget {some} users, one by one", lambda: [store.forget(f"u{u}") for u in range(3, 3 + some)], whole
    )
    size = sum(file.stat().st_size for file in (folder / "live").iterdir())
    print(f"\n{size >> 20} MB on disk; peak {peak_megabytes()} MB")


def shared(folder: Path, count: int) -> None:
    table = folder / "passages.tsv"
    with table.open("w", encoding="utf-8") as file:
        file.write("id\ttext\ttitle\n")
        for number in range(count):
            file.write(f"{number}\t{document(0, number % 1000).text} {number}\ttitle {number}\n")
    ran = subprocess.run(
        [sys.executable, __file__, "--child", folder], stdout=subprocess.PIPE, text=True, check=True
    )
    print(f"\n{count:,} passages ({table.stat().st_size >> 20} MB): {ran.stdout.strip()}")


def child(folder: Path) -> None:
    start, cpu = time.perf_counter(), time.process_time()
    collection = Benchmark(name="nq_open", passages=str(folder / "passages.tsv"))
    build(folder / "p", [], shared=passages.collections(collection))
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    peak = peak_megabytes()
    store = Store(folder / "p")
    asked = Example("", "u", "q", "q", None)
    first, start = len(store.visible(asked, "")), time.perf_counter()
    for _ in range(10):
        store.visible(asked, "")
    milliseconds = (time.perf_counter() - start) * 100
    print(f"built in {seconds:.0f} s ({cpu:.0f} s of CPU), peak {peak} MB")
    print(f"the {first:,} rows that a question sees in {milliseconds:.0f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument("--users", type=int, default=2_000)
    parser.add_argument("--share", type=float, default=0.01)
    parser.add_argument("--passages", type=int, default=0)
    parser.add_argument("--child", type=Path)
    options = parser.parse_args()
    if options.child:
        return child(options.child)
    with tempfile.TemporaryDirectory() as folder:
        living(Path(folder), options.documents, options.users, options.share)
        if options.passages:
            shared(Path(folder), options.passages)
    return None


if __name__ == "__main__":
    main()

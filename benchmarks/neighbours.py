"""How long the users of many questions are compared, and how often all users are read anew for it.

    python benchmarks/neighbours.py [--users 1024 4096] [--documents 20] [--width 384]

Made-up users with dated histories and a dated question each, in random order, eight snapshots. "chunk by
chunk" gives the slot 1,024 questions at a time, as runs did until 2026-11-26; "at once" gives it all. Both
answers are compared. The exponent is that of seconds over users, from the first size to the last.
"""

import argparse
import math
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pbr_jax.base.types import Document, Example
from pbr_jax.corpus.store import Store, build
from pbr_jax.methods.neighbours import Cohorts, Mean
from pbr_jax.methods.neighbours import cohorts as parts
from pbr_jax.methods.neighbours.moments import Moments
from pbr_jax.pipeline import Tally
from pbr_jax.stages import users as user_parts
from pbr_jax.stages.run import chunks
from pbr_jax.stages.users import Users

COHORTS = 32  # labels that the clustering would have found


class Counted(Users):
    """Counts how often all users are read."""

    pools = 0

    def at(self, moment: float | None) -> np.ndarray:
        self.pools += 1
        return super().at(moment)


def questions(users: int, documents: int) -> Iterator[Example]:
    draw = np.random.default_rng(0)
    for i in range(users):
        name, time_ = f"u{i}", float(draw.uniform(1, 2))
        times = np.sort(draw.uniform(0, time_, documents))
        profile = tuple(Document(f"{i}-{j}", name, f"{i} {j}", {}, float(t)) for j, t in enumerate(times))
        yield Example(f"q{i}", name, "q", "q", None, profile, time_)


def resources(folder: Path, users: int, documents: int, width: int) -> tuple[Store, Counted]:
    path = folder / f"{users}.sqlite"
    build(path, questions(users, documents))
    store, draw = Store(path), np.random.default_rng(1)
    centres = draw.normal(size=(COHORTS, width)).astype(np.float32)
    vectors = centres[store.owners % COHORTS] + draw.normal(size=(len(store.owners), width)).astype(
        np.float32
    )
    encoder: Any = None  # every user has a history
    return store, Counted(store, vectors, encoder, user_parts.mean)


def slots(store: Store, users: Users) -> dict[str, Callable[[Any], Any]]:
    moments = Moments(store, 8).all
    labels = np.tile(np.arange(len(store.users)) % COHORTS, (len(moments), 1))
    known = parts.Clusters(moments, labels)
    return {
        "mean": Mean(m=5).slot(Tally(), store=store, users=users),
        "cohorts": Cohorts(m=5).slot(Tally(), store=store, users=users, cohorts=known),
    }


def in_chunks(slot: Callable[[Any], list[Any]], examples: list[Example]) -> list[Any]:
    return [users for some in chunks(examples) for users in slot(some)]


def timed(work: Callable[[], Any], users: Counted) -> tuple[Any, float, int]:
    users.pools, start = 0, time.perf_counter()
    return work(), time.perf_counter() - start, users.pools


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--users", type=int, nargs="+", default=[1024, 2048, 4096])
    parser.add_argument("--documents", type=int, default=20)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--once", action="store_true", help="at once only")
    arguments = parser.parse_args()
    spent: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for count in arguments.users:
            store, users = resources(Path(folder), count, arguments.documents, arguments.width)
            examples = list(store.examples())
            for name, slot in slots(store, users).items():
                slot(examples[:256])  # what is compiled and opened once
                ways: dict[str, Any] = {"at once": slot}
                if not arguments.once:
                    ways["chunk by chunk"] = partial(in_chunks, slot)
                found = {}
                for way, work in ways.items():
                    found[way], seconds, pools = timed(partial(work, examples), users)
                    spent.setdefault(f"{name}, {way}", []).append(seconds)
                    print(f"{name}, {way}: {count:,} users, {pools} pools, {seconds:.2f} s", flush=True)
                assert len({repr(value) for value in found.values()}) == 1, f"{name}: other neighbours"
    steps = math.log(arguments.users[-1] / arguments.users[0])
    for way, seconds in spent.items() if steps else ():
        print(f"{way}: exponent {math.log(seconds[-1] / seconds[0]) / steps:.2f}")
    print(f"most memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.2f} GiB")


if __name__ == "__main__":
    main()

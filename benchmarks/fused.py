"""Fused retrieval beside its parts: CPU milliseconds a question, paired in one process.

    python benchmarks/fused.py [--rounds 7] [--encoder all-MiniLM-L6-v2]

Texts are seeded, and each question is of words of one document. The sizes are users of 30 and of 300
documents, users of 30 documents that are cut into passages, and 10,000 shared passages. In each round BM25,
dense retrieval and their fusion rank the same questions one after another, in an order that turns; documents
are encoded before, and statistics of BM25 are made anew for every user. One round before is not counted, so
documents that a store keeps in memory are there. The ratio is that of the fusion to the sum of the other
two; what is printed is the median over rounds, with its quartiles.
"""

import argparse
import os
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from pbr_jax.base.types import Document, Example
from pbr_jax.config import Config, override
from pbr_jax.corpus.store import Store, build
from pbr_jax.corpus.vectors import Vectors, VectorStore, complete
from pbr_jax.graph import Bound
from pbr_jax.methods.retrieve import BM25, Dense, Fused
from pbr_jax.options import Corpus
from pbr_jax.pipeline import Neighbour, Query, RetrieveSlot, Tally
from pbr_jax.stages.passages import Pooled
from pbr_jax.stages.vectors import _shared
from pbr_jax.text.encode import TextEncoder

VOCABULARY = [f"{a}{b}{c}" for a in "bdfgkl" for b in ("a", "e", "io", "u") for c in ("n", "r", "st", "mp")]
COMMON = ["the", "a", "of", "and", "to", "in", "is", "was"]
K = 4


def texts(count: int, words: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(VOCABULARY * 3 + COMMON * 20, k=words)) for _ in range(count)]


def made(folder: Path, users: int, documents: int, words: int, asked: int, shared: int, cut: bool) -> Store:
    """A store of users with so many documents and questions, and of shared passages."""
    passages = texts(shared, words, 0)
    examples = []
    for user in range(users):
        own = texts(documents, words, user + 1)
        profile = tuple(Document(f"d{i}", f"u{user}", text, {"text": text}) for i, text in enumerate(own))
        draw = random.Random(-user)
        for number in range(asked):
            query = " ".join(draw.choice(own or passages).split()[3:11])
            examples.append(Example(f"u{user}-{number}", f"u{user}", query, query, None, profile))
    collections = {
        "shared": (Document(f"p{i}", "", t, {"text": t}, shared=True) for i, t in enumerate(passages))
    }
    build(
        folder / "store.sqlite",
        examples,
        shared=collections if shared else {},
        corpus=Corpus(chunk="words") if cut else None,
    )
    return Store(folder / "store.sqlite")


def retrievers(store: Store, encoder: TextEncoder, cut: bool) -> dict[str, RetrieveSlot]:
    vectors = VectorStore(encoder)
    complete(store, vectors, "embed")
    embeddings = Vectors(store, vectors)
    shared = _shared("exact", store=store, embeddings=embeddings) if store.has_shared else None
    parts = {
        "bm25": Bound(BM25(k=K), {"store": store}),
        "dense": Bound(
            Dense(k=K), {"store": store, "encoder": encoder, "embeddings": embeddings, "shared": shared}
        ),
    }
    values: dict[str, Any] = {f"of.{name}": part for name, part in parts.items()}
    values |= {"pool": "max"} if cut else {}
    fused = Fused(k=K).slot(Tally(), store=store, **values)
    if not cut:
        return {**{name: part(Tally()) for name, part in parts.items()}, "fused": fused}
    pooled = {
        name: Pooled(of=part.method, k=K).slot(Tally(), store=store, of=part)  # type: ignore[arg-type]
        for name, part in parts.items()
    }
    return {**pooled, "fused": fused}


def rounds(store: Store, slots: dict[str, RetrieveSlot], count: int) -> dict[str, list[float]]:
    """CPU milliseconds a question, by round; one round before is not counted."""
    examples = list(store.examples())
    queries = [Query((example.query,)) for example in examples]
    who = "" if store.has_shared else None
    users = [[Neighbour(example.user_id if who is None else who)] for example in examples]
    found: dict[str, list[float]] = {name: [] for name in slots}
    for turn in range(count + 1):
        names = list(slots)
        for name in names[turn % 3 :] + names[: turn % 3]:
            start = time.process_time()
            slots[name](examples, queries, users)
            if turn:
                found[name].append(1000 * (time.process_time() - start) / len(examples))
    return found


SIZES = {
    # name: users, documents of each, words of each, questions of each, shared passages, cut into passages
    "8 users of 30": (8, 30, 60, 4, 0, False),
    "8 users of 300": (8, 300, 60, 4, 0, False),
    "4 users of 30 of 600 words, cut": (4, 30, 600, 8, 0, True),
    "10,000 shared": (1, 0, 60, 32, 10_000, False),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--encoder", default="all-MiniLM-L6-v2")
    parser.add_argument("--only", default="", help="sizes whose names hold this")
    options = parser.parse_args()
    encoder = TextEncoder(override(Config(), {"encoder.model": options.encoder}).encoder)
    print(f"{'size':34}{'bm25':>8}{'dense':>8}{'fused':>8}   ratio (quartiles)")
    for name, size in SIZES.items():
        if options.only not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            os.environ.setdefault("PBR_JAX_CACHE", str(Path(tempfile.gettempdir()) / "fused_cache"))
            store = made(Path(folder), *size)
            spent = rounds(store, retrievers(store, encoder, size[-1]), options.rounds)
        ratios = np.array(spent["fused"]) / (np.array(spent["bm25"]) + np.array(spent["dense"]))
        low, middle, high = np.quantile(ratios, [0.25, 0.5, 0.75])
        times = "".join(f"{statistics.median(own):8.2f}" for own in spent.values())
        print(f"{name:34}{times}   {middle:.2f} ({low:.2f} to {high:.2f})", flush=True)


if __name__ == "__main__":
    main()

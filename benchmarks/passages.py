"""Cutting documents into passages beside encoding them: seconds, and memory that does not grow.

    python benchmarks/passages.py [--sessions 10000] [--encoded 40]

Sessions are of 900 tokens and seeded. `build` streams them into a store, whole and cut into windows of 60
words, one every 30, in processes of their own, whose peak of resident memory is printed; for a tenth of the
sessions too. The passages of the first `--encoded` sessions are encoded by MiniLM, as a run does it. The
ratio is that of the whole way (cutting, storing, encoding) to encoding the same texts, a session.
"""

import argparse
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from pbr_jax.base.types import Document, Example
from pbr_jax.corpus.store import build
from pbr_jax.options import Corpus, Encoder
from pbr_jax.text.encode import TextEncoder
from pbr_jax.text.passages import passages

CUT = Corpus(chunk="words")
WORDS = ["the", "a", "session", "travel", "music", "dinner", "remember", "tomorrow", "question", "winter"]
LENGTH = 880  # words that make 900 tokens with the sentences' full stops
TURN = 44


def session(number: int) -> Document:
    draw = random.Random(number)
    turns = [" ".join(draw.choices(WORDS, k=TURN)) + "." for _ in range(LENGTH // TURN)]
    return Document(str(number), "u", " ".join(turns), {"text": " ".join(turns)})


def examples(count: int) -> Iterator[Example]:
    """Users with fifty sessions each, one at a time."""
    for first in range(0, count, 50):
        user = f"u{first}"
        profile = [session(i) for i in range(first, min(first + 50, count))]
        own = tuple(Document(d.id, user, d.text, d.fields) for d in profile)
        yield Example(str(first), user, "q", "in", None, own)


def store(count: int, corpus: Corpus | None) -> None:
    """Prints seconds of building a store, and the peak of memory in MB."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        build(Path(folder) / "store.sqlite", examples(count), corpus=corpus)
        spent = time.process_time() - start
    print(spent, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def measured(count: int, phase: str) -> tuple[float, float]:
    command = [sys.executable, __file__, "--sessions", str(count), "--phase", phase]
    seconds, peak = map(
        float, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    )
    print(f"{phase:>6}: {count:6} sessions {seconds:7.1f} CPU s, peak {peak:6.0f} MB")
    return seconds, peak


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--encoded", type=int, default=40)
    parser.add_argument("--phase", choices=("whole", "cut"))
    options = parser.parse_args()
    if options.phase:
        return store(options.sessions, CUT if options.phase == "cut" else None)
    measured(options.sessions // 10, "cut")
    cut, _ = measured(options.sessions, "cut")
    measured(options.sessions, "whole")
    texts = [part.text for i in range(options.encoded) for part in passages(session(i), CUT)]
    encoder = TextEncoder(Encoder())
    encoder.encode(texts[:64])  # compiles
    start = time.process_time()
    encoder.encode(texts)
    encoding = (time.process_time() - start) / options.encoded
    print(f"encode: {len(texts) / options.encoded:.1f} passages and {encoding:.3f} CPU s a session")
    print(f"ratio of cutting, storing and encoding to encoding: {1 + cut / options.sessions / encoding:.4f}")


if __name__ == "__main__":
    main()

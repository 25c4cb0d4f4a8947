"""Texts to embeddings: ours against sentence-transformers, in turn, in one process.

    python benchmarks/encode.py --texts LAMP_FOLDER_OR_TEXT_FILE --n 2000 --repeats 3
    python benchmarks/encode.py --texts LAMP_FOLDER_OR_TEXT_FILE --n 2000 --memory

A LaMP folder gives the texts of its users' histories, a text file its lines. The second command
reports the peak memory of writing n and 10 n embeddings to a file, each in a process of its own.
"""

import argparse
import itertools
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path


def read_texts(path: Path) -> list[str]:
    """The texts of histories in a LaMP folder, or the lines of a file; empty ones are left out."""
    if path.is_file():
        texts = path.read_text(encoding="utf-8").splitlines()
    else:
        texts = [
            record["text"]
            for file in sorted(path.glob("*_questions.json"))
            for question in json.loads(file.read_text(encoding="utf-8"))
            for record in question["profile"]
        ]
    return [text for text in dict.fromkeys(texts) if text.strip()]


def sample(path: Path, n: int) -> list[str]:
    """n distinct texts, the same ones every time."""
    texts = read_texts(path)
    if len(texts) < n:
        raise SystemExit(f"{path} holds {len(texts)} texts, {n} are wanted; give --n {len(texts)} or less")
    return random.Random(0).sample(texts, n)


def use_threads(threads: int) -> None:
    """As many cores and threads for both, set before either library starts."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    os.environ |= {
        "OMP_NUM_THREADS": str(threads),
        "RAYON_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "true",
    }


def our_encoder(batch_tokens: int | None) -> Callable[[list[str]], object]:
    from pbr_jax.config import Encoder
    from pbr_jax.text.encode import TextEncoder

    return TextEncoder(Encoder(batch_tokens=batch_tokens)).encode


def peer_encoder(threads: int) -> Callable[[list[str]], object]:
    import torch
    from sentence_transformers import SentenceTransformer  # pyright: ignore[reportMissingImports]  # an extra

    from pbr_jax.models.pretrained import locate

    torch.set_num_threads(threads)
    model = SentenceTransformer(str(locate("all-MiniLM-L6-v2")), device="cpu")
    return lambda texts: model.encode(texts, show_progress_bar=False)


def speed(texts: list[str], repeats: int, batch_tokens: int | None, threads: int) -> None:
    """Median texts a second of both, and of the ratios of neighbouring runs."""
    import numpy as np

    encoders = {"ours": our_encoder(batch_tokens), "sentence-transformers": peer_encoder(threads)}
    start = time.perf_counter()
    first = np.asarray(encoders["ours"](texts))
    print(f"ours, first run (compilation included): {len(texts) / (time.perf_counter() - start):.1f} texts/s")
    warm = np.asarray(encoders["sentence-transformers"](texts[:64]))
    print(f"largest difference of 64 embeddings: {np.abs(first[:64] - warm).max():.1e}")
    seconds: dict[str, list[float]] = {name: [] for name in encoders}
    for _ in range(repeats):
        for name, encode in encoders.items():
            start = time.perf_counter()
            encode(texts)
            seconds[name].append(time.perf_counter() - start)
        ours, peer = (len(texts) / values[-1] for values in seconds.values())
        print(
            f"  ours {ours:.1f} texts/s, sentence-transformers {peer:.1f}, ratio {ours / peer:.2f}",
            flush=True,
        )
    for name, values in seconds.items():
        print(f"{name}: {len(texts) / statistics.median(values):.1f} texts/s (median of {repeats})")
    ratios = [peer / ours for ours, peer in zip(*seconds.values(), strict=True)]
    print(f"ratio: {statistics.median(ratios):.2f} (median of pairs), {min(ratios):.2f} to {max(ratios):.2f}")


def peak(path: Path, n: int, copies: int) -> None:
    """Write embeddings of n texts, `copies` times over with a number before each; print the peak in MiB."""
    from pbr_jax.config import Encoder
    from pbr_jax.corpus.vectors import CHUNK, VectorStore
    from pbr_jax.text.encode import TextEncoder

    base = sample(path, n)

    texts = (f"{copy} {text}" for copy in range(copies) for text in base)
    with tempfile.TemporaryDirectory() as folder:
        kept = VectorStore(TextEncoder(Encoder()), folder=Path(folder))
        while some := list(itertools.islice(texts, CHUNK)):
            kept.places(some)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)


def memory(arguments: argparse.Namespace) -> None:
    """Peak memory at n and 10 n texts."""
    peaks = []
    for copies in (1, 10):
        command = [sys.executable, __file__, "--texts", str(arguments.texts), "--n", str(arguments.n)]
        output = subprocess.run([*command, "--peak", str(copies)], check=True, capture_output=True, text=True)
        peaks.append(int(output.stdout))
        print(f"{arguments.n * copies} texts: peak {peaks[-1]} MiB", flush=True)
    print(f"growth: {peaks[1] / peaks[0]:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--texts", type=Path, required=True, help="a LaMP folder, or a file with a text a line"
    )
    parser.add_argument("--n", type=int, default=2000, help="how many texts")
    parser.add_argument("--repeats", type=int, default=3, help="how many pairs of runs")
    parser.add_argument("--threads", type=int, default=2, help="cores and threads of each library")
    parser.add_argument("--batch-tokens", type=int, help="of config.Encoder; left out: its default")
    parser.add_argument("--memory", action="store_true", help="peak memory at n and 10 n instead of speed")
    parser.add_argument("--peak", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    use_threads(arguments.threads)
    if arguments.peak:
        peak(arguments.texts, arguments.n, arguments.peak)
    elif arguments.memory:
        memory(arguments)
    else:
        texts = sample(arguments.texts, arguments.n)
        speed(texts, arguments.repeats, arguments.batch_tokens, arguments.threads)


if __name__ == "__main__":
    main()

"""Memory systems of others beside simple baselines and ours: evidence recall by provenance, without a judge.

Each system has an environment of its own in the folder that the variable MEMORY_SYSTEMS names, and an
adapter in examples/memory. One whose environment is missing has no row. Rows of systems have 40 memories,
which are more than are shown: several come from one session. "grep" ranks sessions by the words that they
share with the question. No row of a system calls a language model.

python -m venv venvs/mem0 && venvs/mem0/bin/pip install mem0ai==2.2.1
MEMORY_SYSTEMS=venvs pbr-jax sweep ablations/memory_systems --benchmark.name locomo --benchmark.root FOLDER \
    --benchmark.split locomo10 --generate.method none --eval.likelihood off --out DIR
"""

import os
from collections.abc import Iterator
from pathlib import Path

from pbr_jax.config import Config, Eval, Overrides, Prompt
from pbr_jax.methods import generate, retrieve, select

ADAPTERS = Path(__file__).parents[2] / "examples" / "memory"
_MEMORY: Overrides = {
    "corpus.chunk": "words",
    "select.k": 6,
    "retrieve.method": "fused",
    "retrieve.of": ("bm25", "bm25", "dense"),
    "retrieve.of.bm25.over": "documents",
    "retrieve.of.bm25.analyser": "stem",
    "retrieve.of.bm25_2.analyser": "stem",
    "retrieve.of.bm25.question_words": "out",
    "retrieve.of.bm25_2.question_words": "out",
    "retrieve.of.dense.names": "i",
    "retrieve.weights": (1.0, 1.0, 2.0),
}
_WHOLE: Overrides = {
    "retrieve.k": 1000, "select.k": None, "prompt.max_tokens": 2048, "prompt.order": "best_last",
}  # fmt: skip
ROWS: dict[str, Overrides] = {
    "nothing": {"retrieve.method": "none"},
    "random session": {"retrieve.method": "random"},
    "newest": {"retrieve.method": "recency"},
    "whole history": {"retrieve.method": "recency", **_WHOLE},
    "grep": {"retrieve.k1": 0.0, "retrieve.b": 0.0},
    "bm25": {},
    "dense, passages": {"retrieve.method": "dense", "corpus.chunk": "words", "select.k": 6},
    "memory": _MEMORY,
}

_TURNS: Overrides = {"corpus.chunk": "turns", "corpus.words": 1000, "corpus.stride": 1000}
GIVEN: dict[str, Overrides] = {"mem0": _TURNS, "langmem": _TURNS}
"""What a system is given where that is not whole sessions: those that keep messages get a turn in each."""


def systems() -> dict[str, Overrides]:
    """The rows of the systems that have an adapter and an environment."""
    folder = Path(os.environ.get("MEMORY_SYSTEMS", "memory_systems")).absolute()
    pythons = {path.name: folder / path.name / "bin" / "python" for path in sorted(ADAPTERS.glob("*"))}
    shared: Overrides = {"retrieve.method": "external", "retrieve.k": 40, "select.k": None}
    return {
        name: {
            **shared,
            **GIVEN.get(name, {}),
            "retrieve.adapter": str(ADAPTERS / name / "adapter.py"),
            "retrieve.python": str(python),
        }
        for name, python in pythons.items()
        if python.is_file()
    }


def get_config() -> Config:
    return Config(
        system="bm25",
        retrieve=retrieve.BM25(k=10),
        select=select.TopK(k=1),
        prompt=Prompt(max_tokens=512),
        generate=generate.Ipa(max_new_tokens=24),
        eval=Eval(likelihood="on"),
    )


def sweep() -> Iterator[Overrides]:
    for name, row in (ROWS | systems()).items():
        yield {"system": name, **row}

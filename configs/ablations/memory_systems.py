"""Memory systems of others beside simple baselines and ours: evidence recall by provenance, without a judge.

Each system has an environment of its own in the folder that the variable MEMORY_SYSTEMS names, and an
adapter in examples/memory. One whose environment is missing has no row. Rows of systems have 40 memories,
since several come from one session. A prompt shows the first 10 turns or 2 pieces of sessions: it shares its
tokens equally among its texts, so 40 would be cut to a few words each. "grep" ranks sessions by the words
that they share with the question. No row of a system calls a language model.

python -m venv venvs/mem0 && venvs/mem0/bin/pip install mem0ai==2.2.1
MEMORY_SYSTEMS=venvs pbr-jax sweep ablations/memory_systems --benchmark.name locomo --benchmark.root FOLDER \
    --benchmark.split locomo10 --generate.method none --eval.likelihood off --out DIR
"""

import os
from collections.abc import Iterator
from pathlib import Path

from memory import ROWS as PLAIN
from memory import get_config as get_config

from pbr_jax.config import Overrides

ADAPTERS = Path(__file__).parents[2] / "examples" / "memory"
ROWS: dict[str, Overrides] = {
    "nothing": PLAIN["no memory"],
    "random session": PLAIN["random"],
    "newest": PLAIN["newest"],
    "whole history": PLAIN["whole history"],
    "grep": PLAIN["shared words"],
    "bm25": PLAIN["bm25"],
    "dense, passages": PLAIN["dense, passages"],
    "memory": PLAIN["memory"],
}

_TURNS: Overrides = {"corpus.chunk": "turns", "corpus.words": 1000, "corpus.stride": 1000, "select.k": 10}
GIVEN: dict[str, Overrides] = {"mem0": _TURNS, "langmem": _TURNS}
"""What a system is given where that is not whole sessions: those that keep messages get a turn in each."""


def systems() -> dict[str, Overrides]:
    """The rows of the systems that have an adapter and an environment."""
    folder = Path(os.environ.get("MEMORY_SYSTEMS", "memory_systems")).absolute()
    pythons = {path.name: folder / path.name / "bin" / "python" for path in sorted(ADAPTERS.glob("*"))}
    shared: Overrides = {"retrieve.method": "external", "retrieve.k": 40, "select.k": 2}
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


def sweep() -> Iterator[Overrides]:
    for name, row in (ROWS | systems()).items():
        yield {"system": name, **row}

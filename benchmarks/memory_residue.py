"""What memory systems keep after a deletion: canaries are added, found, deleted, and looked for in each byte.

    MEMORY_SYSTEMS=venvs python benchmarks/memory_residue.py

For each adapter of examples/memory whose environment is there it prints, per file that holds a canary after
`delete` of the whole user, the kind of record (of SQLite files table and column) and the number of canaries,
and how many canaries a search of that user and of another one still finds.
"""

import os
import sqlite3
import sys
import tempfile
import zlib
from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np

from pbr_jax.base.types import Document
from pbr_jax.external.process import Process
from pbr_jax.external.server import Server

ADAPTERS = Path(__file__).parents[1] / "examples" / "memory"
VENVS = Path(os.environ.get("MEMORY_SYSTEMS", "memory_systems")).absolute()
CANARIES = [f"canary{zlib.crc32(bytes([i])):08x}" for i in range(20)]


def encode(texts: list[str]) -> np.ndarray:
    found = np.full((len(texts), 384), 1e-3, np.float32)
    for row, text in zip(found, texts, strict=True):
        for word in text.lower().split():
            row[zlib.crc32(word.encode()) % 384] += 1
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def held(data: bytes) -> int:
    return sum(canary.encode() in data for canary in CANARIES)


def kinds(file: Path) -> Counter[str]:
    """How many canaries each kind of record in a file holds; of other files than SQLite's all bytes."""
    data = file.read_bytes()
    if not data.startswith(b"SQLite format 3"):
        return Counter({"file": held(data)})
    found = Counter[str]()
    with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as connection:
        named = "SELECT name FROM sqlite_master WHERE type='table' AND sql NOT LIKE '%VIRTUAL%'"
        for (table,) in connection.execute(named).fetchall():
            cursor = connection.execute(f'SELECT * FROM "{table}"')
            for row in cursor:
                for (column, *_), value in zip(cursor.description, row, strict=True):
                    data_of = value if isinstance(value, bytes) else str(value).encode()
                    found[f"{table}.{column}"] += held(data_of)
    live = {canary for canary in CANARIES if canary.encode() in data}
    if not +found:
        found["freed pages"] = len(live)
    return found


def audit(name: str, folder: Path, server: Server) -> None:
    settings = {"base_url": server.url, "dimensions": 384, "model": ""}
    python = str(VENVS / name / "bin" / "python")
    texts = [f"ann: my secret word number {i} is {canary}" for i, canary in enumerate(CANARIES)]
    own = [Document(f"s{i}", "ann", text, time=86_400.0 * i) for i, text in enumerate(texts)]

    def shown(memory: Process, user: str) -> int:
        queries = [f"what is my secret word number {i}?" for i in range(len(CANARIES))]
        told = " ".join(one.text for query in queries for one in memory.search(user, query, 5))
        return held(told.encode())

    with Process(ADAPTERS / name / "adapter.py", folder, python=python, settings=settings) as memory:
        memory.add("bob", [Document("b1", "bob", "bob: i like tea", time=0.0)])
        memory.add("ann", own)
        print(f"{name}: {shown(memory, 'ann')} of {len(CANARIES)} canaries are found before")
        memory.delete("ann")
        print(f"{name}: after: search of the user {shown(memory, 'ann')}, of another {shown(memory, 'bob')}")
        for file in memory.files():
            for kind, count in (+kinds(file)).items():
                print(f"{name}: {file.relative_to(folder.resolve() / 'home')}: {kind}: {count}")


if __name__ == "__main__":
    wanted = sys.argv[1:] or [path.name for path in sorted(ADAPTERS.glob("*"))]
    for name in wanted:
        if (VENVS / name / "bin" / "python").is_file():
            with tempfile.TemporaryDirectory() as folder, Server(encode) as server:
                audit(name, Path(folder), server)

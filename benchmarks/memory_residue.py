"""What memory systems keep after a deletion: canaries are added, found, deleted, and looked for in each byte.

    MEMORY_SYSTEMS=venvs python benchmarks/memory_residue.py [NAME ...]

For each system of ablations/memory_systems it prints, per file that holds a canary after `delete` of the
whole user, the kind of record (of SQLite files table and column) and the number of canaries, and how many
canaries a search of that user and of another one still finds.
"""

import sqlite3
import sys
import zlib
from collections import Counter
from contextlib import closing
from pathlib import Path

from pbr_jax.config import Config, found, override
from pbr_jax.config.reading import execute
from pbr_jax.experiment.audit import Memory, memory_of

CANARIES = [f"canary{zlib.crc32(bytes([i])):08x}" for i in range(20)]


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
    if not +found:
        found["freed pages"] = held(data)
    return found


def audit(name: str, memory: Memory) -> None:
    def shown(user: str) -> int:
        queries = [f"what is my secret word number {i}?" for i in range(len(CANARIES))]
        return held(" ".join(text for query in queries for text in memory.search(user, query)).encode())

    memory.add("bob", ["bob: i like tea"])
    memory.add("ann", [f"ann: my secret word number {i} is {word}" for i, word in enumerate(CANARIES)])
    print(f"{name}: {shown('ann')} of {len(CANARIES)} canaries are found before")
    memory.delete("ann")
    print(f"{name}: after: search of the user {shown('ann')}, of another {shown('bob')}")
    for file in memory.files():
        for kind, count in (+kinds(file)).items():
            print(f"{name}: {str(file).rpartition('/home/')[2]}: {kind}: {count}")


if __name__ == "__main__":
    for name, row in execute(found("ablations/memory_systems")).systems().items():
        if name in (sys.argv[1:] or [name]):
            with memory_of(override(Config(), {**row, "retrieve.k": 5})) as memory:
                audit(name, memory)

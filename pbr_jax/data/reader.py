"""How a benchmark is read. A new one is a module of this folder with `READERS`, and a task (CONTRIBUTING.md).

A file's examples are streamed: one record is in memory at a time.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pbr_jax.base.types import Example
from pbr_jax.data.records import Note, Record
from pbr_jax.options import Benchmark

Files = Sequence[Path] | Callable[[], Sequence[Path]]
"""The files of a split, or what finds them once they are needed."""


@dataclass(frozen=True, kw_only=True)
class Reader:
    """How the files of one benchmark are read.

    Args:
      expected: what the root should hold, for error messages.
      layout: the files of each split that is under the root.
      examples: the examples of `benchmark.split` in the order of the files; the function that it is given
        takes a line for each repair of the data.
      task: the name of the task; "": that of the benchmark.
      forms: the values of `benchmark.form`.
      question_users: whether each question is a user by itself, rather than one of the user that it names.
    """

    expected: str
    layout: Callable[[Benchmark], Mapping[str, Files]]
    examples: Callable[[Benchmark, Note], Iterator[Example]]
    task: str = ""
    forms: tuple[str, ...] = ("official",)
    question_users: bool | Callable[[Benchmark], bool] = False

    def splits(self, benchmark: Benchmark) -> tuple[str, ...]:
        """The splits that are there."""
        return tuple(self.layout(benchmark))

    def files(self, benchmark: Benchmark) -> tuple[Path, ...]:
        """The files of a split that is there."""
        found = self.layout(benchmark)[benchmark.split]
        return tuple(found() if callable(found) else found)


def json_files(benchmark: Benchmark) -> dict[str, tuple[Path, ...]]:
    """The layout of a root that is a JSON file, or a folder of such files, whose stems name the splits."""
    root = Path(benchmark.root)
    paths = [root] if root.is_file() else sorted(root.glob("*.json"))
    return {path.stem: (path,) for path in paths}


def named(records: Iterable[Record], key: str) -> Iterator[tuple[str, Record]]:
    """Each record with the id in its field `key`. Raises UserError for an id that stands twice."""
    seen: set[str] = set()
    for record in records:
        name = record.name(key)
        if name in seen:
            raise record.fault(key, f"the id {name!r} a second time", "unique ids")
        seen.add(name)
        yield name, record

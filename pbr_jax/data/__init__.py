"""Benchmarks as streams of examples: read, list and check the official files.

>>> task(Benchmark(name="lamp_4")).document_target
'title'
"""

import difflib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pbr_jax.base import terminal
from pbr_jax.base.file_hashes import file_hash
from pbr_jax.base.types import Example, UserError
from pbr_jax.cache.artefacts import digest
from pbr_jax.data import (
    dialogues,
    lamp,
    locomo,
    longlamp,
    longmemeval,
    lucid,
    open_qa,
    own,
    passages,
    personabench,
    personamem,
    prefeval,
    prepared,
    realtalk,
)
from pbr_jax.data.reader import Reader
from pbr_jax.data.records import Note
from pbr_jax.data.users import spread
from pbr_jax.options import Benchmark
from pbr_jax.tasks import Task, load, released
from pbr_jax.tasks.scoring import check_target, scorable

__all__ = [
    "BENCHMARKS", "SplitSummary", "Task", "files", "fingerprint", "question_users", "read", "splits", "task",
    "validate",
]  # fmt: skip


_MODULES = (
    lamp, longlamp, personabench, longmemeval, open_qa, dialogues, own,
    locomo, realtalk, lucid, personamem, prefeval,
)  # fmt: skip
_READERS: dict[str, Reader] = {name: one for module in _MODULES for name, one in module.READERS.items()}

BENCHMARKS = tuple(_READERS)
"""The names of all benchmarks."""

TASK_FILE = "task.toml"
"""The file in a data folder that changes the benchmark's task."""


@dataclass(frozen=True, kw_only=True)
class SplitSummary:
    """What a split holds.

    `documents` and `undated` count the documents of all histories (without a date), each once. `fewest` and
    `most` are the documents of one question's history. `targets`, `relevant`, `unscored` and `empty_profiles`
    count questions: with an answer, with known relevant documents, kept out of all numbers, without history.
    `units` counts what questions belong together by, `passages` shared ones, distractors too. `repairs` says
    in one line each what a reader mended.
    """

    split: str
    examples: int = 0
    users: int = 0
    documents: int = 0
    fewest: int = 0
    most: int = 0
    targets: int = 0
    relevant: int = 0
    unscored: int = 0
    empty_profiles: int = 0
    undated: int = 0
    units: int = 0
    passages: int = 0
    repairs: tuple[str, ...] = ()

    def __str__(self) -> str:
        sees = f"{self.fewest} to {self.most}" if self.fewest < self.most else str(self.most)
        documents = f"a question sees {sees} of {_counted(self.documents, 'document')}"
        counts = [
            f"{_counted(self.examples, 'question')} of {_counted(self.users, 'user')}",
            documents if self.documents else "",
            f"{self.targets or 'none'} with a target",
            f"{self.relevant} with relevant documents" if self.relevant else "",
            f"{self.unscored} not scored" if self.unscored else "",
            f"{self.empty_profiles} without history" if self.empty_profiles else "",
            f"{_counted(self.undated, 'document')} without date" if self.undated else "",
            _counted(self.units, "unit") if self.units else "",
            _counted(self.passages, "shared passage") if self.passages else "",
        ]
        return f"{self.split}: {'; '.join(filter(None, counts))}"


def task(benchmark: Benchmark) -> Task:
    """The benchmark's own task, changed by `TASK_FILE` in its root and then by `benchmark.task`."""
    found = released(_released(benchmark).task or benchmark.name)
    beside = Path(benchmark.root, TASK_FILE)
    paths = [beside] if benchmark.root and os.path.lexists(beside) else []  # a broken link is a fault
    for path in [*paths, *([Path(benchmark.task)] if benchmark.task else [])]:
        found = load(path, found)
    return found


def read(benchmark: Benchmark, limit: int | None = None) -> Iterator[Example]:
    """The examples of a split in file order, at most `limit` of them, spread over users (`data.users`).

    Files are read as the examples are asked for, one record at a time, so memory does not grow with
    them; for a limit they are read once before, to know the users. UserError for whatever is wrong: names,
    folders and files at once, records when they are reached.
    """
    if limit is not None and limit < 1:
        raise UserError(f"limit: found {limit}, wanted at least 1, or none to read all examples")
    files(benchmark)
    return _evaluated(benchmark) if limit is None else _sample(benchmark, limit)


def _evaluated(benchmark: Benchmark) -> Iterator[Example]:
    """The examples of a split, without those that `benchmark.cold_start` leaves out."""
    skips = benchmark.cold_start == "skip" and benchmark.split != benchmark.training
    return (example for example in _all(benchmark) if example.profile or not skips)


def _all(benchmark: Benchmark, note: Note = lambda repair: None) -> Iterator[Example]:
    """The examples of a split; repairs, which `validate` reports, go to `note`."""
    return _reader(benchmark).examples(benchmark, note)


def files(benchmark: Benchmark) -> tuple[Path, ...]:
    """The files that a split is read from, sorted; UserError where one is missing."""
    if benchmark.split not in (found := splits(benchmark)):
        raise UserError(
            f"{benchmark.root}: found the splits {', '.join(found)}, wanted {benchmark.split!r} in "
            f"{_reader(benchmark).expected}; set --benchmark.split or add the files"
        )
    paths = _reader(benchmark).files(benchmark)
    if missing := next((path for path in paths if not path.is_file()), None):
        raise UserError(f"{missing}: found no such file, wanted it for the split {benchmark.split}; "
                        f"take {benchmark.name} as released")  # fmt: skip
    return tuple(sorted(paths))


def fingerprint(benchmark: Benchmark) -> str:
    """Hash of the files that a split is read from, passages too; UserError where one is missing."""
    return digest([*map(file_hash, files(benchmark)), *passages.identity(benchmark)])


def question_users(benchmark: Benchmark) -> bool:
    """Whether a question of the split is a user by itself, rather than one of the user that it names."""
    alone = _reader(benchmark).question_users
    return alone if isinstance(alone, bool) else alone(benchmark)


def splits(benchmark: Benchmark) -> tuple[str, ...]:
    """The splits under the root; UserError where there is none."""
    reader = _reader(benchmark)
    wanted = f"wanted for {benchmark.name} {reader.expected}; set --benchmark.root"
    if not benchmark.root:
        raise UserError(f"benchmark.root: found nothing, {wanted}")
    if not Path(benchmark.root).exists():
        raise UserError(f"benchmark.root: found no such folder {benchmark.root}, {wanted}")
    if not (found := reader.splits(benchmark)):
        raise UserError(f"{benchmark.root}: found no file of {benchmark.name} here, {wanted}")
    return found


def validate(benchmark: Benchmark, read: Callable[[str], object] = len) -> list[SplitSummary]:
    """Read the task, every split under the root and the passages to their end and count.

    `read` is called with the text of each document of a split. Raises UserError for the first fault.
    """
    task(benchmark)
    shared = passages.count(benchmark)
    return [_summary(replace(benchmark, split=split), shared, read) for split in splits(benchmark)]


def _summary(benchmark: Benchmark, shared: int, read: Callable[[str], object]) -> SplitSummary:
    files(benchmark)
    repairs: list[str] = []
    users: set[str] = set()
    units: set[str] = set()
    known: dict[bool, set[int]] = {
        True: set(),
        False: set(),
    }  # hashes of ids, of documents with a date or not
    counts: Counter[str] = Counter()
    sizes: set[int] = set()
    for example in _checked(benchmark, _all(benchmark, repairs.append)):
        users.add(example.user_id)
        units |= {example.unit} - {""}
        sizes.add(len(example.profile))
        for document in example.profile:
            name, there = hash((document.user_id, document.id)), known[document.time is not None]
            if name not in there:
                read(document.text)
            there.add(name)
        counts.update(
            examples=1,
            targets=int(example.target is not None),
            relevant=int(bool(example.relevant)),
            unscored=int(not example.scored),
            empty_profiles=int(not example.profile),
        )
    if not sizes:
        raise UserError(f"{benchmark.root}: found no example in the split {benchmark.split}; take "
                        f"{benchmark.name} as released")  # fmt: skip
    return SplitSummary(
        split=benchmark.split,
        users=len(users),
        documents=len(known[True] | known[False]),
        fewest=min(sizes),
        most=max(sizes),
        undated=len(known[False]),
        units=len(units),
        passages=shared,
        repairs=tuple(repairs),
        **counts,
    )


def _checked(benchmark: Benchmark, examples: Iterator[Example]) -> Iterator[Example]:
    """The questions of a split. Raises UserError for what its task's metrics cannot score."""
    of, place = task(benchmark), f"{benchmark.root}, split {benchmark.split}"
    if benchmark.split != benchmark.training:
        yield from scorable(of, examples, place, answered=benchmark.name == "own")
        return
    for example in examples:
        check_target(of, example, place)
        yield example


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"


def _sample(benchmark: Benchmark, count: int) -> Iterator[Example]:
    users = iter(terminal.bar(_evaluated(benchmark), desc=f"users of {benchmark.split}"))
    chosen, examples = set(spread(users, count)), enumerate(_evaluated(benchmark))
    while chosen:
        position, example = next(examples)
        if position in chosen:
            chosen.remove(position)
            yield example


def _reader(benchmark: Benchmark) -> Reader:
    """The reader of what the root holds: a prepared dataset, or else the benchmark's official files."""
    return _released(benchmark) if prepared.find(benchmark) is None else prepared.READER


def _released(benchmark: Benchmark) -> Reader:
    """The reader of official files; UserError for an unknown benchmark, and a form that it has not."""
    name, form = benchmark.name, benchmark.form
    if name not in _READERS:
        near = difflib.get_close_matches(name.lower().replace("-", "_"), BENCHMARKS, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"wanted one of {', '.join(BENCHMARKS)}"
        raise UserError(f"benchmark.name: found the unknown benchmark {name!r}; {hint}")
    if form not in (forms := _READERS[name].forms):
        raise UserError(f"benchmark.form: found {form!r}, wanted {' or '.join(forms)} for {name}")
    return _READERS[name]

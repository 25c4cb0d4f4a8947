"""How several processes make one stage (`hosts`): each its part of the work.

The folder is that of process 0, on a disk that all see. Parts that are finished stay until the stage is
whole, so that a run whose processes were killed goes on from them.
"""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pbr_jax.base import processes
from pbr_jax.base.files import private_folder, write_text, written
from pbr_jax.base.types import Example
from pbr_jax.cache.artefacts import is_published, obtain_part
from pbr_jax.corpus.store import Store
from pbr_jax.corpus.vectors import VectorStore
from pbr_jax.graph import Together
from pbr_jax.stages.records import Records
from pbr_jax.stages.run import TALLY, USAGE, chunks, read_tally, total, write_tally

Make = Callable[..., None]

_REWARDS = "rewards.jsonl"
_OWN = {TALLY, USAGE, "seconds"}  # files of a stage's folder that each process has


# -- questions -----------------------------------------------------------------------------------------


class _Share:
    """The questions of this process among some (`stages.rankings.Questions`)."""

    def __init__(self, of: Any) -> None:
        self.of = of

    def read(self, store: Store) -> Iterator[Example]:
        examples = [*self.of.read(store)]
        return iter(examples[processes.share(len(examples))])

    def count(self, store: Store) -> int:
        return len(range(self.of.count(store))[processes.share(self.of.count(store))])


def by_questions(kind: type[Records], asked: Any) -> Together:
    """A stage of records of the questions `asked`, which are among its options, over its value `store`."""
    return partial(_by_questions, kind, asked)


def _by_questions(
    kind: type[Records],
    asked: Any,
    make: Make,
    folder: Path,
    options: tuple[Any, ...],
    values: Mapping[str, Any],
) -> None:
    count = processes.count()
    own = [_Share(asked) if option is asked else option for option in options]
    ids = {example.id for example in _Share(asked).read(values["store"])}
    narrowed = {n: value.of(ids) if isinstance(value, Records) else value for n, value in values.items()}
    parts = [folder / f"part-{number}-of-{count}" for number in range(count)]
    obtain_part(parts[processes.index()], lambda part: make(part, *own, **narrowed))
    processes.gather()
    if not processes.leads():
        return
    for part in parts:
        is_published(part)
    with written(folder / kind.file) as file:
        file.writelines((part / kind.file).read_text("utf-8") for part in parts)
    _add_up(folder, parts)
    for part in folder.glob("part-*"):  # also those of another number of processes
        shutil.rmtree(part)


def _add_up(folder: Path, parts: Sequence[Path]) -> None:
    """What processes counted, and what they asked of servers."""
    tallies = [read_tally(part) for part in parts if (part / TALLY).is_file()]
    if tallies:
        write_tally(total(tallies), folder)
    usage = [json.loads((part / USAGE).read_text()) for part in parts if (part / USAGE).is_file()]
    if usage:
        write_text(folder / USAGE, json.dumps(sum(map(Counter, usage), Counter())))


# -- vectors -------------------------------------------------------------------------------------------


def by_texts(make: Make, folder: Path, options: tuple[Any, ...], values: Mapping[str, Any]) -> None:
    """The stage that encodes a `store`'s documents by an `encoder`. Each process adds its vectors to those
    that all share."""
    vectors = VectorStore(values["encoder"])
    missing = vectors.missing([text for _, text in values["store"].texts()])
    processes.gather()  # nobody adds vectors before all know what is missing
    for chunk in chunks(missing[processes.share(len(missing))]):
        vectors.add(chunk, values["encoder"].encode(chunk, role="document"))
    processes.gather()
    if processes.leads():
        make(folder, *options, **values)


# -- training ------------------------------------------------------------------------------------------


def by_rows(make: Make, folder: Path, options: tuple[Any, ...], values: Mapping[str, Any]) -> None:
    """A stage that trains: each process has its rows of every batch (`train.sharding.own_rows`).

    Processes share the checkpoints. What else a process writes goes into a folder of its own, and that of
    process 0 is kept.
    """
    (folder / "checkpoints").mkdir(mode=0o700, exist_ok=True)
    own = folder if processes.leads() else folder / f"process-{processes.index()}"
    processes.gather()
    if not processes.leads():
        _link(folder, own)
    processes.gather()
    make(own, *options, **values)
    processes.gather()
    if processes.leads():
        others = sorted(folder.glob("process-*"))
        _add_up(folder, [folder, *others])
        for other in others:
            shutil.rmtree(other)


def _link(folder: Path, own: Path) -> None:
    """Shows a process what process 0 has left of an earlier attempt, in a folder that it can write to."""
    private_folder(own)
    for file in folder.iterdir():
        link = own / file.name
        if file.name == _REWARDS and not link.exists():
            shutil.copy(file, link)
        elif file.name not in {_REWARDS, *_OWN} and not file.name.startswith("process-"):
            link.unlink(missing_ok=True)
            link.symlink_to(file.absolute())

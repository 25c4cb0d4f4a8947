"""The information that a method has when it chooses its nodes: config, task and data."""

import contextlib
import dataclasses
import functools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

from pbr_jax.base import compilation, terminal
from pbr_jax.base.files import cache_folder, write_text
from pbr_jax.base.types import UserError
from pbr_jax.graph import Node
from pbr_jax.llm import usage
from pbr_jax.options import (
    LLM,
    Benchmark,
    Corpus,
    Encoder,
    Eval,
    Expand,
    Feedback,
    Generate,
    Neighbours,
    Prompt,
    Remarks,
    Retrieve,
    Select,
    Stream,
    TunedGenerator,
    UserEncoder,
)
from pbr_jax.pipeline import Tally
from pbr_jax.stages.measures import TALLY, USAGE
from pbr_jax.tasks import Task

CHUNK = 1024  # examples that pass through the slots together


@runtime_checkable
class Settings(Protocol):
    """The fields of a config (`pbr_jax.config.Config`)."""

    @property
    def seed(self) -> int: ...
    @property
    def collaboration(self) -> Literal["none", "signals", "text"]: ...
    @property
    def benchmark(self) -> Benchmark: ...
    @property
    def corpus(self) -> Corpus: ...
    @property
    def encoder(self) -> Encoder: ...
    @property
    def llm(self) -> LLM: ...
    @property
    def user_encoder(self) -> UserEncoder: ...
    @property
    def feedback(self) -> Feedback: ...
    @property
    def expand(self) -> Expand: ...
    @property
    def neighbours(self) -> Neighbours: ...
    @property
    def retrieve(self) -> Retrieve: ...
    @property
    def select(self) -> Select: ...
    @property
    def prompt(self) -> Prompt: ...
    @property
    def generate(self) -> Generate: ...
    @property
    def generator(self) -> TunedGenerator: ...
    @property
    def stream(self) -> Stream: ...
    @property
    def remarks(self) -> Remarks: ...
    @property
    def eval(self) -> Eval: ...
    def training_documents(self, source: str) -> dict[str, Any]: ...
    def similar_users(self, count: int) -> Neighbours: ...


class Run(NamedTuple):
    """A run before anything is computed. `data` is the node of the store (`pbr_jax.corpus.store.Store`).

    `nodes` caches the nodes that functions marked with `once` return. `training` is the node of a store with
    only the training split, if a method needs one. If `data` is a fold, `whole` is the node of the store that
    it is part of.
    """

    config: Settings
    task: Task
    data: Node
    nodes: dict[Any, Node]
    training: Node | None = None
    whole: Node | None = None

    @property
    def documents(self) -> Node:
        """The node of a store with the same documents, which all folds share; for parts without questions."""
        return self.data if self.whole is None else self.whole

    def changed(self, **methods: Any) -> "Run":
        """The same run with other methods in some slots."""
        return self._replace(config=dataclasses.replace(self.config, **methods))  # type: ignore[type-var]

    def learns_from_others(self, who: str) -> None:
        """Raises UserError if the config does not allow parameters to be trained on other users' data."""
        if self.config.collaboration == "none":
            raise UserError(
                f"{who} learns from other users' histories, and collaboration is none; say so with "
                "collaboration signals (their texts enter no prompt) or text, or take an untrained method"
            )


_N = TypeVar("_N", bound=Callable[..., Any])


def once(choose: _N) -> _N:
    """Decorator for functions of a `Run` that return a node: the same node for the same arguments.

    Without it, nodes that are needed several times would be created again for each use.
    """

    @functools.wraps(choose)
    def chosen(*arguments: Any, **named: Any) -> Any:
        run = next(one for one in arguments if isinstance(one, Run))
        told = tuple(one for one in arguments if one is not run)
        key = (choose, told, tuple(sorted(named.items(), key=lambda pair: pair[0])), run.config, run.data)
        if key not in run.nodes:
            run.nodes[key] = choose(*arguments, **named)
        return run.nodes[key]

    return chosen  # type: ignore[return-value]


def line(record: Mapping[str, Any]) -> str:
    """A record as one line of JSON."""
    return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"


def chunks(items: Iterable[Any], size: int = CHUNK) -> Iterator[list[Any]]:
    """Yields the items in lists of `size`."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def progress(items: Iterable[Any], what: str, total: int | None = None) -> Iterator[Any]:
    """Yields the items, and shows a progress bar if stderr is a terminal."""
    yield from terminal.bar(items, desc=what, total=total)


def total(tallies: Iterable[Tally]) -> Tally:
    """The sum of several tallies."""
    found = Tally()
    for tally in tallies:
        found.counts.update(tally.counts)
        for part, spent in tally.seconds.items():
            found.seconds[part] = found.seconds.get(part, 0.0) + spent
    return found


def write_tally(tally: Tally, folder: Path) -> None:
    """Writes the counts and times of slots next to their results."""
    write_text(folder / TALLY, json.dumps({"counts": tally.counts, "seconds": tally.seconds}))


def read_tally(folder: Path) -> Tally:
    """Reads the file of `write_tally`."""
    values = json.loads((folder / TALLY).read_text(encoding="utf-8"))
    return Tally(Counter(values["counts"]), values["seconds"])


@contextlib.contextmanager
def tallied(folder: Path) -> Iterator[Tally]:
    """A tally that continues that of an interrupted attempt. It is written even if this attempt fails."""
    tally = read_tally(folder) if (folder / TALLY).is_file() else Tally()
    try:
        yield tally
    finally:
        write_tally(tally, folder)


@contextlib.contextmanager
def metered(folder: Path) -> Iterator[None]:
    """Adds requests to servers inside the `with` block to the counts in the folder, over all attempts."""
    with usage.metered() as counts:
        try:
            yield
        finally:
            if counts:
                file = folder / USAGE
                earlier = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
                write_text(file, json.dumps(Counter(earlier) + counts))


@functools.lru_cache(maxsize=1)
def enable_compilation_cache() -> None:
    """Keeps compiled programs between runs, in the cache folder."""
    compilation.enable_compilation_cache(cache_folder() / "xla")

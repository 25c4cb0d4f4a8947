"""What a method may look at when it chooses its nodes: the config, the task, and the data."""

import contextlib
import dataclasses
import functools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

from pbr_jax import cores, terminal
from pbr_jax.files import cache_folder, write_text
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
from pbr_jax.parts.measures import TALLY, USAGE
from pbr_jax.pipeline import Tally
from pbr_jax.tasks import Task
from pbr_jax.types import UserError

CHUNK = 1024  # examples that pass through the slots together


@runtime_checkable
class Settings(Protocol):
    """What a config (`pbr_jax.config.Config`) has."""

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
    """One run before anything is computed. `data` is the node of the store (`pbr_jax.corpus.store.Store`).

    `nodes` are those that functions marked `once` have chosen. `training` is the node of a store of the
    training split alone, where something learns from it apart. `whole` is the node of the store that `data`
    is a fold of.
    """

    config: Settings
    task: Task
    data: Node
    nodes: dict[Any, Node]
    training: Node | None = None
    whole: Node | None = None

    @property
    def documents(self) -> Node:
        """The node of a store of the same documents, for what reads no questions: all folds share it."""
        return self.data if self.whole is None else self.whole

    def changed(self, **methods: Any) -> "Run":
        """The same with other methods in some slots."""
        return self._replace(config=dataclasses.replace(self.config, **methods))  # type: ignore[type-var]

    def learns_from_others(self, who: str) -> None:
        """Raises UserError unless the config lets other users' data shape parameters."""
        if self.config.collaboration == "none":
            raise UserError(
                f"{who} learns from other users' histories, and collaboration is none; say so with "
                "collaboration signals (their texts enter no prompt) or text, or take an untrained method"
            )


_N = TypeVar("_N", bound=Callable[..., Any])


def once(choose: _N) -> _N:
    """Marks a function of a run (its first `Run`) that chooses a node: the same node for the same arguments.

    So a chain in which every link is needed twice does not double with each of them.
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
    """One line of JSON."""
    return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"


def chunks(items: Iterable[Any], size: int = CHUNK) -> Iterator[list[Any]]:
    """The items, `size` at a time."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def progress(items: Iterable[Any], what: str, total: int | None = None) -> Iterator[Any]:
    """The items, with a progress bar on a terminal and silence elsewhere."""
    yield from terminal.bar(items, desc=what, total=total)


def total(tallies: Iterable[Tally]) -> Tally:
    """Several tallies added up."""
    found = Tally()
    for tally in tallies:
        found.counts.update(tally.counts)
        for part, spent in tally.seconds.items():
            found.seconds[part] = found.seconds.get(part, 0.0) + spent
    return found


def write_tally(tally: Tally, folder: Path) -> None:
    """Keeps what slots counted and timed beside what they made."""
    write_text(folder / TALLY, json.dumps({"counts": tally.counts, "seconds": tally.seconds}))


def read_tally(folder: Path) -> Tally:
    """What `write_tally` kept."""
    values = json.loads((folder / TALLY).read_text(encoding="utf-8"))
    return Tally(Counter(values["counts"]), values["seconds"])


@contextlib.contextmanager
def tallied(folder: Path) -> Iterator[Tally]:
    """A tally that goes on from that of an interrupted attempt, and is kept also where this one is."""
    tally = read_tally(folder) if (folder / TALLY).is_file() else Tally()
    try:
        yield tally
    finally:
        write_tally(tally, folder)


@contextlib.contextmanager
def metered(folder: Path) -> Iterator[None]:
    """What servers are asked inside is added up in the folder, over interrupted attempts too."""
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
    """Compiled programs are kept between runs, beside the artefacts."""
    cores.enable_compilation_cache(cache_folder() / "xla")

"""The information that a method has when it chooses its nodes: config, task and data."""

import contextlib
import dataclasses
import functools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pbr_jax.base import compilation
from pbr_jax.base.files import cache_folder, write_text
from pbr_jax.base.types import UserError
from pbr_jax.graph import Node
from pbr_jax.graph.lists import stages
from pbr_jax.llm import usage
from pbr_jax.pipeline import Tally
from pbr_jax.tasks import Task

MEASURES, TALLY, USAGE = "measures.json", "tally.json", "usage.json"
METRICS = ("silhouette", "silhouette_without_noise")
"""Measures that stand among a run's metrics too. They have no interval: they are of no single question."""
CHUNK = 1024  # examples that pass through the slots together


class Run(NamedTuple):
    """A run before anything is computed: its config (`pbr_jax.config.Config`) and the node of the store
    (`pbr_jax.corpus.store.Store`).

    `nodes` caches the nodes that functions marked with `once` return. `training` is the node of a store with
    only the training split, if a method needs one. If `data` is a fold, `whole` is the node of the store that
    it is part of.
    """

    config: Any
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
        return self._replace(config=dataclasses.replace(self.config, **methods))

    def learns_from_others(self, who: str) -> None:
        """Raises UserError if the config does not allow parameters to be trained on other users' data."""
        if self.config.collaboration == "none":
            raise UserError(
                f"{who} learns from other users' histories, and collaboration is none; say so with "
                "collaboration signals (their texts enter no prompt) or text, or take an untrained method"
            )


_N = TypeVar("_N", bound=Callable[..., Any])
_BEGUN: Any = object()  # stands for a node that is being chosen


def once(choose: _N) -> _N:
    """Decorator for functions of a `Run` that return a node: the same node for the same arguments.

    Without it, nodes that are needed several times would be created again for each use.
    """

    @functools.wraps(choose)
    def chosen(*arguments: Any, **named: Any) -> Any:
        run = next(one for one in arguments if isinstance(one, Run))
        told = tuple(one for one in arguments if one is not run)
        key = (choose, told, tuple(sorted(named.items(), key=lambda pair: pair[0])), run.config, run.data)
        if key in run.nodes and run.nodes[key] is _BEGUN:
            raise UserError(
                f"{choose.__name__} needs itself, as where a method passes itself as select; pass another "
                "method, such as TopK()"
            )
        if key not in run.nodes:
            run.nodes[key] = _BEGUN
            try:
                run.nodes[key] = choose(*arguments, **named)
            finally:
                if run.nodes[key] is _BEGUN:
                    del run.nodes[key]
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


def keep_measures(folder: Path, values: Mapping[str, int | float]) -> None:
    """Keeps numbers by their names in a stage's folder."""
    write_text(folder / MEASURES, json.dumps(dict(values)))


def by_stage(last: Node, name: str) -> dict[str, Any]:
    """The content of the JSON file of this name of every stage under a node that has one, by labels."""
    files = {label: stage.folder / name for label, stage in stages(last).items()}
    return {
        label: json.loads(file.read_text(encoding="utf-8")) for label, file in files.items() if file.is_file()
    }


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

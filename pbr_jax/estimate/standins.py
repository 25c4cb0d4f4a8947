"""What stands in a rehearsal for what only models could tell: documents drawn by lot, and plain values."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pbr_jax.base.types import Example
from pbr_jax.corpus.store import Store
from pbr_jax.graph import Node, Slot, Stage, Value
from pbr_jax.methods import neighbours, retrieve, select
from pbr_jax.methods.expand import Nothing
from pbr_jax.options import LLM, Encoder
from pbr_jax.pipeline import Pipeline, Ranking
from pbr_jax.stages.answers import Answers
from pbr_jax.stages.rankings import Rankings
from pbr_jax.stages.run import Run, chunks
from pbr_jax.system import System

MODELS = ("weights", "reranker", "token encoder")  # values that are models, beside those of the options


def is_model(node: Node) -> bool:
    """Whether a node's value is a model."""
    options = node.options if isinstance(node, Value) else ()
    return node.name in MODELS or any(isinstance(one, LLM | Encoder) for one in options)


def needs_model(*nodes: Node) -> bool:
    """Whether the values of these nodes take a model: one that computes in memory, or one that has yet to
    make a stage."""
    waiting, seen = [*nodes], set[int]()
    while waiting:
        node = waiting.pop()
        if id(node) in seen or (isinstance(node, Stage) and node.seconds is not None):
            continue
        if is_model(node):
            return True
        seen.add(id(node))
        waiting += node.needs.values()
    return False


def in_memory(stage: Stage) -> list[Node]:
    """The nodes without which a stage cannot compute, and which are no stages."""
    found: dict[int, Node] = {}
    waiting = [*stage.needs.values()]
    while waiting:
        node = waiting.pop()
        if id(node) not in found and not isinstance(node, Stage):
            found[id(node)] = node
            waiting += node.needs.values()
    return [*found.values()]


def language_models(stage: Stage) -> dict[str, tuple[Value, LLM]]:
    """The language models that a stage itself asks, by their keys, with their options."""
    return {
        node.key: (node, one)
        for node in in_memory(stage)
        if isinstance(node, Value) and node.name != "judge"
        for one in node.options
        if isinstance(one, LLM)
    }


def encoders(stage: Stage) -> list[Encoder]:
    """The options of the text encoders that a stage itself asks."""
    values = (node for node in in_memory(stage) if isinstance(node, Value))
    return [one for node in values for one in node.options if isinstance(one, Encoder)]


class Drawn(Rankings):
    """Rankings of a stage that a model has yet to make: as many documents as it would give, by lot.

    `chosen`: whether as many as are selected, or all that are retrieved.
    """

    def __init__(self, run: Run, stage: Stage, *, chosen: bool = True) -> None:
        super().__init__(Path())
        methods = {name: stage.needs[name].method for name in Pipeline._fields}  # type: ignore[attr-defined]
        m = methods["neighbours"].searched
        drawn: dict[str, Any] = {
            "expand": Nothing(),
            "neighbours": neighbours.Self() if m == 1 else neighbours.Random(m=m),
            "retrieve": retrieve.Random(k=methods["retrieve"].k),
            "select": select.TopK(k=methods["select"].k if chosen else None),
        }
        run = run.changed(**drawn)._replace(data=stage.needs["store"], nodes={})
        slots = {name: Slot(method, run).value for name, method in drawn.items()}
        self._system = System({"store": stage.needs["store"].value, **slots}, collaboration="text")

    def read(self, store: Store, examples: Iterable[Example]) -> Iterator[Ranking]:
        for some in chunks(examples):
            yield from self._system.rank(some)


class AsWanted(Answers):
    """Answers that have yet to be made: each is the target."""

    def __init__(self) -> None:
        super().__init__(Path())

    def records(self, examples: Iterable[Example]) -> Iterator[dict[str, Any]]:
        for example in examples:
            yield {"text": example.target or ""}


def values(run: Run, stage: Stage, needs: Mapping[str, Node]) -> tuple[dict[str, Any], bool]:
    """The values of a stage's needs, and whether some are stand-ins.

    Raises LookupError for what nothing stands in for.
    """
    found, drawn = dict[str, Any](), False
    for name, node in needs.items():
        if not needs_model(node):
            found[name] = node.value
            continue
        drawn = True
        if isinstance(node, Stage) and node.name == "rank":
            found[name] = Drawn(run, node)
        elif isinstance(node, Stage) and node.name in ("generate", "folds"):
            found[name] = AsWanted()
        else:
            raise LookupError(node.label if isinstance(node, Stage) else node.name)
    return found, drawn

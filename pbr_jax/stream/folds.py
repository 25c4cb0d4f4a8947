"""Folds of units (`stream.protocol cross_units`): each is answered by what was trained on the others.

A unit is a conversation, an article, or else a user (`arrivals.cluster`). Each fold is a run of its own over
a view of the store (`parts.folds`), so every method that is trained on a training split is trained here on
the other folds' questions of the evaluated split. What they rank, answer and score is joined by question.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pbr_jax.base import terminal
from pbr_jax.base.types import UserError
from pbr_jax.config import Config
from pbr_jax.corpus.store import Store
from pbr_jax.graph import Node, Stage, builds_nodes, walk
from pbr_jax.options import Generate, Learner
from pbr_jax.pipeline import Examples, Tally
from pbr_jax.stages import programs
from pbr_jax.stages.folds import Fold, every_fold, fold
from pbr_jax.stages.records import Records
from pbr_jax.stages.run import Run, total, write_tally
from pbr_jax.stream.arrival import arrivals
from pbr_jax.stream.outputs import Outputs, batch
from pbr_jax.stream.stage import KINDS

_STORE = "store of "
_ALL = "all folds"


def is_folded(config: Config) -> bool:
    """Whether something is trained fold by fold. Raises UserError for what folds of units have no use for."""
    if config.stream.protocol != "cross_units":
        return False
    learner = next((method for method in config.methods if isinstance(method, Learner)), None)
    if learner is not None:
        raise UserError(
            f"{learner.section}.method {learner.method} learns from a stream, and stream.protocol is "
            "cross_units; set stream.protocol to cross_users"
        )
    if config.limit_training is not None:
        raise UserError(
            f"limit_training is {config.limit_training}, and stream.protocol cross_units takes no training "
            "split; leave limit_training out, and set feedback.limit or generator.limit to learn from less"
        )
    return any(part.learns() != "unused" for part in [*config.methods, config.generator])


@builds_nodes
def taught_by_all(run: Run) -> Run:
    """The run that learns from the questions of all folds, for those that are in none."""
    return run._replace(data=every_fold(run), whole=run.data)


class ByFold(Node):
    """A slot by which each fold's questions find what its own run finds, and others what all folds taught.

    Args:
      name: of the slot.
      joined: the stage of all folds' rankings.
      everyone: the slot that all folds' questions taught.

    A fold's slot is opened, and that of all folds is trained, when a question first needs it.
    """

    def __init__(self, name: str, joined: Stage, everyone: Node) -> None:
        views = {fold: need for fold, need in joined.needs.items() if fold.startswith(_STORE)}
        own = {fold.removeprefix(_STORE): joined.needs[fold.removeprefix(_STORE)] for fold in views}
        slots = {fold: ranked.needs[name] for fold, ranked in own.items()}
        super().__init__(name, {_ALL: everyone, **slots, **views}, None)

    def _options_of(self) -> Any:
        return []

    def _code(self) -> list[Any]:
        return [_by_fold]

    def _missing(self) -> Iterable[Node]:
        return ()

    def _compute(self) -> Callable[[Tally], Callable[..., list[Any]]]:
        return partial(_by_fold, self.needs)


def _by_fold(nodes: Mapping[str, Node], tally: Tally) -> Callable[..., list[Any]]:
    """The callable of a slot, whose arguments have one value for each example."""
    views = {name: node.value for name, node in nodes.items() if name.startswith(_STORE)}
    owners = {id: name.removeprefix(_STORE) for name, view in views.items() for id in view.ids}
    bound: dict[str, Callable[..., list[Any]]] = {}

    def slot(examples: Examples, *columns: Sequence[Any]) -> list[Any]:
        places: dict[str, list[int]] = {}
        for place, example in enumerate(examples):
            places.setdefault(owners.get(example.id, _ALL), []).append(place)
        found: dict[int, Any] = {}
        for name, some in places.items():
            if name not in bound:
                bound[name] = nodes[name].value(tally)
            values = bound[name](*([column[place] for place in some] for column in (examples, *columns)))
            found |= zip(some, values, strict=True)
        return [found[place] for place in range(len(examples))]

    return slot


@builds_nodes
def folded(run: Run, config: Config, method: Generate | None, scored: bool) -> Outputs:
    """What the folds' runs give, joined. `run` is over the store of all folds, which is read now.

    Raises UserError where there are too few units.
    """
    examples = [*run.data.value.examples()]
    found = arrivals(config.stream, config.seed, examples)
    assert found is not None
    joined: dict[str, dict[str, Node]] = {}
    for number, places in enumerate(found.blocks):
        view = fold(run.data, [examples[place].id for place in places])
        outputs = batch(run._replace(data=view, whole=run.data), config, method, scored)
        for kind, stage in outputs.nodes().items():
            needs = joined.setdefault(kind, {"store": run.data})
            needs |= {f"fold {number}": stage, f"{_STORE}fold {number}": view}
    return Outputs(
        **{
            kind: Stage("folds", (kind,), needs, _join, KINDS[kind], label=f"{kind}, all folds")
            for kind, needs in joined.items()
        }
    )


def make(joined: Sequence[Node]) -> None:
    """Makes all folds, one after the other, and keeps no fold's models in memory."""
    names = [name for name in joined[0].needs if name.startswith("fold ")]
    parts = {name: [stage.needs[name] for stage in joined] for name in names}
    below = {name: walk(*stages) for name, stages in parts.items()}
    shared = Counter(id(node) for nodes in below.values() for node in nodes)
    for name in terminal.bar(names, desc="folds"):
        for stage in parts[name]:
            if isinstance(stage, Stage) and not stage.is_made:
                _ = stage.artefact
        for node in below[name]:
            if shared[id(node)] == 1:
                vars(node).pop("value", None)
        programs.release()


def note(joined: Node) -> str:
    """What each fold was trained on, in words."""
    views = [need.value for name, need in joined.needs.items() if name.startswith(_STORE)]
    counts = [view.summary.training for view in views]
    return (
        f"stream.protocol cross_units: {len(views)} folds of whole units; what answers a fold was trained on "
        f"the other folds' questions of the same split, {min(counts)} to {max(counts)} of them (fewer where "
        "feedback.limit or generator.limit says so)"
    )


def _join(folder: Path, kind: str, *, store: Store, **parts: Any) -> None:
    views: dict[str, Fold] = {name: part for name, part in parts.items() if name.startswith(_STORE)}
    records: dict[str, Records] = {name: parts[name.removeprefix(_STORE)] for name in views}
    own = {example.id: name for name, view in views.items() for example in view.examples()}
    # Each fold's questions stand in the order of the store.
    left = {name: records[name].records(view.examples()) for name, view in views.items()}
    KINDS[kind].keep(folder, ((e.id, next(left[own[e.id]])) for e in store.examples()))
    for rest in left.values():
        assert next(rest, None) is None
    write_tally(total(of.tally for of in records.values()), folder)

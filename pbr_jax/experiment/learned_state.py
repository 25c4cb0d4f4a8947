"""What methods have learned: exports it, and measures backward transfer to earlier questions."""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pbr_jax.base.files import write_text
from pbr_jax.base.types import Example, UserError
from pbr_jax.cache.artefacts import is_whole
from pbr_jax.config import to_dict
from pbr_jax.eval.evaluate import evaluate
from pbr_jax.eval.metrics import plain_mean
from pbr_jax.eval.runs import read_run
from pbr_jax.eval.significance import Column, Difference, estimates
from pbr_jax.experiment.evaluation import ranked_ids, told_of
from pbr_jax.experiment.opening import plan_of
from pbr_jax.experiment.plan import Plan
from pbr_jax.graph import Node, Stage, Value
from pbr_jax.graph.lists import unified
from pbr_jax.options import Learner
from pbr_jax.pipeline import Pipeline, Ranking
from pbr_jax.stages import generator
from pbr_jax.stages.trained import REPORT
from pbr_jax.stream.stage import part
from pbr_jax.system import System

EXPORT = "export.json"


def write_state(folder: Path, run: str | Path, slot: str, blocks: int | None = None) -> None:
    """Writes to a folder what the method in a slot has learned.

    Of a method that learns from a stream it is the state after `blocks` blocks; None: after all questions. Of
    any other training it is a folder for each part, such as `retriever`, with its parameters and
    training.json. `slot` may be "generator".

    export.json has `slot`, `method`, its `options`, the fingerprint of the `encoder` (None: it has no
    encoder), `benchmark` and `split` of the run, the `key` of the stream or of each part, and `blocks`.

    A part that has left the cache is trained now, and so is that of a run of folds.

    Raises UserError if the slot's method does not learn, or if the state after these blocks does not exist
    or was not kept.
    """
    plan = plan_of(Path(run))
    method = getattr(plan.config, slot, None)
    if blocks is not None and not isinstance(method, Learner):
        raise UserError(f"{run}: {slot} is learned from all questions at once; leave --blocks out")
    if isinstance(method, Learner):
        key: Any = _stage(plan, run).key
        parts = {".": (_last(plan) if blocks is None else _after(plan, blocks)) / slot}
    else:
        trained = _trained(plan, slot)
        key = {stage.label: stage.key for stage in trained}
        parts = {stage.label: stage.folder for stage in trained}
    if not parts:
        raise UserError(
            f"{run}: nothing in the slot {slot!r} was trained, so it has no state; take another --slot, such "
            "as retrieve, select, neighbours or generator, of a run that trained it"
        )
    for name, source in parts.items():
        left_out = shutil.ignore_patterns("checkpoints", "stage.json", "rewards.jsonl")
        shutil.copytree(source, folder / name, dirs_exist_ok=True, ignore=left_out)
    encoder = getattr(method, "encoder", lambda run: None)(plan.run)
    options = to_dict(plan.config)[slot]
    told = {
        "slot": slot,
        "method": options["method"],
        "options": options,
        "encoder": None if encoder is None else unified(encoder).value.fingerprint,
        "benchmark": plan.config.benchmark.name,
        "split": plan.config.benchmark.split,
        "key": key,
        "blocks": blocks,
    }
    write_text(folder / EXPORT, json.dumps(told, indent=2) + "\n")


def _trained(plan: Plan, slot: str) -> list[Stage]:
    """The trainings that a slot reads, without those that these learned from."""
    needs: Mapping[str, Node] = {}
    if slot in Pipeline._fields:
        needs = getattr(plan.config, slot).needs(plan.run)
    elif slot == "generator" and plan.config.generator.is_tuned:
        needs = {"weights": generator.weights(plan.run)}
    last = unified(Value("learned", (), needs, dict))
    _ = last.value
    found: dict[str, Stage] = {}
    waiting: list[Node] = [last]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Stage) and (node.folder / REPORT).is_file():
            found[node.key] = node
        else:
            waiting += node.needs.values()
    return [*found.values()]


class Transfer(NamedTuple):
    """Values of one metric over the questions of all blocks except the last, under three states.

    `arrival`: the state before the question's block, as in the run. `learned`: the state right after that
    block. `last`: the final state. `backward` is `last` minus `learned`. It is negative if later blocks made
    the method forget.
    """

    arrival: float
    learned: float
    last: float
    backward: Difference


def backward_transfer(run: str | Path) -> dict[str, Transfer]:
    """Measures how well a stream's final state ranks for questions of earlier blocks, by ranking metric.

    Backward transfer is defined in Lopez-Paz, Ranzato, "Gradient episodic memory for continual learning",
    NeurIPS 2017. Confidence intervals are computed over users or units. Raises UserError if the run is not a
    prequential stream of several blocks with a learner, or did not keep its states (`stream.keep`).
    """
    plan = plan_of(Path(run))
    _stage(plan, run)
    found = plan.arrivals
    if found is None or found.folds or len(found.blocks) < 2:
        raise UserError(
            f"{run} is no prequential stream of two blocks or more, so nothing comes after a block"
        )
    everything = list(plan.data.value.examples())
    blocks = [[everything[place] for place in block] for block in found.blocks[:-1]]
    after = [_after(plan, number + 1) for number in range(len(blocks))]
    last = _last(plan)
    examples = [example for block in blocks for example in block if example.scored]
    ranked = [
        [one for block, state in zip(blocks, states, strict=True) for one in _ranked(plan, state, block)]
        for states in (after, [last] * len(blocks))
    ]
    learned, at_last = (_metrics(plan, examples, rankings) for rankings in ranked)
    records = read_run(Path(run)).records or {}
    names = [name for name in learned[0] if all(name in records[e.id].metrics for e in examples)]
    if not names:
        raise UserError(f"{run}: it is not known which documents are relevant, so rankings have no metrics")
    columns = {name: [np.array([[one[name]] for one in of]) for of in (at_last, learned)] for name in names}
    sure = estimates(
        [Column(plain_mean, [first], [second]) for first, second in columns.values()],
        [records[e.id].cluster for e in examples],
        resamples=plan.config.eval.resamples,
        confidence=plan.config.eval.confidence,
    )
    return {
        name: Transfer(
            float(np.mean([records[e.id].metrics[name] for e in examples])),
            float(columns[name][1].mean()),
            float(columns[name][0].mean()),
            difference,
        )
        for name, difference in zip(names, sure, strict=True)
    }


def _after(plan: Plan, blocks: int) -> Path:
    """The folder of the state after so many blocks."""
    assert plan.streamed is not None
    count = 0 if plan.arrivals is None or plan.arrivals.folds else len(plan.arrivals.blocks)
    if not 0 < blocks < count:
        raise UserError(
            f"there is no state after {blocks} blocks: the stream has {count} blocks one after another, and "
            "after the last one --blocks is left out"
        )
    state = part(plan.streamed.value, "states", blocks)
    if not is_whole(state):
        raise UserError(
            f"the state after {blocks} of {count} blocks was not kept; run without stream.keep, with "
            "PBR_JAX_CACHE set to a new folder"
        )
    return state


def _last(plan: Plan) -> Path:
    """The folder of what all questions have taught."""
    slots = (node for name, node in plan.last_slots.items() if name != "store")
    return next(slots).value.values["state"].parent


def _stage(plan: Plan, run: str | Path) -> Stage:
    if plan.streamed is None:
        raise UserError(f"{run}: none of its methods learns from a stream, so it has no state")
    return plan.streamed


def _ranked(plan: Plan, state: Path, examples: Sequence[Example]) -> list[Ranking]:
    """The documents of the questions that are scored, by the run's methods with this state."""
    assert plan.streamed is not None
    slots: dict[str, Any] = {name: plan.streamed.needs[name].value for name in Pipeline._fields}
    store = plan.data.value
    for name, slot in slots.items():
        if isinstance(slot.method, Learner):
            slots[name] = replace(slot, values={**slot.values, "state": state / name})
            store = slot.method.corpus(store, state / name)
    system = System({"store": store, **slots}, collaboration=plan.config.collaboration)
    return system.rank([example for example in examples if example.scored])


def _metrics(plan: Plan, examples: Sequence[Example], rankings: Sequence[Ranking]) -> list[dict[str, float]]:
    return evaluate(
        plan.task,
        ids=[example.id for example in examples],
        users=[example.user_id for example in examples],
        rankings=[
            ranked_ids(map(told_of, ranking), example.user_id)
            for example, ranking in zip(examples, rankings, strict=True)
        ],
        relevant=[example.relevant for example in examples],
        resamples=1,
    ).per_example

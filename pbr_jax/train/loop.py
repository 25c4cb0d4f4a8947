"""The one training loop: steps, evaluations, checkpoints, and going on where a killed run was."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from pbr_jax.base import terminal
from pbr_jax.base.types import Params, UserError
from pbr_jax.models.params_file import load_params
from pbr_jax.models.rules import flatten
from pbr_jax.models.sharding import Rules
from pbr_jax.options import Training
from pbr_jax.train import sharding, steps
from pbr_jax.train.batches import Batches, Rows
from pbr_jax.train.checkpoints import Checkpoints
from pbr_jax.train.metrics import Metrics
from pbr_jax.train.optimizers import optimizer
from pbr_jax.train.selection import diagnostics

Act = Callable[[Params, sharding.Batch, jax.Array], tuple[sharding.Batch, Mapping[str, float]]]
"""(params, batch, key) -> further arrays of the batch, and their numbers for metrics.jsonl."""

Evaluate = Callable[[Params], float]
"""How good parameters are on the selection examples: the higher the better."""


class TrainingTask(NamedTuple):
    """What is trained. The first evaluation is of the parameters before the first step.

    `batch(rows)` makes the arrays [b ...] of rows, of few shapes; the examples' numbers are added as
    `row`. `heads` name parts, at the top of the parameters, that start from random weights: they have a
    learning rate of their own, and how far they move is reported. `frozen` are further parameters for the
    loss, on the devices of `mesh`, which has an axis "data"; None: all devices that the config says.
    `lengths`: of each example, so that alike ones share a batch. `groups`: the batches, as arrays of
    examples, for losses over pairs in a batch, which is then computed in one part. `act` makes what
    depends on the present parameters, such as actions of a policy and their rewards, from a copy of them,
    the batch and the loss's key. `updates`: how often in a row a batch is learned from. `rules`: of the
    parameters (`models.sharding`); with them, parameters, optimizer state and gradients are divided over all
    devices of the mesh; None: every device has all of them.
    """

    params: Callable[[], Params]
    loss: steps.Loss
    examples: int
    batch: Callable[[Rows], sharding.Batch]
    evaluate: Evaluate | None = None
    heads: tuple[str, ...] = ()
    frozen: Params | None = None
    mesh: Mesh | None = None
    lengths: np.ndarray | None = None
    groups: Sequence[np.ndarray] | None = None
    act: Act | None = None
    updates: int = 1
    rules: Rules | None = None


class Fitted(NamedTuple):
    """The best parameters (without an evaluation: the last), their step, and the lines of metrics.jsonl.

    `moved`: of each head `|parameters - start| / |start|`. `report`: further numbers, as JSON.
    `notes`: what its user should know.
    """

    params: Params
    step: int
    metrics: list[dict[str, Any]]
    moved: dict[str, float]
    report: Mapping[str, Any] = MappingProxyType({})
    notes: tuple[str, ...] = ()


@dataclasses.dataclass
class _Progress:
    """What the loop knows beside the state; a checkpoint holds it."""

    step: int = 0
    best: float | None = None  # value of the selection
    worse: int = 0  # evaluations since then


def started(params: Callable[[], Params], config: Training) -> Callable[[], Params]:
    """The function that gives the parameters a training starts from: `params`, or it reads `config.start`.

    It raises UserError if the file cannot be read, or if it holds other parameters than those of `params`.
    """

    def read() -> Params:
        loaded = load_params(Path(config.start))
        found, wanted = ({n: np.shape(x) for n, x in flatten(own).items()} for own in (loaded, params()))
        for name in sorted({*found, *wanted}):
            if found.get(name) != wanted.get(name):
                raise UserError(
                    f"{config.start}: {name} has the shape {found.get(name)}, want {wanted.get(name)}; take "
                    "a file of the same method with the same sizes and encoder"
                )
        return loaded

    return read if config.start else params


def fit(task: TrainingTask, config: Training, folder: Path, *, seed: int) -> Fitted:
    """Trains and returns the best parameters.

    `folder` keeps checkpoints and metrics.jsonl. A killed run continues from its latest checkpoint and ends
    with the same parameters, bit for bit on the same devices. Raises UserError for a batch size that does not
    divide, nothing to train on, and losses, gradients or selection values that are not finite.
    """
    if not task.examples:
        raise UserError("there is no example to train on; want at least one")
    groups = None if task.groups is None else _groups(task.groups, config)
    mesh = task.mesh or sharding.data_mesh(config.devices)
    division = steps.division(config.batch_size, config.accumulate, mesh, few=bool(task.frozen))
    lengths = None if task.lengths is None else tuple(task.lengths.tolist())
    batches = Batches(task.examples, config.batch_size, seed, lengths, groups)
    total = batches.steps * config.epochs
    rule = optimizer(config.optimizer, total * task.updates, task.heads)
    start = started(task.params, config)()
    shapes, place, layout = steps.shapes(start, rule), sharding.replicated(mesh), None
    if task.rules is not None and mesh.size > 1:
        place = layout = sharding.fully_divided(shapes, task.rules, mesh)
    target, dtype = steps.laid_out(shapes, place), jnp.dtype(config.dtype)
    step = steps.compiled(task.loss, rule, mesh, division, dtype=dtype, updates=task.updates, layout=layout)
    evaluate_every = config.evaluate_every or batches.steps
    save_every = config.checkpoint_every or evaluate_every
    patience = math.inf if config.patience is None else config.patience
    key, own = jax.random.key(seed), sharding.own_rows(config.batch_size)
    heads = {name: jax.tree.map(np.array, start[name]) for name in task.heads}

    with Checkpoints(folder / "checkpoints") as checkpoints, Metrics(folder) as metrics:
        if checkpoints.latest is not None:
            now, saved = checkpoints.restore(checkpoints.latest, target)
            progress = _Progress(**saved)
            metrics.start(progress.step)
        else:
            now, progress = steps.create(start, rule, place), _Progress()
            metrics.start(-1)
            _evaluate(task, now, progress, metrics, checkpoints, heads)
        del start  # a device may have no room for it beside the state
        with terminal.bar(desc="steps", initial=progress.step, total=total) as bar:
            while progress.step < total and progress.worse < patience:
                rows = batches.rows(progress.step)
                rows = Rows(rows.indices[own], rows.where[own], rows.step)
                made, measured = _made(task, now, rows, key)
                batch, losses = sharding.put(made, mesh), {}
                for _ in range(task.updates):
                    now, losses = step(now, batch, key, task.frozen)
                progress.step += 1
                metrics.add(progress.step, {**losses, **measured})
                bar.update()
                if progress.step % evaluate_every == 0 or progress.step == total:
                    _evaluate(task, now, progress, metrics, checkpoints, heads)
                elif progress.step % save_every == 0:
                    metrics.flush()
                    checkpoints.save(progress.step, now, dataclasses.asdict(progress), None)
        if (best := checkpoints.best) is not None and best != progress.step:
            del now
            now, _ = checkpoints.restore(best, target)
        return Fitted(
            now.params, int(now.step) // task.updates, metrics.lines, diagnostics(heads, now.params)
        )


def _groups(groups: Sequence[np.ndarray], config: Training) -> tuple[np.ndarray, ...]:
    """Given batches. Raises UserError for a size that does not fit, and where each would be cut in parts."""
    if config.accumulate != 1:
        raise UserError(
            f"accumulate is {config.accumulate or 'none'}, and the loss compares the questions of a batch: "
            "set accumulate to 1, or lower batch_size"
        )
    for group in groups:
        if not 1 <= len(group) <= config.batch_size:
            raise UserError(f"a batch has {len(group)} examples, want from 1 to {config.batch_size}")
    return tuple(groups)


def _made(
    task: TrainingTask, now: steps.TrainState, rows: Rows, key: jax.Array
) -> tuple[sharding.Batch, Mapping[str, float]]:
    """The arrays of this process's rows of a batch, and numbers of them for metrics.jsonl."""
    batch = task.batch(rows) | {"row": rows.indices.astype(np.int32)}
    if task.act is None:
        return batch, {}
    copies = jax.tree.map(lambda x: x.addressable_data(0), now.params)
    more, measured = task.act(copies, batch, jax.random.fold_in(key, rows.step))
    return batch | more, measured


def _evaluate(
    task: TrainingTask,
    now: steps.TrainState,
    progress: _Progress,
    metrics: Metrics,
    checkpoints: Checkpoints,
    heads: Params,
) -> None:
    """An evaluation, and a checkpoint with its value. Without an evaluation the latest is the best."""
    metrics.flush()
    value = float(progress.step) if task.evaluate is None else task.evaluate(now.params)
    if not math.isfinite(value):
        raise UserError(
            f"the selection value of step {progress.step} is {value}, want a finite number; lower the "
            "learning rate, or look at the feedback's values"
        )
    measured = {f"moved_{name}": share for name, share in diagnostics(heads, now.params).items()}
    if task.evaluate is not None:
        measured["selection"] = value
    if measured:
        metrics.note(progress.step, measured)
    better = progress.best is None or value > progress.best
    progress.worse = 0 if better else progress.worse + 1
    progress.best = value if better else progress.best
    # Of equal values the first is the best: later ones are saved as if they had none.
    checkpoints.save(progress.step, now, dataclasses.asdict(progress), value if better else None)

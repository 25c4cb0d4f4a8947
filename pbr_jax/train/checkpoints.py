"""Checkpoints of a training: the latest, to go on from, and the best, to use."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, BestN, LatestN

from pbr_jax.base import interrupts
from pbr_jax.train.steps import TrainState

_METRIC = "selection"
_LOWEST = -1.7e308


class Checkpoints:
    """The checkpoints of a training in a folder. They are written in the background.

    A checkpoint that was unfinished when the process ended is ignored. `progress` is JSON that the training
    loop keeps beside the state.
    """

    def __init__(self, folder: Path):
        policy = AnyPreservationPolicy([LatestN(1), BestN(get_metric_fn=lambda m: m[_METRIC], n=1)])
        self._manager = ocp.CheckpointManager(
            folder.absolute(),
            options=ocp.CheckpointManagerOptions(
                preservation_policy=policy,
                best_fn=lambda metrics: metrics[_METRIC],
                best_mode="max",
                cleanup_tmp_directories=True,
            ),
        )

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        self._manager.wait_until_finished()
        self._manager.close()

    @property
    def latest(self) -> int | None:
        """The step of the latest checkpoint, None where there is none."""
        return self._manager.latest_step()

    @property
    def best(self) -> int | None:
        """The step whose value was the highest."""
        self._manager.wait_until_finished()
        return self._manager.best_step()

    def save(self, step: int, state: TrainState, progress: Mapping[str, Any], value: float | None) -> None:
        """Copies the state and returns. `value`: the higher, the better; None is never the best."""
        items = ocp.args.Composite(
            state=ocp.args.StandardSave(state),  # pyright: ignore[reportCallIssue]
            progress=ocp.args.JsonSave(dict(progress)),  # pyright: ignore[reportCallIssue]
        )
        with interrupts.deferred():
            self._manager.save(step, args=items, metrics={_METRIC: _LOWEST if value is None else value})

    def restore(self, step: int, target: TrainState) -> tuple[TrainState, dict[str, Any]]:
        """State and progress at a step, laid out as `target`, whatever devices it was saved from."""
        items = ocp.args.Composite(
            state=ocp.args.StandardRestore(target),  # pyright: ignore[reportCallIssue]
            progress=ocp.args.JsonRestore(),
        )
        saved = self._manager.restore(step, args=items)
        return saved["state"], saved["progress"]

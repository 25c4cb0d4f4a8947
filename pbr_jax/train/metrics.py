"""Losses on disk, a line of JSON a step, and to TensorBoard or Weights & Biases where asked for."""

import importlib
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax

from pbr_jax.base.files import write_text
from pbr_jax.base.types import UserError

_TOGETHER = 32  # steps whose numbers are fetched from the devices at once: fetching waits for them


class Tracker(NamedTuple):
    """Takes a line of metrics.jsonl elsewhere."""

    add: Callable[[Mapping[str, Any]], None] = lambda line: None
    close: Callable[[], None] = lambda: None


class Metrics:
    """`metrics.jsonl` in a folder. A run that goes on drops what lies after its checkpoint."""

    def __init__(self, folder: Path, track: str):
        self._path = folder / "metrics.jsonl"
        self._pending: list[tuple[int, Mapping[str, Any]]] = []
        self._writes = jax.process_index() == 0
        self._tracker = _TRACKERS[track](folder) if self._writes else Tracker()
        self.lines: list[dict[str, Any]] = []

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        try:
            if kind is None:
                self.flush()
        finally:
            self._tracker.close()

    def start(self, step: int) -> None:
        """Keeps the lines up to a step."""
        if self._path.is_file():
            with self._path.open(encoding="utf-8") as file:
                lines = [json.loads(line) for line in file if line.endswith("\n")]
            self.lines = [line for line in lines if line["step"] <= step]
        if self._writes:
            write_text(self._path, "".join(map(_line, self.lines)))

    def add(self, step: int, values: Mapping[str, Any]) -> None:
        """Numbers of a step, which may still be under way on the devices."""
        self._pending.append((step, values))
        if len(self._pending) > _TOGETHER:
            self.flush(keep=1)

    def flush(self, keep: int = 0) -> None:
        """Writes what was added, but for the last `keep` steps, which devices may be computing. Raises
        UserError at a loss or gradient that is not finite."""
        ready = len(self._pending) - keep
        pending, self._pending = self._pending[:ready], self._pending[ready:]
        for step, values in jax.device_get(pending):
            for name in [name for name in ("loss", "gradient_norm") if name in values]:
                if not math.isfinite(values[name]):
                    problem = f"the {name.replace('_', ' ')} of step {step} is {values[name]}"
                    raise UserError(f"{problem}; lower the learning rate, or clip")
            self.note(step, values)

    def note(self, step: int, values: Mapping[str, Any]) -> None:
        """Writes numbers at once."""
        line = {"step": step, **{name: float(value) for name, value in values.items()}}
        self.lines.append(line)
        if self._writes:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(_line(line))
        self._tracker.add(line)


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record) + "\n"


def _values(line: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in line.items() if name != "step"}


def _tensorboard(folder: Path) -> Tracker:
    writer = _library("tensorboard").SummaryWriter(str(folder / "tensorboard"))

    def add(line: Mapping[str, Any]) -> None:
        for name, value in _values(line).items():
            writer.add_scalar(name, value, line["step"])

    return Tracker(add, writer.close)


def _wandb(folder: Path) -> Tracker:
    """A training that goes on after it was killed goes on in the same run: its folder gives the name."""
    name = f"{folder.parent.name}-{folder.name}"
    run = _library("wandb").init(
        dir=str(folder), project="pbr_jax", id=name, name=name, resume="allow", reinit="create_new"
    )
    return Tracker(lambda line: run.log(_values(line), step=int(line["step"])), run.finish)


def check_installed(track: str) -> None:
    """Raises UserError where what `track` names is not installed."""
    if track in _LIBRARIES:
        _library(track)


def _library(track: str) -> Any:
    name = _LIBRARIES[track]
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(
            f"tracking needs {name}, which is not installed; pip install {name}, or set track to none"
        ) from error


_LIBRARIES = {"tensorboard": "tensorboardX", "wandb": "wandb"}
_TRACKERS: dict[str, Callable[[Path], Tracker]] = {
    "none": lambda folder: Tracker(),
    "tensorboard": _tensorboard,
    "wandb": _wandb,
}

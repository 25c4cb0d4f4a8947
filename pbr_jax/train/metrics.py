"""Losses on disk, a line of JSON a step."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from pbr_jax.base.files import write_text
from pbr_jax.base.types import UserError

_TOGETHER = 32  # steps whose numbers are fetched from the devices at once: fetching waits for them


class Metrics:
    """`metrics.jsonl` in a folder. A run that goes on drops what lies after its checkpoint."""

    def __init__(self, folder: Path):
        self._path = folder / "metrics.jsonl"
        self._pending: list[tuple[int, Mapping[str, Any]]] = []
        self._writes = jax.process_index() == 0
        self.lines: list[dict[str, Any]] = []

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        if kind is None:
            self.flush()

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


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record) + "\n"

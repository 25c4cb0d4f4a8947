"""Numbers of a training on disk."""

import json
from pathlib import Path

import pytest

from pbr_jax.base.types import UserError
from pbr_jax.train.metrics import Metrics


def write(folder: Path, steps: range) -> None:
    with Metrics(folder) as metrics:
        metrics.start(steps.start)
        for step in steps:
            metrics.add(step + 1, {"loss": 1 / (step + 1), "gradient_norm": 2.0})
        metrics.flush()
        metrics.note(steps.stop, {"selection": 0.5})


def test_going_on_drops_what_lies_after_the_checkpoint(tmp_path: Path):
    write(tmp_path, range(5))
    write(tmp_path, range(3, 6))
    steps = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4, 5, 6, 6]


def test_a_loss_that_is_not_finite_stops_the_training(tmp_path: Path):
    with pytest.raises(UserError, match="loss of step 3 is nan"), Metrics(tmp_path) as metrics:
        metrics.add(3, {"loss": float("nan")})

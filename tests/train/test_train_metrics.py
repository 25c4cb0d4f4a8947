"""Numbers of a training on disk, and in TensorBoard's files."""

import importlib
import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from pbr_jax.base.types import UserError
from pbr_jax.train.metrics import Metrics


def write(folder: Path, track: str, steps: range) -> None:
    with Metrics(folder, track) as metrics:
        metrics.start(steps.start)
        for step in steps:
            metrics.add(step + 1, {"loss": 1 / (step + 1), "gradient_norm": 2.0})
        metrics.flush()
        metrics.note(steps.stop, {"selection": 0.5})


def records(file: Path) -> Iterator[bytes]:
    """The records of a TFRecord file: length, checksum, data, checksum."""
    content, place = file.read_bytes(), 0
    while place < len(content):
        (length,) = struct.unpack_from("<Q", content, place)
        yield content[place + 12 : place + 12 + length]
        place += 16 + length


def test_tensorboard_reads_what_stands_in_the_file(tmp_path: Path):
    pytest.importorskip("tensorboardX", reason="tensorboardX is not installed")
    Event = importlib.import_module("tensorboardX.proto.event_pb2").Event

    write(tmp_path, "tensorboard", range(40))
    found = {}
    for file in (tmp_path / "tensorboard").iterdir():
        for record in records(file):
            event = Event.FromString(record)
            found |= {(event.step, value.tag): value.simple_value for value in event.summary.value}
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    wanted = {(line["step"], name): line[name] for line in lines for name in line if name != "step"}
    assert found == pytest.approx(wanted)
    assert len(wanted) == 81


def test_going_on_drops_what_lies_after_the_checkpoint(tmp_path: Path):
    write(tmp_path, "none", range(5))
    write(tmp_path, "none", range(3, 6))
    steps = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4, 5, 6, 6]


def test_a_loss_that_is_not_finite_stops_the_training(tmp_path: Path):
    with (
        pytest.raises(UserError, match="loss of step 3 is nan"),
        Metrics(tmp_path, "none") as metrics,
    ):
        metrics.add(3, {"loss": float("nan")})


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(UserError, match="pip install wandb, or set track to none"):
        Metrics(tmp_path, "wandb")

"""Remarks of several processes, and of one that is killed at any moment: none is lost, none counts twice."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from worlds import World

import pbr_jax

Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Starts `processes.py`."""
    package = str(Path(pbr_jax.__file__).parents[1])
    environment = {**os.environ, "PBR_JAX_CACHE": str(tmp_path / "cache"), "PYTHONPATH": package}
    script = str(Path(__file__).with_name("processes.py"))

    def started(*words: object) -> "subprocess.Popen[bytes]":
        command = [sys.executable, script, str(tmp_path), *map(str, words)]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)

    return started


@pytest.mark.parametrize("kills", [4, pytest.param(50, marks=pytest.mark.long)])
def test_a_kill_at_any_moment_loses_nothing_and_doubles_nothing(start: Start, kills: int):
    """The process compares what there is after each kill, and after all was said again, with a whole run."""
    process = start("kills", kills)
    told, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    hit = Counter(json.loads(told))
    assert hit.total() == kills
    assert kills < 50 or set(hit) >= {"received", "summarised", "judged", "applied"}, hit


@pytest.mark.long
def test_two_processes_write_five_hundred_remarks_with_gapless_versions(start: Start, tmp_path: Path):
    world = World(tmp_path)
    writers = [start(name, 250) for name in ("left", "right")]
    for writer in writers:
        writer.communicate(timeout=300)
    assert [writer.returncode for writer in writers] == [0, 0]
    events, remarks = world.stores.history(), world.stores.log.remarks()
    assert [event.version for event in events] == list(range(1, 501))
    assert sorted(remark.version or 0 for remark in remarks) == list(range(1, 501))
    wanted = sorted(f"{name} remark {i}" for name in ("left", "right") for i in range(250))
    assert sorted(event.text or "" for event in events) == wanted
    own = [f"{name}{i}" for name in ("left", "right") for i in range(7)]
    assert sorted(document.text for user in own for document in world.texts(user)) == wanted

"""A sweep over baselines that ask the language model, killed while they ask, asks nothing twice."""

import contextlib
import random
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from test_kills import KILLS, PATIENCE, SEED, Round
from test_trained_runs import CONFIGS, histories

from pbr_jax.config import load
from pbr_jax.llm.answers_file import Answers

SWEEP = CONFIGS / "ablations" / "llm_baselines.py"

# Fires for answers that are there already, too.
_LOGGED = """
CREATE TABLE asked(key TEXT, kind TEXT);
CREATE TRIGGER log BEFORE INSERT ON answers BEGIN INSERT INTO asked VALUES (new.key, new.kind); END;
"""


def _logging(folder: Round) -> Round:
    """With a cache that keeps a line for every answer that is brought to it."""
    folder.cache.mkdir()
    Answers(folder.cache / "llm.sqlite").find([])
    with contextlib.closing(sqlite3.connect(folder.cache / "llm.sqlite")) as database:
        database.executescript(_LOGGED)
    return folder


def _asked(folder: Round) -> list[tuple[str, str]]:
    with contextlib.closing(sqlite3.connect(folder.cache / "llm.sqlite")) as database:
        return database.execute("SELECT key, kind FROM asked ORDER BY key").fetchall()


def _count(folder: Round) -> int:
    with contextlib.closing(sqlite3.connect(folder.cache / "llm.sqlite")) as database:
        return database.execute("SELECT COUNT(*) FROM asked").fetchone()[0]


def _predictions(folder: Round) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in folder.out.glob("*/predictions.jsonl")}


@pytest.fixture
def command(tiny_models: dict[str, str], write_tweets: Callable[..., Path]) -> list[str]:
    write_tweets(histories("a", 4), "train")
    root = write_tweets(histories("b", 4))
    fields = {"benchmark.name": "lamp_7", "benchmark.root": root, "generate.max_new_tokens": 4}
    fields |= {name: tiny_models[name] for name in ("llm.model", "encoder.model")}
    flags = [word for name, value in fields.items() for word in (f"--{name}", str(value))]
    return [sys.executable, "-m", "pbr_jax", "sweep", str(SWEEP), *flags]


@pytest.mark.long
def test_a_killed_sweep_of_rerankers_asks_nothing_twice(command: list[str], tmp_path: Path):
    whole = _logging(Round(tmp_path / "whole", command))
    whole.finish()
    wanted = _asked(whole)
    kinds = {kind for _, kind in wanted}
    assert len(set(wanted)) == len(wanted)
    assert kinds == {"text", "score", "row", "tokens", "rows"}

    killed, rng = _logging(Round(tmp_path / "killed", command)), random.Random(SEED)
    for moment in sorted(rng.randrange(1, len(wanted)) for _ in range(-(-KILLS // 2))):
        deadline = time.monotonic() + PATIENCE
        with killed.started() as process:
            while _count(killed) < moment and process.poll() is None:
                assert time.monotonic() < deadline, f"seed {SEED}: {moment} answers never came"
                time.sleep(0.02)  # the run has the same core
        if process.returncode == 0:
            break
        print(f"seed {SEED}: killed with {len(_asked(killed))} of {len(wanted)} answers", file=sys.stderr)
    killed.finish()
    assert _asked(killed) == wanted, f"seed {SEED}"
    predictions, rows = _predictions(whole), load(SWEEP).sweep
    assert rows is not None
    assert len(predictions) == len(list(rows()))
    assert _predictions(killed) == predictions, f"seed {SEED}"

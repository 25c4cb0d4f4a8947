"""A trained run that is killed again and again ends as one that was left alone.

Four kills by default; PBR_JAX_KILLS=20 for as many as it takes an evening to trust.
"""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

KILLS = int(os.environ.get("PBR_JAX_KILLS", "4"))
TRAINED = ("user_encoder", "retriever", "reranker")
TOPICS = ("tea", "cats", "football", "violins")


def plan(draw: random.Random) -> list[str]:
    """The stages in which to kill, in the order in which they come: training and generation first of all."""
    share = max(1, KILLS // 4)
    wanted = [*draw.choices(TRAINED, k=max(share + 1, KILLS - 3 * share)), *["generate"] * (share + 1)]
    rest = ("data", "embed", "feedback", "rank", "feedback")
    wanted += [rest[i % len(rest)] for i in range(max(0, KILLS - len(wanted)))]
    order = ("data", "embed", "user_encoder", "rank", "feedback", "retriever", "reranker", "generate")
    return sorted(wanted, key=order.index)


def answers(cache: Path) -> int:
    if not (cache / "llm.sqlite").is_file():
        return 0
    try:
        with closing(sqlite3.connect(cache / "llm.sqlite", timeout=5)) as connection:
            return connection.execute("SELECT count(*) FROM answers").fetchone()[0]
    except sqlite3.OperationalError:  # not yet made
        return 0


def killed(process: subprocess.Popen[bytes], cache: Path, stage: str, draw: random.Random) -> bool:
    """Kills while a stage is under way, some time after it began; False where the process ended before."""
    before, deadline = answers(cache), time.monotonic() + 300
    while process.poll() is None and time.monotonic() < deadline:
        under_way = list(cache.glob(f"{stage}/*.partial"))
        if under_way and (stage != "generate" or answers(cache) > before):
            time.sleep(draw.uniform(0, 0.25))
            still = any(path.exists() for path in under_way)
            process.send_signal(signal.SIGKILL)
            return process.wait() == -signal.SIGKILL and still
        time.sleep(0.005)
    return False


@pytest.mark.slow
def test_the_end_is_the_same_bytes_and_nothing_partial_stays(tiny_models, write_tweets, tmp_path: Path):
    def tweets(prefix: str, count: int) -> dict[str, list[str]]:
        return {
            f"{prefix}{i}": [f"i love {TOPICS[i % 4]} day {j}" for j in range(i % 5)] for i in range(count)
        }

    write_tweets(tweets("a", 12), "train")
    fields = {
        "benchmark.name": "lamp_7", "benchmark.root": write_tweets(tweets("b", 18)), "llm.batch_size": 1,
        "encoder.model": tiny_models["encoder.model"], "llm.model": tiny_models["llm.model"],
        "select.model": tiny_models["encoder.model"], "encoder.max_length": 32, "prompt.max_tokens": 200,
        "generate.max_new_tokens": 24, "feedback.max_new_tokens": 4, "eval.resamples": 20,
        "neighbours.m": 3, "retrieve.k": 2, "select.k": 2,
    }  # fmt: skip
    for part in ("user_encoder", "retrieve", "select"):
        training = {"epochs": 12, "batch_size": 4, "devices": 1, "selection": 0.2, "checkpoint_every": 2}
        fields |= {f"{part}.training.{name}": value for name, value in training.items()}
    flags = [word for name, value in fields.items() for word in (f"--{name}", str(value))]

    def start(name: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PBR_JAX_CACHE": str(tmp_path / name), "JAX_PLATFORMS": "cpu"}
        command = [
            sys.executable,
            "-m",
            "pbr_jax.cli",
            "run",
            "cfrag",
            *flags,
            "--out",
            str(tmp_path / f"{name}-out"),
        ]
        return subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)

    draw, hits = random.Random(KILLS), Counter[str]()
    for stage in plan(draw):
        hits[stage] += killed(start("killed"), tmp_path / "killed", stage, draw)
    assert sum(hits[stage] for stage in TRAINED) >= max(1, KILLS // 4)
    assert hits["generate"] >= max(1, KILLS // 4)
    print(f"killed {sum(hits.values())} times: {dict(hits)}")
    assert start("killed").wait() == 0
    assert start("whole").wait() == 0
    for name in ("predictions.jsonl", "texts.jsonl", "config.json"):
        one, two = ((tmp_path / f"{run}-out" / name).read_bytes() for run in ("killed", "whole"))
        assert one == two, name
    assert not [p for p in (tmp_path / "killed").rglob("*") if p.name.endswith(".partial")]
    assert not [p for p in (tmp_path / "killed-out").iterdir() if p.name.endswith(".partial")]
    keys = [
        json.loads((tmp_path / f"{run}-out" / "results.json").read_text())["keys"]
        for run in ("killed", "whole")
    ]
    assert keys[0] == keys[1]
    for label in TRAINED:
        params = [
            tmp_path / run / label / keys[0][label] / "params.safetensors" for run in ("killed", "whole")
        ]
        assert params[0].read_bytes() == params[1].read_bytes(), label

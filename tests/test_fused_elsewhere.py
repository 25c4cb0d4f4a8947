"""Fused weights whose fit is killed; fused retrieval and `select.fusion match` on one device and on eight."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from test_trained_runs import CONFIGS, histories

import pbr_jax
from pbr_jax.config import Config, load, override, to_dict
from pbr_jax.methods import retrieve

RUN = """
import json, sys, jax, pbr_jax
from pbr_jax.config import from_dict
assert len(jax.devices()) == 1
pbr_jax.run(from_dict(json.loads(sys.argv[1])), sys.argv[2])
"""
KILLED = """
import json, os, signal, sys, pbr_jax
from pbr_jax.config import from_dict
from pbr_jax.methods.retrieve import fused

moment, left = sys.argv[3], 3
loss_of, save_report, write_text = fused.loss_of, fused.save_report, fused.write_text

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def counted(*arguments):
    loss = loss_of(*arguments)
    def value(theta):
        global left
        left -= 1
        return loss(theta) if left else die()
    return value

def half_written(path, text):
    write_text(path, text[: len(text) // 2])
    os.rename(path, path.with_name(f".{path.name}.partial"))
    die()

if moment == "fit":
    fused.loss_of = counted
elif moment == "report":
    fused.save_report = lambda *arguments: (save_report(*arguments), die())
else:
    fused.write_text = half_written
pbr_jax.run(from_dict(json.loads(sys.argv[1])), sys.argv[2])
"""


def status(script: str, config: Config, cache: Path, *arguments: str) -> int:
    """That of a process of its own, on one device."""
    environment = {**os.environ, "PBR_JAX_CACHE": str(cache), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", script, json.dumps(to_dict(config)), *arguments]
    return subprocess.run(command, env=environment, check=False).returncode


@pytest.fixture
def weighted(tmp_path: Path) -> Config:
    """BM25 and recency over notes, with weights that questions of a training split teach."""
    rng = np.random.default_rng(0)
    words = ("tea", "cake", "rain", "lake", "boat")
    (tmp_path / "data").mkdir()
    users = {user: [" ".join(rng.choice(words, 3)) for _ in range(12)] for user in "abcdef"}
    documents = [
        {"id": f"{user}{i}", "user": user, "text": text, "time": f"2024-01-{i + 1:02}"}
        for user, own in users.items()
        for i, text in enumerate(own)
    ]
    files: dict[str, list[dict[str, Any]]] = {"documents": documents}
    for split, some in (("train", "abcd"), ("dev", "ef")):
        files[split] = [
            {"id": f"{split} {user}{i}", "user": user, "input": users[user][i], "relevant": [f"{user}{i}"]}
            for user in some
            for i in rng.choice(12, 4, replace=False).tolist()
        ]
    for name, records in files.items():
        (tmp_path / "data" / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    task = 'title = "Notes"\nkind = "retrieval"\nmetrics = ["recall@2"]\n'
    (tmp_path / "data" / "task.toml").write_text(task)
    fused = retrieve.Fused(of=(retrieve.BM25(), retrieve.Recency()), how="weighted")
    place = {"benchmark.name": "own", "benchmark.root": str(tmp_path / "data"), "eval.resamples": 10}
    return override(Config(retrieve=fused, collaboration="signals"), {**place, "eval.likelihood": "off"})


@pytest.mark.long
def test_weights_whose_fit_is_killed_are_the_same_bytes(
    weighted: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Killed while they are fitted, before they are reported, and while they are written."""

    def kept(cache: Path) -> list[bytes]:
        (file,) = (cache / "fusion").glob("*/weights.json")
        return [file.read_bytes(), file.with_name("training.json").read_bytes()]

    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "whole"))
    pbr_jax.run(weighted, tmp_path / "out")
    killed = tmp_path / "killed"
    for moment in ("fit", "report", "weights"):
        assert status(KILLED, weighted, killed, str(tmp_path / "again"), moment) == -signal.SIGKILL
        assert not list((killed / "fusion").glob("*/weights.json"))
    monkeypatch.setenv("PBR_JAX_CACHE", str(killed))
    pbr_jax.run(weighted, tmp_path / "again")
    assert kept(killed) == kept(tmp_path / "whole")
    again, whole = (tmp_path / name / "predictions.jsonl" for name in ("again", "out"))
    assert again.read_bytes() == whole.read_bytes()
    weights = json.loads(kept(killed)[0])
    assert sum(weights.values()) == pytest.approx(1)
    assert weights["bm25"] > 0.5  # the question is the document's own text


def same(one: Path, other: Path) -> None:
    """The same documents, in the same order, with scores that differ by rounding alone."""
    lines = [(folder / "predictions.jsonl").read_text().splitlines() for folder in (one, other)]
    assert lines[0]
    for first, second in zip(*(map(json.loads, own) for own in lines), strict=True):
        found, wanted = first["documents"], second["documents"]
        assert [d["id"] for d in found] == [d["id"] for d in wanted]
        ours, theirs = ([[d["score"], *d.get("scores", {}).values()] for d in of] for of in (found, wanted))
        np.testing.assert_allclose(ours, theirs, atol=2e-4)


@pytest.mark.long
@pytest.mark.parametrize("name", ["fused", "purple_match"])
def test_eight_devices_rank_as_one_does(
    name: str, tiny_models, write_tweets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Of match: what eight devices have trained, which share each batch."""
    assert len(jax.devices()) == 8
    write_tweets(histories("a", 12), "train")
    place = {"benchmark.name": "lamp_7", "benchmark.root": str(write_tweets(histories("b", 8)))}
    small: dict[str, Any] = {"generate.method": "none", "eval.likelihood": "off", "eval.resamples": 10}
    small |= {"encoder.max_length": 32, "prompt.max_tokens": 700, "llm.batch_size": 8}
    if name == "purple_match":
        small |= {
            "select.num_layers": 1,
            "select.query_tokens": 16,
            "select.record_tokens": 12,
            "select.k": 2,
        }
        small |= {"select.training.epochs": 2, "select.training.batch_size": 8, "retrieve.k": 4}
        small |= {"select.num_heads": 2, "limit_training": None}
    config = override(load(CONFIGS / f"{name}.py").config, {**place, **tiny_models, **small})
    assert status(RUN, config, tmp_path / "one", str(tmp_path / "1")) == 0
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "eight"))
    pbr_jax.run(config, tmp_path / "8")
    same(tmp_path / "1", tmp_path / "8")

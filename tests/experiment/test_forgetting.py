"""Who is forgotten is in no byte of the cache and of run folders; a run made anew never knew the user."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pbr_jax
from pbr_jax.base.types import UserError
from pbr_jax.config import Config, choose, load, names, override
from pbr_jax.experiment import forgetting
from pbr_jax.llm import answers_file, reads
from pbr_jax.remarks.judge import Script

CONFIGS = Path(__file__).parents[2] / "configs"
TOPICS = ("tea", "cats", "football", "violins")  # words that the tiny encoder knows
GONE = ("b3", "train/a5")
TRAINING = {"epochs": 1, "batch_size": 4, "devices": 1, "selection": 0.2}
SMALL: dict[str, Any] = {
    "prompt.max_tokens": 200, "generate.max_new_tokens": 4, "llm.batch_size": 8, "eval.resamples": 20,
    "neighbours.m": 3, "retrieve.k": 2, "select.k": 2, "encoder.max_length": 32, 
    **{f"{part}.training.{name}": value for part in ("user_encoder", "retrieve", "select", "generator")
       for name, value in TRAINING.items()},
}  # fmt: skip
QUIET: dict[str, Any] = {"generate.method": "none", "eval.likelihood": "off"}
SYSTEMS: dict[str, tuple[str, dict[str, Any]]] = {
    "bm25": ("bm25", {}),
    "lancedb": ("dense", {"retrieve.index": "lancedb", **QUIET}),
    "cfrag": ("cfrag", {}),
    "purple": ("purple", {"select.num_layers": 1, "select.num_heads": 2, "select.rollouts": 2,
                          "select.query_tokens": 16, "select.record_tokens": 12, "retrieve.k": 4}),
    "pbr": ("pbr", {"expand.max_new_tokens": 4, "expand.history_tokens": 64}),
    "clusterrag": ("clusterrag", {}),
    "luf": ("luf", {"stream.size": 3, "retrieve.labels.judged": 2, "retrieve.update.epochs": 1}),
    "remarks": ("luf_small", {"stream.size": 3, "collaboration": "text", "retrieve.remarks": "all",
                              "retrieve.labels.kind": "self"}),
    "reader": ("bm25", {"collaboration": "signals", "generator.method": "lora", "generator.rank": 2}),
    "profiles": ("bm25", {"prompt.profile": "features", "collaboration": "text", "prompt.profile_tokens": 8}),
}

pytestmark = pytest.mark.usefixtures("fresh_cache")


def histories(prefix: str, users: int) -> dict[str, list[str]]:
    return {
        f"{prefix}{i}": [f"CANARY{prefix}{i}x{j}x i love {TOPICS[(i + j) % 4]} day {j}" for j in range(2 + i % 3)]
        for i in range(users)
    }


Write = Callable[..., Path]


def world(write: Write, *, without: bool = False) -> Path:
    """Two splits of users; `without` those who will be forgotten."""

    def kept(users: dict[str, list[str]], split: str) -> dict[str, list[str]]:
        return {u: own for u, own in users.items() if not without or f"{split}{u}" not in GONE}

    write(kept(histories("a", 8), "train/"), "train")
    return write(kept(histories("b", 6), ""))


def config(system: str, models: dict[str, str], root: Path, **more: Any) -> Config:
    """The packaged config with small sizes, as far as its methods have them."""
    name, fields = SYSTEMS[system]
    fields = {**fields, **more}
    packaged = load(CONFIGS / f"{name}.py").config
    methods = {field: value for field, value in fields.items() if field.endswith(".method")}
    base = choose(override(packaged, {"collaboration": "text"}), methods)
    place = {"benchmark.name": "lamp_7", "benchmark.root": str(root), **models}
    small = {**place, "select.model": models["encoder.model"], **SMALL}
    small = {field: value for field, value in small.items() if field in {*names(base)}}
    return override(base, {"collaboration": packaged.collaboration, **small, **fields})


def holding(folder: Path, words: tuple[bytes, ...]) -> list[str]:
    """The files below a folder that hold any of these words, sources left out."""
    files = [path for path in folder.rglob("*") if path.is_file() and "tweets" not in path.parts]
    return [str(path) for path in files if any(word in path.read_bytes() for word in words)]


def words_of(users: tuple[str, ...]) -> tuple[bytes, ...]:
    return tuple(f"CANARY{user.rpartition('/')[2]}x".encode() for user in users)


@pytest.mark.parametrize("system", SYSTEMS)
def test_no_byte_of_a_user_is_left_and_a_run_made_anew_never_knew_them(
    system: str, tiny_models: dict[str, str], write_tweets: Write, tmp_path: Path, monkeypatch: Any
):
    if system == "lancedb":
        pytest.importorskip("lancedb")
        monkeypatch.setattr("pbr_jax.index.engines.lancedb.Engine.direct", 0)
    chosen = config(system, tiny_models, world(write_tweets))
    gone = GONE
    pbr_jax.run(chosen, tmp_path / "out")
    before = answers_of(tmp_path / "out")
    assert holding(tmp_path, words_of(GONE))
    known = [user for user in gone if is_known(user)]
    assert "b3" in known
    for user in known:
        listed = forgetting.forget(user, dry=True)
        told = forgetting.forget(user)
        assert (listed.stages, listed.trained) == (told.stages, told.trained)
    assert holding(tmp_path, words_of(tuple(known))) == []
    after = answers_of(tmp_path / "out")
    assert after.items() <= before.items()
    assert "b3" not in after
    assert pbr_jax.run(chosen, tmp_path / "anew").records()
    assert holding(tmp_path, words_of(tuple(known))) == []
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "never"))
    world(write_tweets, without=True)
    pbr_jax.run(chosen, tmp_path / "knew")
    anew, knew = (tmp_path / name / "predictions.jsonl" for name in ("anew", "knew"))
    assert anew.read_bytes() == knew.read_bytes()
    parts = [sorted(f for f in tmp_path.glob(f"{n}/*/*/*.safetensors")) for n in ("cache", "never")]
    assert [p.parent.name for p in parts[0]] == [p.parent.name for p in parts[1]]
    assert [p.read_bytes() for p in parts[0]] == [p.read_bytes() for p in parts[1]]


def answers_of(out: Path) -> dict[str, str]:
    """The lines of a run by users."""
    lines = (out / "predictions.jsonl").read_text().splitlines()
    return {json.loads(line)["user_id"]: line for line in lines}


def is_known(user: str) -> bool:
    try:
        forgetting.forget(user, dry=True)
    except UserError:
        return False
    return True

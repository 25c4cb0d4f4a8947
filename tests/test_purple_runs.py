"""PURPLE, end to end on tiny random models: training, ranking, refusals, odd users, kills."""

from pathlib import Path

import pytest
from test_trained_runs import CONFIGS, histories, made

from pbr_jax import Config, ask, run
from pbr_jax.config import load, override

SMALL = {
    "prompt.max_tokens": 700, "generate.method": "none", "llm.batch_size": 8, "eval.resamples": 50,
    "eval.likelihood": "on", "encoder.max_length": 32, "retrieve.k": 4, "select.k": 2,
    "select.num_layers": 1, "select.num_heads": 2, "select.query_tokens": 16, "select.record_tokens": 12,
    "select.rollouts": 3, "select.training.epochs": 1, "select.training.batch_size": 8,
    "select.training.devices": 1,
}  # fmt: skip


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def tweets(write_tweets) -> Path:
    write_tweets(histories("a", 12), "train")
    return write_tweets(histories("b", 8))


def config(models: dict[str, str], root: Path, **fields: object) -> Config:
    place = {"benchmark.name": "lamp_7", "benchmark.root": str(root), **models}
    return override(load(CONFIGS / "purple.py").config, {**place, **SMALL, **fields})


def test_one_command_trains_and_ranks(tiny_models, tweets: Path, tmp_path: Path):
    results = run(config(tiny_models, tweets), tmp_path / "out")
    assert made(tmp_path / "out") == [
        "data", "embed", "rank", "query_states", "token_states", "purple", "rank", "likelihood",
    ]  # fmt: skip
    values = results.values
    assert (values["system"], values["n"], values["dropped"]) == ("purple", 8, 0)
    for record in results.predictions():
        scores = [document["score"] for document in record["documents"]]
        assert scores == sorted(scores, reverse=True)
        assert all(document["user_id"] == record["user_id"] for document in record["documents"])
    answer = ask(tmp_path / "out", "b3", "i love tea")
    assert len(answer.documents) >= 1

"""A text about the user by a model behind a server, with passages, and with folds that train a retriever."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from servers import serve_llm

import pbr_jax
from pbr_jax.cli.main import main
from pbr_jax.config import Config, override
from pbr_jax.llm.engine.jax_backend import JaxLLM
from pbr_jax.methods.generate import Label

WORDS = ("tea", "cats", "football", "violins", "i", "love", "about", "that", "day", *"0123456789")


@pytest.fixture
def place(tmp_path: Path, tiny_models: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Four users' documents of several passages, and a question of each with its evidence."""
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "cache"))
    draw = random.Random(4)
    documents = [
        {"id": f"d{i}", "user": f"u{user}", "text": " ".join(draw.choices(WORDS, k=12))}
        for user in range(4)
        for i in range(3)
    ]
    questions = [
        {"id": f"q{user}", "user": f"u{user}", "input": " ".join(draw.choices(WORDS, k=4)), "target": "tea",
         "relevant": [f"d{user % 3}"]}
        for user in range(4)
    ]  # fmt: skip
    for name, records in (("documents", documents), ("dev", questions)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, records)))
    (tmp_path / "task.toml").write_text('kind = "retrieval"\nmetrics = ["recall@1"]\n')
    return {
        "benchmark.name": "own", "benchmark.root": str(tmp_path), "collaboration": "signals",
        **{name: tiny_models[name] for name in ("encoder.model", "llm.model")},
        "retrieve.method": "fused", "retrieve.how": "weighted", "retrieve.learns_from": "relevant",
        "retrieve.k": 2, "corpus.chunk": "words", "corpus.words": 5, "corpus.stride": 3,
        "prompt.show": "around", "prompt.profile": "summary", "prompt.profile_tokens": 20,
        "prompt.profile_read": 128, "prompt.max_tokens": 900, "generate.method": "ipa",
        "generate.max_new_tokens": 4, "stream.protocol": "cross_units", "stream.folds": 2,
        "eval.resamples": 20,
    }  # fmt: skip


def lines(out: Path, name: str) -> list[dict[str, Any]]:
    return [*map(json.loads, (out / f"{name}.jsonl").read_text().splitlines())]


@pytest.mark.long
def test_a_server_passages_and_folds_go_together(place: dict[str, Any], tmp_path: Path) -> None:
    """What a model behind a server writes and answers is what it does in this process."""
    path = Path(place["llm.model"])
    near = pbr_jax.run(override(Config(), place), tmp_path / "near").values
    with serve_llm(JaxLLM(path)) as server:
        far_away = {"llm.backend": "http", "llm.url": server.url, "llm.tokenizer": str(path),
                    "llm.log_probs": "vllm", "llm.model": "m"}  # fmt: skip
        far = pbr_jax.run(override(Config(), {**place, **far_away}), tmp_path / "far").values
        assert len(server.requests) >= 4
    for here, there in zip(lines(tmp_path / "near", "texts"), lines(tmp_path / "far", "texts"), strict=True):
        assert here["profile"]
        assert here["profile"] in here["prompt"][-1]["content"]
        assert here == there
    for name in ("recall@1", "target_nll"):
        assert far["metrics"][name] == pytest.approx(near["metrics"][name], rel=1e-4)
    for found in (near, far):
        assert found["counts"]["shown_profile_tokens"] > 0
        assert found["counts"]["profile_calls"] == 4  # each fold has two users of its own
        assert any("2 folds of whole units" in note for note in found["notes"])
        assert any("documents are cut into passages" in note for note in found["notes"])
        assert len([label for label in found["trained"] if label.startswith("fusion")]) == 2
    spans = [
        document["span"] for line in lines(tmp_path / "far", "predictions") for document in line["documents"]
    ]
    assert len(set(map(tuple, spans))) > 1


@pytest.mark.long
def test_the_text_about_the_user_is_no_part_of_what_the_wording_brings(
    place: dict[str, Any], tmp_path: Path
) -> None:
    """Without documents the calibrating prompt is one for all users: it has no text about any of them."""
    (tmp_path / "task.toml").write_text('kind = "rating"\nlabels = ["1", "2"]\nmetrics = ["mae"]\n')
    for line in (records := lines(tmp_path, "dev")):
        line["target"] = "1"
        line.pop("relevant")
    (tmp_path / "dev.jsonl").write_text("\n".join(map(json.dumps, records)))
    base = {**place, "generate.method": "label", "retrieve.how": "standardised", "stream.folds": None,
            "stream.protocol": "prequential", "generate.max_new_tokens": None}  # fmt: skip
    plain = pbr_jax.run(override(Config(), base), tmp_path / "plain")
    told = {"generate.calibration": "content_free_no_documents"}
    calibrated = pbr_jax.run(override(Config(), {**base, **told}), tmp_path / "calibrated")
    assert all(seen["profile"] for seen in lines(tmp_path / "calibrated", "texts"))
    odds = []
    for one, other in zip(plain.records(), calibrated.records(), strict=True):
        ratios = [record["probabilities"]["1"] / record["probabilities"]["2"] for record in (one, other)]
        odds.append(ratios[1] / ratios[0])
    assert odds == pytest.approx([odds[0]] * len(odds), rel=1e-4)  # the same is subtracted from all
    assert Label().calibration == "none"


@pytest.mark.long
def test_the_config_is_one_command(place: dict[str, Any], tmp_path: Path) -> None:
    names = ("benchmark.name", "benchmark.root", "encoder.model", "llm.model", "prompt.profile_tokens",
             "prompt.profile_read", "prompt.max_tokens", "generate.max_new_tokens", "generate.method",
             "eval.resamples")  # fmt: skip
    flags = [word for name in names for word in (f"--{name}", str(place[name]))]
    assert main(["run", "profile_summary", *flags, "--out", str(tmp_path / "out")]) == 0
    assert all(seen["profile"] for seen in lines(tmp_path / "out", "texts"))

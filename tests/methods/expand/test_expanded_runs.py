"""Whole runs with an expansion: what results.json counts, and when rankings are made anew."""

import json
from pathlib import Path
from typing import Any

import pytest
from small_world import HISTORIES, Bags, Scripted

from pbr_jax import Config, run
from pbr_jax.cli.main import main
from pbr_jax.config import override
from pbr_jax.experiment.plan import Plan
from pbr_jax.stages import language_model, vectors

LLM: dict[str, Scripted] = {}


def scripted_llm(options: Any) -> Scripted:
    """Of a module, not of a closure: what a closure holds is a part of the key."""
    return LLM["scripted"]


@pytest.fixture(autouse=True)
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scripted:
    """Every run gets this language model and an encoder of bags of words."""
    LLM["scripted"] = Scripted(lambda prompt: "" if "dog" in prompt else "green tea")
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(language_model, "_load", scripted_llm)
    monkeypatch.setattr(vectors, "_encoder", lambda config: Bags())
    return LLM["scripted"]


@pytest.fixture
def fields(write_tweets) -> dict[str, Any]:
    root = write_tweets({**HISTORIES, "eve": ["my dog"]})
    return {
        "benchmark.name": "lamp_7",
        "benchmark.root": str(root),
        "retrieve.k": 2,
        "generate.method": "none",
    }


def test_answers_failures_tokens_and_seconds_reach_the_results(fields, tmp_path: Path, scripted: Scripted):
    config = override(Config(), {**fields, "expand.method": "hyde", "retrieve.method": "bm25"})
    values = run(config, tmp_path / "out").values
    counts = values["counts"]
    assert counts["expand_answers"] == len(scripted.prompts) == 5
    assert counts["expand_parse_failures"] == 1
    assert counts["expand_answer_tokens"] == 2 * 4
    assert counts["expand_prompt_tokens"] > 5
    assert values["seconds"]["expand_llm"] >= 0
    assert values["dropped"] == 0
    again = run(config, tmp_path / "elsewhere").values
    assert again["counts"] == counts  # found, not asked again
    assert len(scripted.prompts) == 5


def test_a_run_without_expansion_loads_no_model(fields, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(language_model, "_load", lambda options: pytest.fail("a model was loaded"))
    values = run(override(Config(), {**fields, "retrieve.method": "recency"}), tmp_path / "out").values
    assert not any(name.startswith("expand") for name in (*values["counts"], *values["seconds"]))


def test_another_model_makes_other_rankings(fields, scripted: Scripted):
    config = override(Config(), {**fields, "expand.method": "hyde", "retrieve.method": "bm25"})
    first = Plan(config).ranked.key
    scripted.fingerprint = "another"
    assert Plan(config).ranked.key != first


def test_a_changed_file_of_expansions_makes_other_rankings(fields, tmp_path: Path):
    path, keys = tmp_path / "expansions.json", []
    config = override(Config(), {**fields, "expand.method": "pbr", "expand.released": str(path)})
    for said in ("green tea", "my dog", "my dog"):
        path.write_text(
            json.dumps({user: {"utterances": [said], "reasoning": "hm"} for user in (*HISTORIES, "eve")})
        )
        keys.append(Plan(config).ranked.key)
    assert keys[0] != keys[1] == keys[2]


def test_pbr_works_in_front_of_a_word_retriever(fields, tmp_path: Path):
    config = override(Config(), {**fields, "expand.method": "pbr", "retrieve.method": "bm25"})
    results = run(config, tmp_path / "out")
    assert [len(record["documents"]) for record in results.records()] == [2, 2, 0, 1, 1]


def test_a_missing_file_of_expansions_is_one_line(fields, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    flags = {**fields, "expand.released": str(tmp_path / "none.json")}
    words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
    assert (
        main(
            [
                "run",
                str(Path(__file__).parents[3] / "configs" / "pbr.py"),
                *words,
                "--out",
                str(tmp_path / "o"),
            ]
        )
        == 2
    )
    assert "found no such file of expansions" in capsys.readouterr().err.splitlines()[-1]

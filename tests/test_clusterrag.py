"""ClusterRAG end to end on tiny random models: modes that answer the same questions, odd users, privacy."""

import json
from pathlib import Path
from typing import Any

import pytest
from test_trained_runs import CONFIGS, histories, made

from pbr_jax import Config, ask, run
from pbr_jax.base.types import UserError
from pbr_jax.cli.main import main
from pbr_jax.config import load, override

COLLABORATIVE: dict[str, Any] = {"neighbours.m": 1, "neighbours.own": False}
MODES: dict[str, dict[str, Any]] = {
    "user-only": {"neighbours.m": 1},
    "collaborative": COLLABORATIVE,
    "hybrid": {},
}

pytestmark = pytest.mark.usefixtures("fresh_cache")


@pytest.fixture
def tweets(write_tweets) -> Path:
    """The first user has no history, the second one document."""
    write_tweets(histories("a", 12), "train")
    return write_tweets(histories("b", 8))


def config(models: dict[str, str], root: Path, name: str = "clusterrag", **fields: Any) -> Config:
    small = {
        "benchmark.name": "lamp_7", "benchmark.root": str(root), "prompt.max_tokens": 400,
        "encoder.max_length": 32, "eval.resamples": 20, "generator.method": "frozen",
        "generate.method": "none",
    }  # fmt: skip
    return override(load(CONFIGS / f"{name}.py").config, {**models, **small, **fields})


@pytest.mark.long
def test_all_modes_answer_the_same_questions(tiny_models, tweets: Path, tmp_path: Path):
    owners: dict[str, list[set[bool]]] = {}
    for mode, fields in MODES.items():
        results = run(config(tiny_models, tweets, **fields), tmp_path / mode)
        assert (results.values["n"] or results.values["counts"]["examples"], results.values["dropped"]) == (
            8,
            0,
        )
        records = results.records()
        assert [record["id"] for record in records] == [f"b{i}" for i in range(8)]
        owners[mode] = [{d["user_id"] == r["user_id"] for d in r["documents"]} for r in records]
        for record in records:
            scores = [d["score"] for d in record["documents"]]
            assert scores == sorted(scores, reverse=True)
    assert owners["user-only"] == [set(), *[{True}] * 7]
    assert owners["collaborative"] == [{False}] * 8  # also who has written nothing has a neighbour
    assert owners["hybrid"] == [{False}, *[{True, False}] * 7]
    answer = ask_in(tmp_path, tiny_models, tweets)
    assert answer
    assert (
        main(["report", *(str(tmp_path / mode) for mode in MODES), "--out", str(tmp_path / "report.md")]) == 0
    )
    assert "silhouette" in (tmp_path / "report.md").read_text()


def test_the_papers_min_samples_is_3_as_it_is_counted_here():
    """Its library leaves the point itself out."""
    names = ("clusterrag", "clusterrag_as_released", "clusterrag_pooled_as_released", "clusterrag_small")
    for name in (*names, "ablations/clusterrag", "ablations/clusterrag_small"):
        config: Any = load(CONFIGS / f"{name}.py").config
        assert (config.neighbours.min_samples, config.retrieve.min_samples) == (3, 3), name


def ask_in(tmp_path: Path, models: dict[str, str], root: Path) -> bool:
    """A question that is not stored."""
    run(config(models, root, **{"generate.method": "ipa", "generate.max_new_tokens": 2}), tmp_path / "asked")
    owners = {c.document.user_id for c in ask(tmp_path / "asked", "b3", "i love tea").documents}
    return "b3" in owners and len(owners) == 2


def test_results_tell_how_well_cohorts_hold_together(tiny_models, tweets: Path, tmp_path: Path):
    hybrid = run(config(tiny_models, tweets), tmp_path / "hybrid")
    assert made(tmp_path / "hybrid") == ["data", "embed", "cohorts", "token_vectors", "rank"]
    told = hybrid.values["measured"]["cohorts"]
    assert told["clustered_users"] == 18  # twenty users, two without a document
    assert -1 <= told["silhouette_without_noise"] <= 1
    assert hybrid.metrics["silhouette"] == told["silhouette"]
    alone = run(config(tiny_models, tweets, **MODES["user-only"]), tmp_path / "alone")
    assert "silhouette" not in alone.metrics
    again = run(config(tiny_models, tweets, **{"neighbours.similarity": "dot"}), tmp_path / "dot")
    assert made(tmp_path / "dot") == ["rank"]
    assert again.values["measured"] == hybrid.values["measured"]


def test_opening_all_clusters_is_the_flat_ranking_of_late_interaction(
    tiny_models, tweets: Path, tmp_path: Path
):
    fields: dict[str, Any] = {"retrieve.k": 9, "select.k": 9}
    opened: dict[str, Any] = {**fields, "retrieve.top_clusters": 99}
    everything = run(config(tiny_models, tweets, **opened), tmp_path / "all")
    flat = {"retrieve.method": "dense", "select.method": "late_interaction"}
    reranked = run(config(tiny_models, tweets, **fields, **flat), tmp_path / "flat")
    for one, two in zip(everything.records(), reranked.records(), strict=True):
        assert [d["score"] for d in one["documents"]] == [d["score"] for d in two["documents"]]
        assert {d["id"] for d in one["documents"]} == {d["id"] for d in two["documents"]}


@pytest.mark.parametrize("noise", ["one_cluster", "nearest", "alone"])
def test_one_user_and_everybody_noise(tiny_models, write_tweets, tmp_path: Path, noise: str):
    root = write_tweets({"b0": ["i love tea", "i love cats"], "b1": ["football"]})
    place: dict[str, Any] = {
        "neighbours.noise": noise,
        "neighbours.min_cluster_size": 9,
        "benchmark.training": "none",
    }
    for mode, fields in MODES.items():
        for limit in (1, 2):
            out = tmp_path / f"{mode}{limit}"
            results = run(config(tiny_models, root, **place, **fields, limit=limit), out)
            assert results.values["dropped"] == 0
            assert len(results.records()) == limit
            others = [d for r in results.records() for d in r["documents"] if d["user_id"] != r["user_id"]]
            assert bool(others) == (mode != "user-only" and limit == 2 and noise != "alone")


def test_others_documents_need_collaboration_by_text(tiny_models, tweets: Path, tmp_path: Path):
    for mode, fields in MODES.items():
        for policy in ("none", "signals"):
            if mode == "user-only":
                results = run(
                    config(tiny_models, tweets, **fields, collaboration=policy), tmp_path / f"{mode}{policy}"
                )
                texts = (tmp_path / f"{mode}{policy}" / "texts.jsonl").read_text().splitlines()
                for record in map(json.loads, texts):
                    told = json.dumps(record)
                    assert told.count("CANARY") == told.count(f"CANARY{record['id']}x")
                assert results.values["dropped"] == 0
            else:
                with pytest.raises(
                    UserError, match="documents would enter prompts; say so with collaboration"
                ):
                    config(tiny_models, tweets, **fields, collaboration=policy)


@pytest.mark.long
@pytest.mark.parametrize("name", ["clusterrag", "clusterrag_small"])
def test_with_the_reader_that_each_config_tunes(tiny_models, tweets: Path, tmp_path: Path, name: str):
    tuned = load(CONFIGS / f"{name}.py").config.generator.method
    training = {"epochs": 1, "batch_size": 4, "devices": 1, "selection": 0.2}
    fields = {f"generator.training.{field}": value for field, value in training.items()}
    fields |= {"generate.method": "ipa", "generate.max_new_tokens": 2, "prompt.max_tokens": 300}
    fields |= {"generator.method": tuned, "generate.num_beams": 1}
    results = run(config(tiny_models, tweets, name, **fields), tmp_path / "out")
    assert (results.values["n"], results.values["dropped"]) == (8, 0)
    told = results.values["trained"]["generator"]
    each = 2 if name == "clusterrag_small" else 1
    assert told["pairs"] + told["held_out"] == each * 12

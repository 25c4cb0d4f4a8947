"""Systems that learn, end to end on tiny random models: stages, resuming, privacy, odd users."""

import json
from pathlib import Path

import numpy as np
import pytest

from pbr_jax import Config, ask, run
from pbr_jax.base.types import UserError
from pbr_jax.config import choose, load, names, override
from pbr_jax.experiment.plan import Plan
from pbr_jax.graph import walk
from pbr_jax.stages.feedback import questions

CONFIGS = Path(__file__).parents[1] / "configs"
TOPICS = ("tea", "cats", "football", "violins")  # words that the tiny encoder knows

pytestmark = pytest.mark.usefixtures("fresh_cache")


def histories(prefix: str, users: int) -> dict[str, list[str]]:
    """Users of four kinds; the first has no history, the second a single document."""
    lengths = [0, 1, *(3 + i % 4 for i in range(2, users))]
    return {
        f"{prefix}{i}": [f"CANARY{prefix}{i}x i love {TOPICS[i % 4]} day {j}" for j in range(length)]
        for i, length in enumerate(lengths)
    }


@pytest.fixture
def tweets(write_tweets) -> Path:
    write_tweets(histories("a", 12), "train")
    return write_tweets(histories("b", 8))


TRAINING = {"epochs": 2, "batch_size": 4, "devices": 1, "selection": 0.2}
SMALL = {
    "prompt.max_tokens": 200, "generate.max_new_tokens": 4, "llm.batch_size": 8, "eval.resamples": 50,
    "eval.likelihood": "off",
    "neighbours.m": 3, "retrieve.k": 2, "select.k": 2, "encoder.max_length": 32,
    **{f"{part}.training.{name}": value for part in ("user_encoder", "retrieve", "select")
       for name, value in TRAINING.items()},
}  # fmt: skip


def config(name: str, models: dict[str, str], root: Path, **fields: object) -> Config:
    """The config with small sizes, as far as its methods have them, and these fields."""
    place = {
        "benchmark.name": "lamp_7",
        "benchmark.root": str(root),
        **models,
        "select.model": models["encoder.model"],
    }
    methods = {field: value for field, value in fields.items() if field.endswith(".method")}
    base = choose(override(load(CONFIGS / f"{name}.py").config, {"collaboration": "text"}), methods)
    known = set(names(base))
    small = {field: value for field, value in {**place, **SMALL}.items() if field in known}
    collaboration = {"collaboration": load(CONFIGS / f"{name}.py").config.collaboration}
    return override(base, {**collaboration, **small, **fields})


def made(out: Path) -> list[str]:
    events = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [event["stage"] for event in events if event["event"] == "made"]


@pytest.mark.long
def test_one_command_runs_all_of_cfrag_and_again_does_nothing(
    tiny_models, tweets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    cfrag = config("cfrag", tiny_models, tweets, **{"prompt.max_tokens": 400})
    results = run(cfrag, tmp_path / "out")
    assert made(tmp_path / "out") == [
        "data", "embed", "user_encoder", "rank", "feedback", "retriever", "embed", "rank", "feedback",
        "reranker", "rank", "generate",
    ]  # fmt: skip
    values = results.values
    assert (values["system"], values["n"], values["dropped"]) == ("cfrag", 8, 0)
    assert values["counts"]["training_examples"] == 12
    assert values["counts"]["users"] == 20
    assert {"feedback_retriever", "feedback_reranker", "retriever", "reranker"} <= set(values["seconds"])
    few = "no questions chose the step"
    told = capsys.readouterr().err
    logged = [json.loads(line) for line in (tmp_path / "out" / "log.jsonl").read_text().splitlines()]
    for part, heads in (("retriever", {"user"}), ("reranker", {"user", "score"})):
        assert any(note.startswith(f"{part}: {few}") for note in values["notes"])
        assert f"{part}: note: {few}" in told
        assert any(event["event"] == "note" and event["stage"] == part for event in logged)
        moved = values["trained"][part]["moved"]
        assert set(moved) == heads
        assert min(moved.values()) > 0.01  # six steps at the default rates
    for record in results.records():
        assert 2 <= len(record["documents"]) <= 3 * 2  # also without an own history
        owners = {document["user_id"] for document in record["documents"]}
        assert len(owners) <= 3
        scores = [document["score"] for document in record["documents"]]
        assert scores == sorted(scores, reverse=True)
    owners = {d["user_id"] for r in results.records() for d in r["documents"]}
    assert any(owner.startswith("train/a") for owner in owners)
    times = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    assert run(cfrag, tmp_path / "out").values == values
    assert times == {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file()}
    answer = ask(tmp_path / "out", "b3", "i love tea")
    assert len(answer.documents) >= 1


@pytest.mark.long
@pytest.mark.parametrize(
    "fields",
    [
        pytest.param(
            {"neighbours.method": "mean", "retrieve.method": "dense", "select.users": False, "select.own": 1},
            marks=pytest.mark.long,
        ),
        pytest.param(
            {"expand.method": "pbr", "expand.max_new_tokens": 4, "expand.history_tokens": 64},
            marks=pytest.mark.long,
        ),
        {"neighbours.skip": 3, "retrieve.method": "bm25", "select.method": "top_k",
         "user_encoder.train_embeddings": True, "user_encoder.loss": "nt_xent"},
    ],
)  # fmt: skip
def test_every_module_can_be_left_out_or_changed(tiny_models, tweets: Path, tmp_path: Path, fields):
    results = run(
        config("cfrag", tiny_models, tweets, **{"generate.method": "none", **fields}), tmp_path / "out"
    )
    assert results.values["dropped"] == 0
    assert len(results.records()) == 8
    if "select.own" in fields:
        for record in results.records():
            own = [document["user_id"] == record["user_id"] for document in record["documents"]]
            assert sum(own[:2]) == min(1, sum(own)) or sum(own) == len(own)


def test_a_part_of_the_training_split_can_be_enough(tiny_models, tweets: Path, tmp_path: Path):
    fields = {"neighbours.method": "mean", "retrieve.method": "dense", "select.method": "top_k"}
    fields |= {"generate.method": "none", "neighbours.m": 8, "limit": 4}
    for limit, learned in ((5, 5), (99, 12), (None, 12)):
        few = config("cfrag", tiny_models, tweets, **fields, limit_training=limit)
        results = run(few, tmp_path / str(limit))
        counts = results.values["counts"]
        assert (counts["examples"], counts["training_examples"], counts["users"]) == (4, learned, 4 + learned)
        owners = {d["user_id"] for record in results.records() for d in record["documents"]}
        assert len({owner for owner in owners if owner.startswith("train/a")}) <= learned
        assert {owner for owner in owners if owner.startswith("b")} <= {
            r["user_id"] for r in results.records()
        }
    with pytest.raises(UserError, match="limit_training is 0"):
        config("cfrag", tiny_models, tweets, limit_training=0)


@pytest.mark.long
def test_ropg_learns_from_the_own_history_and_needs_no_users(tiny_models, tweets: Path, tmp_path: Path):
    fields = {"neighbours.m": 1, "retrieve.distillation.loss": "reinforce"}
    results = run(config("ropg", tiny_models, tweets, **fields), tmp_path / "out")
    assert made(tmp_path / "out") == [
        "data", "embed", "rank", "feedback", "retriever", "embed", "rank", "generate",
    ]  # fmt: skip
    assert all(d["user_id"] == r["user_id"] for r in results.records() for d in r["documents"])


@pytest.mark.long
def test_feedback_by_likelihood_decodes_nothing(tiny_models, tweets: Path, monkeypatch: pytest.MonkeyPatch):
    from pbr_jax.llm.cache import Cached

    monkeypatch.setattr(Cached, "generate", lambda *_, **__: pytest.fail("asked for an answer"))
    fields = {"feedback.metric": "likelihood", "neighbours.m": 1, "prompt.max_tokens": 1200}
    fields["feedback.limit"] = 4
    ropg = config("ropg", tiny_models, tweets, **fields)
    plan = Plan(ropg)
    (stage,) = [node for node in walk(plan.last) if node.name == "feedback"]
    lessons = stage.value.read(questions(plan.run).read(plan.data.value))
    assert any(len(found.values) > 1 for found in lessons)
    assert all(np.ptp(found.values) > 0 for found in lessons if len(found.values) > 1)


def test_training_on_others_needs_their_leave(tiny_models, tweets: Path):
    with pytest.raises(UserError, match="say so with collaboration text"):
        config("cfrag", tiny_models, tweets, collaboration="none")
    with pytest.raises(UserError, match="learns from other users' histories, and collaboration is none"):
        Plan(config("cfrag", tiny_models, tweets, **{"neighbours.m": 1, "collaboration": "none"}))


@pytest.mark.long
def test_numbers_are_not_reported_on_what_was_learned_from(
    tiny_models, tweets: Path, tmp_path: Path, write_tweets
):
    with pytest.raises(UserError, match="evaluate another split"):
        run(config("cfrag", tiny_models, tweets, **{"benchmark.split": "train"}), tmp_path / "out")
    with pytest.raises(UserError, match=r"found the splits train, dev, wanted 'other'"):
        run(config("cfrag", tiny_models, tweets, **{"benchmark.training": "other"}), tmp_path / "out")
    plain = {"select.method": "top_k", "retrieve.method": "dense", "benchmark.training": "other"}
    found = run(
        config("cfrag", tiny_models, tweets, **plain, **{"generate.method": "none"}), tmp_path / "plain"
    )
    assert found.values["counts"]["users"] == 8  # neighbours among the evaluated users alone


def test_what_a_late_stage_would_refuse_is_refused_before_the_first(
    tiny_models, tweets: Path, tmp_path: Path
):
    for fields, message in (
        ({"select.model": "nowhere"}, "model 'nowhere': no such folder"),
        ({"select.method": "cross_encoder"}, "has no head that judges documents"),
        ({"select.training.batch_size": 5, "select.training.accumulate": 2}, "batch_size is 5"),
        ({"feedback.metric": "rmse"}, "which a single answer does not have"),
        (
            {"feedback.metric": "likelihood", "llm.backend": "http", "llm.url": "http://127.0.0.1:1/v1"},
            "feedback.metric is likelihood, and the server's model cannot score",
        ),
    ):
        with pytest.raises(UserError, match=message):
            run(config("cfrag", tiny_models, tweets, **fields), tmp_path / "out")
    dot = config("ropg", tiny_models, tweets, **{"retrieve.similarity": "dot", "neighbours.m": 1})
    with pytest.raises(UserError, match=r"encoder\.normalize auto; the candidates that it learns from"):
        run(dot, tmp_path / "out")
    made = {path.name for path in (tmp_path / "cache").glob("*") if path.is_dir()}
    assert not made & {"embed", "vectors", "rank", "feedback", "user_encoder", "purple"}

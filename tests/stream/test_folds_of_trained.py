"""Folds of units with parts that are trained for real, on tiny random models."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pbr_jax
from pbr_jax.base.types import Example
from pbr_jax.config import Config, names, override
from pbr_jax.experiment.plan import Plan
from pbr_jax.graph import Stage
from pbr_jax.graph.lists import stages
from pbr_jax.llm.answers_file import location
from pbr_jax.methods.select import TopK
from pbr_jax.stages import rankings
from pbr_jax.stages.feedback import Feedbacks, shuffled
from pbr_jax.stages.folds import fold
from pbr_jax.stages.rankings import Questions

TOPICS = ("tea", "cats", "football", "violins")  # words that the tiny encoder knows
USERS = 12
TRAINING = {"epochs": 1, "batch_size": 4, "devices": 1, "selection": 0.0}
SMALL = {
    "collaboration": "signals", "benchmark.name": "lamp_7", "stream.protocol": "cross_units",
    "stream.folds": 2, "prompt.max_tokens": 800, "generate.method": "none", "eval.likelihood": "on",
    "llm.batch_size": 8, "eval.resamples": 20, "retrieve.k": 3, "select.k": 1, "encoder.max_length": 32,
    "feedback.metric": "likelihood",
    **{f"{part}.training.{name}": value for part in ("retrieve", "select", "generator")
       for name, value in TRAINING.items()},
}  # fmt: skip
SYSTEMS: dict[str, dict[str, Any]] = {
    "ropg": {"retrieve.method": "tuned", "retrieve.alpha": 0.0},
    "reranker": {"select.method": "tuned", "select.users": False},
    "tuned generator": {"generator.method": "lora", "generator.rank": 2},
}  # fmt: skip
LABELS = {"reranker": "reranker", "tuned generator": "generator"}

pytestmark = pytest.mark.usefixtures("fresh_cache")


@pytest.fixture
def tweets(write_tweets) -> Path:
    return write_tweets(
        {f"u{i}": [f"i love {TOPICS[(i + j) % 4]} day {j}" for j in range(2 + i % 3)] for i in range(USERS)}
    )


def config(models: dict[str, str], root: Path, **fields: object) -> Config:
    methods = {field: value for field, value in fields.items() if field.endswith(".method")}
    base = override(Config(select=TopK(k=1)), {"collaboration": "signals", **methods})
    known = set(names(base))
    small = {**SMALL, **models, "benchmark.root": str(root), "select.model": models["encoder.model"]}
    return override(base, {**{field: v for field, v in small.items() if field in known}, **fields})


def trained(plan: Plan, label: str) -> dict[str, Any]:
    """The parameters that each fold has trained, as bytes, by its number."""
    found = [stage for name, stage in stages(plan.last).items() if name.split(" ")[0] == label]
    files = [sorted(stage.folder.glob("*.safetensors")) for stage in found]
    return {str(i): [path.read_bytes() for path in of] for i, of in enumerate(files)}


def told(out: Path) -> dict[str, dict[str, Any]]:
    lines = (out / "predictions.jsonl").read_text().splitlines()
    return {line["id"]: line for line in map(json.loads, lines)}


@pytest.mark.long
@pytest.mark.parametrize("name", LABELS)
def test_a_folds_targets_train_the_other_folds_alone(tiny_models, tweets: Path, tmp_path: Path, name: str):
    wanted = config(tiny_models, tweets, **SYSTEMS[name])
    pbr_jax.run(wanted, tmp_path / "before")
    before, weights = told(tmp_path / "before"), trained(Plan(wanted), LABELS[name])
    file = tweets / "dev_outputs.json"
    outputs = json.loads(file.read_text())
    for i, gold in enumerate(outputs["golds"]):
        if before[gold["id"]]["block"] == 0:
            gold["output"] = f"{TOPICS[i % 4] * 3} is all"
    file.write_text(json.dumps(outputs))
    pbr_jax.run(wanted, tmp_path / "after")
    after, other = told(tmp_path / "after"), trained(Plan(wanted), LABELS[name])
    assert len(weights) == len(other) == 2
    assert weights["0"] == other["0"]
    assert weights["1"] != other["1"]
    own = [id for id in before if before[id]["block"] == 0]
    assert 0 < len(own) < USERS
    assert all(before[id]["documents"] == after[id]["documents"] for id in own)


def judged(plan: Plan) -> list[dict[tuple[str, int], float]]:
    """The value of each question's candidates, for every fold."""
    files = [
        stage.artefact.path / Feedbacks.file
        for label, stage in stages(plan.last).items()
        if label.startswith("feedback")
    ]
    records = [[json.loads(line) for line in file.read_text().splitlines()] for file in files]
    return [
        {(one["id"], row): value for one in of for row, value in zip(one["rows"], one["values"], strict=True)}
        for of in records
    ]


@pytest.mark.long
def test_feedback_on_a_question_is_asked_for_once(tiny_models, tweets: Path, tmp_path: Path):
    found = judged(Plan(config(tiny_models, tweets, **SYSTEMS["ropg"], **{"stream.folds": 4})))
    pairs = {pair: value for of in found for pair, value in of.items()}
    assert sum(map(len, found)) == 3 * len(pairs)  # each question trains all folds but its own
    assert all(of[pair] == pairs[pair] for of in found for pair in of)
    with closing(sqlite3.connect(location())) as answers:
        (asked,) = answers.execute("SELECT COUNT(*) FROM answers WHERE kind='score'").fetchone()
    assert 0 < asked <= len(pairs)


@pytest.mark.long
def test_shuffled_feedback_has_the_same_values_elsewhere(tiny_models, tweets: Path):
    true = judged(Plan(config(tiny_models, tweets, **SYSTEMS["ropg"])))
    dealt = judged(Plan(config(tiny_models, tweets, **SYSTEMS["ropg"], **{"feedback.shuffle": True})))
    assert len(dealt) == len(true) == 2
    for before, after in zip(true, dealt, strict=True):
        assert before.keys() == after.keys()
        assert before != after
        for id in {id for id, _ in before}:
            values = (sorted(v for (q, _), v in of.items() if q == id) for of in (before, after))
            assert len({*map(tuple, values)}) == 1


def test_a_shuffle_is_a_permutation_of_the_seed_and_the_question():
    examples = [Example(id=f"q{i}", user_id="u", query="", input="", target="t") for i in range(200)]
    orders = np.array([shuffled(example, 5, 3) for example in examples])
    assert (np.sort(orders, axis=1) == np.arange(5)).all()
    counts = np.array([np.bincount(column, minlength=5) for column in orders.T])
    assert abs(counts / 200 - 0.2).max() < 0.12  # each place gets each value alike
    assert shuffled(examples[0], 5, 3).tolist() == orders[0].tolist()
    assert any(shuffled(example, 5, 4).tolist() != o for example, o in zip(examples, orders.tolist()))


UNTRAINED: dict[str, dict[str, Any]] = {
    "drawn": {"retrieve.method": "random"},
    "drawn inside": {"retrieve.method": "two_stage", "retrieve.inside": "random"},
    "newest": {"retrieve.method": "recency"},
    "sums": {"retrieve.method": "fused"},
}


def fold_runs(plan: Plan) -> list[Any]:
    """The run of each fold, as `pbr_jax.stream.folds` makes them."""
    found, examples = plan.arrivals, [*plan.data.value.examples()]
    assert found is not None
    assert plan.run.whole is not None
    views = [fold(plan.run.whole, [examples[place].id for place in block]) for block in found.blocks]
    return [plan.run._replace(data=view) for view in views]


@pytest.mark.parametrize("name", UNTRAINED)
def test_training_questions_are_ranked_once_for_all_folds_as_by_each_alone(
    tiny_models, tweets: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    fields = {"select.method": "purple", "select.k": 1, "stream.folds": 3, **UNTRAINED[name]}
    asked, ranked = Questions(training=True), []
    runs = fold_runs(Plan(config(tiny_models, tweets, **fields)))
    once = [rankings.rankings(run, asked, "once", select=TopK()) for run in runs]
    monkeypatch.setattr(rankings, "_same_in_folds", lambda run: False)
    alone = [rankings.rankings(run, asked, "alone", select=TopK()) for run in runs]
    for node, own, run in zip(once, alone, runs, strict=True):
        store = run.data.value
        told = [[*one.value.records(asked.read(store))] for one in (node, own)]
        assert told[0] == told[1]
        assert 0 < len(told[0]) < USERS
        ranked.append(node.needs["ranked"].key)
    assert len(set(ranked)) == 1 < len({own.key for own in alone})


def test_what_is_learned_in_a_fold_ranks_for_that_fold_alone(tiny_models, tweets: Path):
    learning = {"retrieve.method": "tuned", "retrieve.alpha": 0.0}
    others = {"neighbours.method": "random", "neighbours.m": 3, "collaboration": "text"}
    for fields in (learning, others):
        plan = Plan(config(tiny_models, tweets, **{"select.method": "purple", "select.k": 1, **fields}))
        nodes = [rankings.rankings(run, Questions(training=True), select=TopK()) for run in fold_runs(plan)]
        assert all(isinstance(node, Stage) for node in nodes)
        assert len({node.key for node in nodes}) == 2

"""The policy over sets of evidence in configs/ablations/combination_learned.py: its loss by drawing, what it
learns from planted evidence, and folds."""

import itertools
import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import pbr_jax
from pbr_jax.base.types import Candidate, Document, Example
from pbr_jax.config import Config, load, override
from pbr_jax.config import found as found_config
from pbr_jax.experiment.plan import Plan
from pbr_jax.graph.lists import stages

FILE = load(Path(__file__).parents[2] / "configs" / "ablations" / "combination_learned.py")
LEARNED: Any = sys.modules[type(FILE.config.select).__module__]

HOLDS = np.array([[1, 0], [0, 0], [1, 1], [0, 1]], bool)  # of four candidates, two pieces
THERE = np.array([True, True, True, False])
LOGITS = np.array([0.3, -1.0, 0.5, 1.2])


def gains_by_drawing(there: np.ndarray, order: list[int]) -> float:
    """Minus the log of the product over steps of the probability that what is drawn next, found by drawing
    each candidate that is left, adds a piece; steps where none could are left out."""
    total, scores = 0.0, np.exp(LOGITS)
    for step in range(len(order)):
        have = {int(g) for a in order[:step] for g in np.flatnonzero(HOLDS[a])}
        left = [a for a in range(4) if a not in order[:step] and there[a]]
        adds = [a for a in left if set(np.flatnonzero(HOLDS[a]).tolist()) - have]
        if adds:
            total -= np.log(scores[adds].sum() / scores[left].sum())
    return total


@pytest.mark.parametrize("there", [np.ones(4, bool), THERE])
def test_gains_are_those_of_drawing_along_every_order(there: np.ndarray):
    places = np.flatnonzero(there).tolist()
    orders = [list(order) for order in itertools.permutations(places, 3)]
    wanted = [gains_by_drawing(there, order) for order in orders]
    padded = jnp.array([[[*order, -1] for order in orders]])

    def gains(logits: Any) -> Any:
        return LEARNED.missed_gains(logits[None], padded, there[None], HOLDS[None])[0]

    np.testing.assert_allclose(gains(jnp.array(LOGITS)), wanted, rtol=1e-5, atol=1e-6)
    assert np.unique(np.round(wanted, 5)).size > 1
    check_grads(lambda logits: gains(logits).mean(), (jnp.array(LOGITS),), order=1, modes=["rev"])
    absent = jnp.where(there, LOGITS, -1e9)
    with jax.debug_nans(True):
        slope = jax.grad(lambda logits: gains(logits).sum())(absent)
    assert np.isfinite(slope).all()
    assert not slope[~there].any()


@pytest.mark.parametrize("name", [*LEARNED.FIXED, *LEARNED.LEARNED, *LEARNED.ONCE])
def test_each_row_begins_with_the_parts_of_memory(name: str):
    row = {**LEARNED.FIXED, **LEARNED.LEARNED, **LEARNED.ONCE}[name]
    stream = {"stream.protocol": "cross_users"} if name.startswith("luf") else {}
    found: Any = override(FILE.config, {**stream, **row}, FILE.path).retrieve
    wanted: Any = load(found_config("memory")).config.retrieve
    names = "keep" if "names kept" in name else "i"
    parts = [replace(part, names=names) if part.method == "dense" else part for part in wanted.of]
    if name.startswith("dense"):
        assert found.names == names
    elif name.startswith("luf"):
        assert (found.names, list(found.of)) == (names, [] if "alone" in name else parts)
    elif name.startswith("clusters"):
        assert (found.of[2].names, list(found.of[:2])) == (names, parts[:2])
    else:
        assert list(found.of[:3]) == parts
        assert found.weights[:3] == wanted.weights
        assert not any(found.weights[3:])


# -- planted evidence ----------------------------------------------------------------------------------


def world(count: int, seed: int) -> tuple[list[Example], list[list[Candidate]]]:
    """Questions with two pieces of evidence among six documents, which the part `good` alone points at."""
    random = np.random.default_rng(seed)
    examples, rankings = [], []
    for number in range(count):
        wanted = random.choice(6, 2, replace=False).tolist()
        good = random.normal(size=6) + 3 * np.isin(np.arange(6), wanted)
        pairs = zip(random.normal(size=6).tolist(), good.tolist())
        relevant = tuple((f"d{place}",) for place in wanted)
        examples.append(Example(f"q{number}", "u", "tea", "tea", None, relevant=relevant))
        rankings.append([
            Candidate(Document(f"d{place}", "u", "text"), -float(place), place, {"bad": bad, "good": good})
            for place, (bad, good) in enumerate(pairs)
        ])  # fmt: skip
    return examples, rankings


def recall(options: Any, folder: Path, shuffle: int | None = None) -> float:
    """Of two documents that a policy chooses, of questions that it did not learn from."""
    examples, rankings = world(150, 0)
    store = SimpleNamespace(leaks_target=lambda example, rows: np.zeros(len(rows), bool))
    asked = SimpleNamespace(read=lambda store: iter(examples))
    folder.mkdir()
    ranked = SimpleNamespace(read=lambda store, examples: rankings)
    LEARNED.train(folder, options, asked, 0, shuffle, store=store, ranked=ranked)
    examples, rankings = world(400, 1)
    batch = SimpleNamespace(examples=examples, rankings=rankings)
    scored = options.scores(batch, None, policy=LEARNED.read(folder))
    hits = [
        np.mean([(ranking[place].document.id,) in example.relevant for place in np.argsort(-scores)[:2]])
        for example, ranking, scores in zip(examples, rankings, scored, strict=True)
    ]
    return float(np.mean(hits))


@pytest.mark.parametrize("fields", [{"rollouts": 2}, {"loss": "reinforce"}])
def test_a_policy_learns_which_part_is_right_and_nothing_from_shuffled_evidence(
    tmp_path: Path, fields: dict[str, Any]
):
    options = LEARNED.LinearPolicy(k=2, **fields)
    assert recall(options, tmp_path / "own") > 0.85
    assert recall(options, tmp_path / "shuffled", shuffle=3) < 0.45  # chance is 1 / 3
    assert recall(LEARNED.LinearPolicy(k=2, features="random", **fields), tmp_path / "random") < 0.45


# -- runs ----------------------------------------------------------------------------------------------

TOPICS = ("tea", "cats", "football", "violins")


@pytest.fixture
def talks(tmp_path: Path) -> Path:
    """Four conversations of eight sessions. A question's two pieces of evidence are short sessions about its
    topic; long ones name it too."""
    folder = tmp_path / "talks"
    folder.mkdir()
    random = np.random.default_rng(0)
    talks = []
    for number in range(4):
        said: dict[str, Any] = {"speaker_a": "Ann", "speaker_b": "Bob"}
        topics = random.permutation([*TOPICS, *TOPICS]).tolist()
        for place, topic in enumerate(topics, 1):
            said[f"session_{place}_date_time"] = f"1:00 pm on {place} May, 2023"
            text = f"I bought {topic} {place}" if place % 2 else f"Yes {topic} and " + "so on " * 12
            said[f"session_{place}"] = [{"speaker": "Ann", "dia_id": f"D{place}:1", "text": text}]
        asked = [
            {"question": f"When was {topic} bought?", "answer": topic, "category": 1,
             "evidence": [f"D{place}:1" for place, own in enumerate(topics, 1) if own == topic]}
            for topic in TOPICS
        ]  # fmt: skip
        talks.append({"sample_id": f"conv-{number}", "conversation": said, "qa": asked})
    (folder / "locomo10.json").write_text(json.dumps(talks), encoding="utf-8")
    return folder


def policies(plan: Plan) -> list[bytes]:
    """Of each fold."""
    found = [stage for name, stage in stages(plan.last).items() if name.split(" ")[0] == "policy"]
    return [(stage.folder / "policy.json").read_bytes() for stage in found]


def config(talks: Path, **fields: Any) -> Config:
    place = {"benchmark.name": "locomo", "benchmark.root": str(talks), "benchmark.split": "locomo10"}
    small = {"retrieve.of": ["bm25", "recency"], "retrieve.weights": (1.0, 0.0), "retrieve.k": 8}
    none = {"generate.method": "none", "eval.likelihood": "off", "eval.resamples": 20}
    folds = {"stream.protocol": "cross_units", "stream.folds": 2}
    return override(FILE.config, {**place, **small, **none, **folds, **fields}, FILE.path)


@pytest.mark.usefixtures("fresh_cache")
def test_a_fold_is_learned_from_others_and_questions_are_ranked_once(talks: Path, tmp_path: Path):
    chosen = config(talks)
    pbr_jax.run(chosen, tmp_path / "folds")
    labels = stages(Plan(chosen).last)
    before = policies(Plan(chosen))
    assert len(before) == 2
    assert sum(label.startswith("rank_for_policy") for label in labels) == 1

    # Another answer in the first fold changes only what the second fold learned from.
    file = talks / "locomo10.json"
    content = json.loads(file.read_text())
    own = Plan(chosen).arrivals
    assert own is not None
    examples = [*Plan(chosen).data.value.examples()]
    users = {examples[place].user_id for place in own.blocks[0]}
    for talk in content:
        for asked in talk["qa"] if any(talk["sample_id"] in user for user in users) else ():
            asked["evidence"] = ["D2:1", "D4:1", "D6:1"]
    file.write_text(json.dumps(content))
    pbr_jax.run(chosen, tmp_path / "changed")
    after = policies(Plan(chosen))
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False]

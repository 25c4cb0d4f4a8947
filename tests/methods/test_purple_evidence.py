"""PURPLE with evidence as the reward: recall by hand, a linear policy that learns what is planted, and a run
in folds whose policy another run reads."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pbr_jax
from pbr_jax.base.types import Candidate, Document, Example, UserError
from pbr_jax.config import Config, Optimizer, Stream, Training, override
from pbr_jax.experiment.plan import Plan
from pbr_jax.graph.lists import stages
from pbr_jax.methods import generate, retrieve, select
from pbr_jax.methods.select import purple, purple_evidence, purple_training
from pbr_jax.methods.select.purple_evidence import Evidence, LinearScorer

ADAM = Optimizer(name="adam", learning_rate=0.1)
STEPS = {"selection": 0.0, "devices": 1, "patience": None, "evaluate_every": 1000, "optimizer": ADAM}
TRAINING = Training(epochs=40, batch_size=150, **STEPS)


def policy(**fields: Any) -> select.Purple:
    told = {"scorer": "linear", "features": "scores", "reward": "evidence", "prior": 1.0, "k": 2}
    told |= {"learns_from": "gains", "rollouts": 2, "training": TRAINING}
    return select.Purple(**{**told, **fields})


def question(name: str, relevant: list[list[str]]) -> Example:
    return Example(name, "u", "tea", "tea", None, relevant=tuple(map(tuple, relevant)))


def ranked(*names: str, owner: str = "u", scores: Any = None) -> list[Candidate]:
    told = scores or [{}] * len(names)
    return [
        Candidate(Document(name, owner, "text"), float(-place), place, parts)
        for place, (name, parts) in enumerate(zip(names, told, strict=True))
    ]


def test_the_reward_is_the_recall_of_pieces_of_the_users_own_documents():
    examples = [
        question("q", [["a"], ["b", "c"], ["a"], ["gone"]]),
        question("r", [["x"]]),
        question("s", []),
    ]
    rankings = [ranked("a", "b", "c", "d"), ranked("x", owner="v"), ranked("a")]
    found = Evidence.of(examples, rankings)
    assert found.pieces.tolist() == [3, 1, 0]
    asked = [(0, (0,)), (0, (1, 2)), (0, (0, 3, 1)), (0, (3,)), (1, (0,))]
    np.testing.assert_allclose(found(asked), [1 / 3, 1 / 3, 2 / 3, 0, 0])


def world(count: int, seed: int) -> tuple[list[Example], list[list[Candidate]]]:
    """Questions with two pieces of evidence among six documents, which the part `good` alone points at."""
    random = np.random.default_rng(seed)
    examples, rankings = [], []
    for number in range(count):
        wanted = random.choice(6, 2, replace=False).tolist()
        good = random.normal(size=6) + 3 * np.isin(np.arange(6), wanted)
        scores = [{"bad": b, "good": g} for b, g in zip(random.normal(size=6).tolist(), good.tolist())]
        examples.append(question(f"q{number}", [[f"d{place}"] for place in wanted]))
        rankings.append(ranked(*(f"d{place}" for place in range(6)), scores=scores))
    return examples, rankings


def learned(options: select.Purple, folder: Path, shuffle: int | None = None) -> LinearScorer:
    examples, rankings = world(150, 0)
    dealt = rankings if shuffle is None else purple._dealt(examples, rankings, shuffle)
    reward = Evidence.of(examples, dealt)
    parts = purple._policy(options, rankings, ("bad", "good"), None, None, None)
    trained = purple_training.Policy(*parts, reward.holds)
    users, sizes = [str(i) for i in range(150)], [6] * 150
    fitted = purple_training.train(trained, reward, sizes, users, options, folder, seed=0)
    return LinearScorer(np.asarray(fitted.params["theta"]), ("bad", "good"), options.prior)


def recall(scorer: LinearScorer) -> float:
    examples, rankings = world(400, 1)
    order = [tuple(np.argsort(-row)[:2].tolist()) for row in scorer.scores(examples, rankings)]
    return float(Evidence.of(examples, rankings)(list(enumerate(order))).mean())


@pytest.mark.long
@pytest.mark.parametrize(
    "fields", [{}, {"learns_from": "profiles", "rollouts": 16, "advantage": "leave_one_out"}]
)
def test_a_linear_policy_learns_which_part_is_right_and_nothing_from_shuffled_evidence(
    tmp_path: Path, fields: dict[str, Any]
):
    options = policy(**fields)
    start = recall(LinearScorer(np.zeros(4), ("bad", "good"), 1.0))
    found = learned(options, tmp_path / "own")
    assert recall(found) > 0.85 > 0.4 > start
    assert found.theta[3] > 1 > abs(found.theta[2]) + 0.5
    assert recall(learned(options, tmp_path / "other", shuffle=3)) < 0.45  # chance is 1 / 3


def test_what_makes_no_sense_is_refused():
    for fields, message in [
        ({"reward": "likelihood"}, "gains are of pieces of evidence"),
        ({"features": "none"}, "nothing to weigh"),
        ({"scorer": "transformer", "state": "x"}, "only a linear policy is read"),
    ]:
        with pytest.raises(UserError, match=message):
            policy(**fields)


# -- runs ----------------------------------------------------------------------------------------------

TOPICS = ("tea", "cats", "football", "violins", "bread", "rain")


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
        topics = random.permutation([*TOPICS[:4], *TOPICS[:4]]).tolist()
        for place, topic in enumerate(topics, 1):
            said[f"session_{place}_date_time"] = f"1:00 pm on {place} May, 2023"
            text = f"I bought {topic} {place}" if place % 2 else f"Yes {topic} and " + "so on " * 12
            said[f"session_{place}"] = [{"speaker": "Ann", "dia_id": f"D{place}:1", "text": text}]
        asked = [
            {"question": f"When was {topic} bought?", "answer": topic, "category": 1,
             "evidence": [f"D{place}:1" for place, own in enumerate(topics, 1) if own == topic]}
            for topic in TOPICS[:4]
        ]  # fmt: skip
        talks.append({"sample_id": f"conv-{number}", "conversation": said, "qa": asked})
    (folder / "locomo10.json").write_text(json.dumps(talks), encoding="utf-8")
    return folder


def config(talks: Path, **fields: Any) -> Config:
    of = (retrieve.BM25(), retrieve.Recency())
    base = Config(
        collaboration="signals",
        stream=Stream(protocol="cross_units", folds=2),
        retrieve=retrieve.Fused(k=8, of=of, weights=(1.0, 0.0)),
        select=policy(training=Training(epochs=5, batch_size=8, **STEPS)),
        generate=generate.Nothing(),
    )
    place = {"benchmark.name": "locomo", "benchmark.root": str(talks), "benchmark.split": "locomo10"}
    return override(base, {**place, "eval.likelihood": "off", "eval.resamples": 20, **fields})


def rankings_of(out: Path) -> dict[str, list[Candidate]]:
    lines = map(json.loads, (out / "predictions.jsonl").read_text().splitlines())
    return {
        line["id"]: [
            Candidate(Document(d["id"], d["user_id"], ""), d["score"], 0, d["scores"])
            for d in line["documents"]
        ]
        for line in lines
    }


def policies(plan: Plan) -> list[bytes]:
    found = [stage for name, stage in stages(plan.last).items() if name.split(" ")[0] == "purple"]
    return [(stage.folder / "params.safetensors").read_bytes() for stage in found]


@pytest.mark.long
@pytest.mark.usefixtures("fresh_cache")
def test_a_fold_is_learned_from_others_and_a_saved_policy_ranks_as_what_it_was_learned(
    talks: Path, tmp_path: Path
):
    chosen = config(talks)
    pbr_jax.run(chosen, tmp_path / "folds")
    before = policies(Plan(chosen))
    assert len(before) == 2
    state = pbr_jax.export(tmp_path / "folds", tmp_path / "state", "state", slot="select")
    with pytest.raises(UserError, match="leave --blocks out"):
        pbr_jax.export(tmp_path / "folds", tmp_path / "early", "state", slot="select", blocks=1)
    read = json.loads((state / purple_evidence.FILE).read_text())
    assert list(read["weights"]) == ["score", "place", "bm25", "recency"]

    # The run with the state ranks as the policy of all folds does.
    fields = {"stream.protocol": "prequential", "stream.folds": None, "collaboration": "none"}
    used = config(talks, **fields, **{"select.state": str(state)})
    pbr_jax.run(used, tmp_path / "used")
    pbr_jax.run(override(used, {"select.method": "top_k"}), tmp_path / "pool")
    plan = Plan(chosen)
    scorer = plan.last_slots["select"].needs["all folds"].value.values["policy"]
    assert scorer.theta.tolist() == list(read["weights"].values())
    assert scorer.theta.any()
    found, pools = rankings_of(tmp_path / "used"), rankings_of(tmp_path / "pool")
    for name, pool in pools.items():
        (scores,) = scorer.scores([], [pool])
        order = np.argsort(-scores, kind="stable").tolist()
        assert [c.document.id for c in found[name]] == [pool[i].document.id for i in order]
        np.testing.assert_allclose([c.score for c in found[name]], scores[order], atol=1e-5)

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


@pytest.mark.usefixtures("fresh_cache")
def test_a_policy_of_other_scores_and_a_damaged_one_are_refused(talks: Path, tmp_path: Path):
    fields = {"stream.protocol": "prequential", "stream.folds": None, "collaboration": "none"}
    chosen = config(talks, **fields, **{"select.state": str(tmp_path)})
    with pytest.raises(UserError, match="holds no linear policy"):
        Plan(chosen).check()
    scorer = LinearScorer(np.arange(4.0), ("bm25", "recency"), 1.0)
    purple_evidence.write(tmp_path, scorer, chosen.retrieve)
    Plan(chosen).check()
    Plan(override(chosen, {"retrieve.k": 7})).check()  # a pool may have another size
    with pytest.raises(UserError, match="scores of another retriever"):
        Plan(override(chosen, {"retrieve.weights": (1.0, 0.5)})).check()
    file = tmp_path / purple_evidence.FILE
    file.write_text(file.read_text().replace("3.0", "NaN"))
    with pytest.raises(UserError, match="or one with NaN"):
        Plan(chosen).check()

"""Folds of users: each is answered by what the other folds have taught, and by nothing of its own."""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from stream_worlds import (
    FOUR,
    LEARNERS,
    SEED,
    content,
    documents,
    folds_of,
    kill_once,
    lines,
    read_lamp,
    same_files,
    write_four_users,
)

import pbr_jax
from pbr_jax.base.types import UserError
from pbr_jax.config import Config, load, override

OTHERS = (
    LEARNERS
    + '''

@dataclass(frozen=True, kw_only=True)
class Others(Trend):
    """Documents whose words were frequent in other queries and in the documents that these got."""

    method: Literal["others"] = "others"

    def observe(self, block, *, state, store):
        self.told(f"observe {len(block.examples)}")
        assert not (state / "counts.json").exists()  # the first state
        best = [ranking[0].document.text.split() for ranking in block.rankings]
        return [[*e.query.split(), *words] for e, words in zip(block.examples, best, strict=True)]

    def learn(self, blocks, *, state, out, store):
        assert not (state / "counts.json").exists()
        assert not any(example.target for block in blocks for example in block.examples)
        super().learn(blocks, state=state, out=out, store=store)

    def report(self, blocks, *, state, store):
        self.told(f"report {len(blocks)}")
        pairs = [(e, words) for b in blocks for e, words in zip(b.examples, b.observations, strict=True)]
        held = [e.target.split()[0] in words for e, words in pairs]
        return {"n": len(held), "held": np.mean(held), "state": len(read(state))}


def get_config():
    return Config(system="others", collaboration="signals", retrieve=Others(k=3),
                  stream=Stream(protocol="cross_users"))
'''
)

pytestmark = pytest.mark.usefixtures("fresh_cache")


@pytest.fixture
def told(tmp_path: Path) -> dict[str, Any]:
    return {**write_four_users(tmp_path / "data", "canary"), "retrieve.calls": str(tmp_path / "calls")}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "learner.py"
    path.write_text(OTHERS)
    return path


def observed(question: dict[str, Any]) -> list[str]:
    """The words of a question, and of what the first state ranks first."""
    return [*question["input"].split(": ", 1)[1].split(), *question["profile"][0]["text"].split()]


def by_hand(folds: list[set[int]], questions: list[dict[str, Any]]) -> list[list[str]]:
    found = []
    for question in questions:
        (own,) = (fold for fold in folds if question["user_id"] in fold)
        counts = Counter(w for other in questions if other["user_id"] not in own for w in observed(other))
        ranked = sorted(question["profile"], key=lambda t: -sum(counts[w] for w in t["text"].split()))
        found.append([tweet["id"] for tweet in ranked[:3]])
    return found


def test_each_user_is_answered_by_what_the_others_taught(file: Path, told: dict[str, Any], tmp_path: Path):
    pbr_jax.run(override(load(file).config, told), tmp_path / "out")
    questions, _ = read_lamp(tmp_path / "data")
    assert documents(tmp_path / "out") == by_hand([{user} for user in range(4)], questions)
    assert (tmp_path / "calls").read_text().splitlines() == [
        "observe 3", "observe 2", "observe 2", "observe 3",
        "learn 3", "learn 3", "learn 3", "learn 3", "report 4",
    ]  # fmt: skip
    assert [line["block"] for line in lines(tmp_path / "out")] == FOUR


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_folds_of_several_users(seed: int, file: Path, told: dict[str, Any], tmp_path: Path):
    told |= {"stream.folds": 2, "seed": seed}
    pbr_jax.run(override(load(file).config, told), tmp_path / "out")
    questions, _ = read_lamp(tmp_path / "data")
    folds = folds_of(tmp_path / "out", 2)
    assert [len(fold) for fold in folds] == [2, 2]
    assert documents(tmp_path / "out") == by_hand(folds, questions)


def test_no_observation_of_a_fold_reaches_its_state(file: Path, told: dict[str, Any], tmp_path: Path):
    """The canary: a word that only one user says."""
    pbr_jax.run(override(load(file).config, told), tmp_path / "out")
    states = sorted(path for path in tmp_path.glob("cache/stream/*/states/*") if path.is_dir())
    assert len(states) == 4
    for fold, state in enumerate(states):
        counts = json.loads((state / "retrieve" / "counts.json").read_text())
        assert {user for user in range(4) if f"canary{user}" in counts} == {*range(4)} - {fold}
    system = pbr_jax.open(tmp_path / "out")  # what answers new questions has learned from all
    first = next(iter(system.store.examples()))
    system.rank([first])
    (last,) = tmp_path.glob("cache/stream_last/*/retrieve/counts.json")
    assert {f"canary{user}" for user in range(4)} <= json.loads(last.read_text()).keys()


def test_what_learners_report_is_kept(file: Path, told: dict[str, Any], tmp_path: Path):
    config = override(load(file).config, told)
    found = pbr_jax.run(config, tmp_path / "out").values["learned"]
    questions, targets = read_lamp(tmp_path / "data")
    held = [t.split()[0] in observed(q) for q, t in zip(questions, targets, strict=True)]
    words = {w for q in questions if q["user_id"] != 3 for w in observed(q)}  # of the last fold's state
    assert found == {"retrieve": {"n": 10, "held": sum(held) / 10, "state": len(words)}}
    (tmp_path / "out" / "results.json").unlink()
    assert pbr_jax.run(config, tmp_path / "out").values["learned"] == found
    assert pbr_jax.run(config, tmp_path / "other").values["learned"] == found
    assert (tmp_path / "calls").read_text().count("report") == 1


@pytest.mark.parametrize(
    ("gives", "error"),
    [
        ("{'held': float('nan')}", "retrieve.method others: report gave nan as held, want finite numbers"),
        ("{'held': 'half'}", "report gave {'held': 'half'}, want numbers by names"),
        ("7", "report gave 7, want numbers by names"),
    ],
)
def test_a_report_that_is_wrong_ends_in_one_line(
    gives: str, error: str, file: Path, told: dict[str, Any], tmp_path: Path
):
    file.write_text(OTHERS.replace("pairs = [(e,", f"return {gives}; pairs = [(e,"))
    with pytest.raises(UserError, match=error):
        pbr_jax.run(override(load(file).config, told), tmp_path / "out")


@pytest.mark.parametrize("keep", [None, 1, 3])
@pytest.mark.parametrize(
    "harmed",
    ["states/00003/retrieve/counts.json", "blocks/00001/rankings.jsonl", "observed/00002/rankings.jsonl"],
)
def test_kept_states_and_what_is_damaged(
    harmed: str, keep: int | None, file: Path, told: dict[str, Any], tmp_path: Path
):
    config = override(load(file).config, {**told, "stream.keep": keep})
    pbr_jax.run(config, tmp_path / "out")
    wanted = content(tmp_path / "cache")
    kept = {name.split("/")[1] for name in wanted if name.startswith("states/")}
    assert kept == {f"{n:05}" for n in range(4)[-(keep or 4) :]}
    (place,) = (tmp_path / "cache" / "stream").glob(f"*/{harmed}")
    place.write_text("?")
    (tmp_path / "out" / "results.json").unlink()
    (tmp_path / "calls").unlink()
    pbr_jax.run(config, tmp_path / "out")
    assert content(tmp_path / "cache") == wanted
    again = {"states": ["learn 3"], "observed": ["observe 2"], "blocks": [] if keep != 1 else ["learn 3"]}
    assert (tmp_path / "calls").read_text().splitlines() == [*again[harmed.split("/")[0]], "report 4"]


@pytest.mark.long
def test_a_run_that_is_killed_ends_as_one_that_was_not(
    file: Path, told: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pbr_jax.run(override(load(file).config, told), tmp_path / "whole")
    wanted = content(tmp_path / "cache")
    cache, draw = tmp_path / "killed", random.Random(SEED)
    place = f"{draw.choice(['observed', 'states', 'blocks'])}/{draw.randrange(4):05}*"
    kill_once(lambda: bool(list(cache.glob(f"stream/*/{place}"))), file, told, cache, tmp_path / "out")
    monkeypatch.setenv("PBR_JAX_CACHE", str(cache))
    pbr_jax.run(override(load(file).config, told), tmp_path / "out")
    assert content(cache) == wanted, f"seed {SEED}, {place}"
    assert same_files(tmp_path / "out", tmp_path / "whole")


def test_a_frozen_system_has_the_same_folds(file: Path, told: dict[str, Any], tmp_path: Path):
    learned = pbr_jax.run(override(load(file).config, {**told, "stream.folds": 2}), tmp_path / "out")
    del told["retrieve.calls"]
    frozen = override(Config(), {**told, "retrieve.method": "recency", "stream.protocol": "cross_users",
                                 "stream.folds": 2})  # fmt: skip
    found = pbr_jax.run(frozen, tmp_path / "frozen")
    assert [line["block"] for line in found.records()] == [line["block"] for line in learned.records()]
    assert "learned" not in found.values


def test_a_learner_with_a_corpus_of_its_own_is_refused(file: Path, told: dict[str, Any], tmp_path: Path):
    own = "    def corpus(self, store, state):\n        return Store(store._path)\n\n    def told"
    code = OTHERS.replace("    def told", own).replace(
        "import numpy", "from pbr_jax.corpus.store import Store\nimport numpy"
    )
    file.write_text(code)
    with pytest.raises(UserError, match=r"a method keeps a corpus of its own, .*; take prequential"):
        pbr_jax.run(override(load(file).config, told), tmp_path / "out")

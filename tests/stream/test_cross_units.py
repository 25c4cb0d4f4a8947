"""Folds of units: what is trained on questions answers no question that it was trained on."""

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stream_worlds import (
    FOUR,
    SEED,
    WORDS,
    as_flags,
    documents,
    folds_of,
    kill_once,
    lines,
    read_lamp,
    same_files,
    write_four_users,
    write_lamp,
)

import pbr_jax
from pbr_jax.base.types import Document, Example
from pbr_jax.cli.main import main
from pbr_jax.config import Config, load, override
from pbr_jax.corpus.store import Store, build
from pbr_jax.stages.folds import Fold
from pbr_jax.stages.rankings import Questions

TRAINED = '''
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from pbr_jax.config import Config
from pbr_jax.graph import Stage
from pbr_jax.methods.retrieve.scored import scored
from pbr_jax.options import Retrieve, Stream
from pbr_jax.stages.rankings import Questions


@dataclass(frozen=True, kw_only=True)
class Counted(Retrieve):
    """Documents whose words were frequent in the answers of training questions."""

    training_split: ClassVar = "needed"
    method: Literal["counted"] = "counted"

    def needs(self, run):
        run.learns_from_others("counted")
        asked = Questions(training=True, sample=run.config.feedback.limit, seed=run.config.seed)
        counts = Stage("counts", (asked,), {"store": run.data}, count, read)
        return {"store": run.data, "counts": counts}

    def slot(self, tally, *, store, counts):
        def score(example, query, rows):
            texts = [document.text.split() for document in store.documents(rows)]
            return np.array([sum(counts.get(word, 0) for word in text) for text in texts], float)

        return scored(store, self.k, score)


def count(folder, asked, *, store):
    words = Counter(word for example in asked.read(store) for word in example.target.split())
    (folder / "counts.json").write_text(json.dumps(words))


def read(folder):
    return json.loads((folder / "counts.json").read_text())


def get_config():
    return Config(system="counted", collaboration="signals", retrieve=Counted(k=3),
                  stream=Stream(protocol="cross_units"))
'''

pytestmark = pytest.mark.usefixtures("fresh_cache")


@pytest.fixture
def told(tmp_path: Path) -> dict[str, Any]:
    return write_four_users(tmp_path / "data")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "trained.py"
    path.write_text(TRAINED)
    return path


def by_hand(folds: list[set[int]], data: Path, chosen: set[str] | None = None) -> dict[str, list[str]]:
    """The documents of each question, from the words of the other folds' targets, or of those `chosen`."""
    questions, targets = read_lamp(data)
    found = {}
    for question in questions:
        (own,) = (fold for fold in folds if question["user_id"] in fold)
        counts = Counter(
            word
            for other, target in zip(questions, targets, strict=True)
            if other["user_id"] not in own and (chosen is None or other["id"] in chosen)
            for word in target.split()
        )
        ranked = sorted(question["profile"], key=lambda t: -sum(counts[w] for w in t["text"].split()))
        found[question["id"]] = [tweet["id"] for tweet in ranked[:3]]
    return found


def by_id(out: Path) -> dict[str, list[str]]:
    return dict(zip((line["id"] for line in lines(out)), documents(out), strict=True))


def test_each_user_is_ranked_by_what_the_others_taught(file: Path, told: dict[str, Any], tmp_path: Path):
    found = pbr_jax.run(override(load(file).config, told), tmp_path / "out").values
    assert by_id(tmp_path / "out") == by_hand([{user} for user in range(4)], tmp_path / "data")
    assert [line["id"] for line in lines(tmp_path / "out")] == [f"q{i}" for i in range(len(FOUR))]
    assert [line["block"] for line in lines(tmp_path / "out")] == FOUR
    (note,) = [note for note in found["notes"] if "cross_units" in note]
    assert "4 folds of whole units" in note
    assert "7 to 8 of them" in note
    assert found["counts"]["examples"] == len(FOUR)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_folds_partition_the_units(seed: int, file: Path, told: dict[str, Any], tmp_path: Path):
    pbr_jax.run(override(load(file).config, {**told, "stream.folds": 2, "seed": seed}), tmp_path / "out")
    folds = folds_of(tmp_path / "out", 2)
    assert [len(fold) for fold in folds] == [2, 2]
    assert set().union(*folds) == {*range(4)}
    assert by_id(tmp_path / "out") == by_hand(folds, tmp_path / "data")


def test_a_limit_draws_the_same_questions_for_all_folds(file: Path, told: dict[str, Any], tmp_path: Path):
    pbr_jax.run(override(load(file).config, {**told, "feedback.limit": 4}), tmp_path / "out")
    order = [f"q{i}" for i in np.random.default_rng([0, 3]).permutation(len(FOUR))]
    found = by_id(tmp_path / "out")
    for user in range(4):
        others = [id for id in order if FOUR[int(id[1:])] != user][:4]
        wanted = by_hand([{user}, {*range(4)} - {user}], tmp_path / "data", set(others))
        assert all(found[id] == wanted[id] for id in found if FOUR[int(id[1:])] == user)


def test_the_targets_of_a_fold_move_the_other_folds_alone(file: Path, told: dict[str, Any], tmp_path: Path):
    config = override(load(file).config, told)
    pbr_jax.run(config, tmp_path / "before")
    questions, targets = read_lamp(tmp_path / "data")
    changed = ["w0 w1 w0" if q["user_id"] == 2 else t for q, t in zip(questions, targets, strict=True)]
    write_lamp(tmp_path / "data", questions, changed)
    pbr_jax.run(config, tmp_path / "after")
    before, after = ({line["id"]: line for line in lines(tmp_path / name)} for name in ("before", "after"))
    own = [f"q{i}" for i, user in enumerate(FOUR) if user == 2]
    assert all(before[id]["documents"] == after[id]["documents"] for id in own)
    assert any(before[id]["documents"] != after[id]["documents"] for id in before if id not in own)


def test_new_questions_are_answered_by_what_all_units_taught(
    file: Path, told: dict[str, Any], tmp_path: Path
):
    pbr_jax.run(override(load(file).config, told), tmp_path / "out")
    made = len([*tmp_path.glob("cache/counts/*/counts.json")])
    system = pbr_jax.open(tmp_path / "out")
    example = next(iter(system.store.examples()))
    new = Example(id="new", user_id=example.user_id, query=example.query, input=example.query, target=None)
    ((*ranking,),) = system.rank([new])
    questions, targets = read_lamp(tmp_path / "data")
    counts = Counter(word for target in targets for word in target.split())
    ranked = sorted(questions[0]["profile"], key=lambda t: -sum(counts[w] for w in t["text"].split()))
    assert [candidate.document.id for candidate in ranking] == [tweet["id"] for tweet in ranked[:3]]
    assert len([*tmp_path.glob("cache/counts/*/counts.json")]) == made + 1
    system.add(example.user_id, [Document(id="added", user_id=example.user_id, text=" ".join(WORDS * 2))])
    assert system.rank([new])[0][0].document.id == "added"
    system.forget(example.user_id)


def test_the_runs_own_questions_are_ranked_by_what_the_other_folds_taught(
    file: Path, told: dict[str, Any], tmp_path: Path
):
    pbr_jax.run(override(load(file).config, told), tmp_path / "out")
    made = len([*tmp_path.glob("cache/counts/*/counts.json")])
    system = pbr_jax.open(tmp_path / "out")
    examples = [*system.store.examples()]
    wanted = by_hand([{user} for user in range(4)], tmp_path / "data")

    def ids(questions: list[Example]) -> list[list[str]]:
        return [[candidate.document.id for candidate in ranking] for ranking in system.rank(questions)]

    assert ids(examples) == [wanted[example.id] for example in examples]
    assert len([*tmp_path.glob("cache/counts/*/counts.json")]) == made  # nothing is trained for these
    mixed = [examples[3], replace(examples[3], id=""), examples[0]]
    first, _, last = ids(mixed)
    assert (first, last) == (wanted[examples[3].id], wanted[examples[0].id])
    assert len([*tmp_path.glob("cache/counts/*/counts.json")]) == made + 1  # for the new one in the middle
    system.add("2", [Document(id="added", user_id="2", text=" ".join(WORDS * 2))])
    assert ids([examples[3]]) == [first]  # a stored question sees the history that its data gave it


def test_a_fold_sees_what_its_store_sees(tmp_path: Path):
    def document(user: str, i: int) -> Document:
        return Document(id=f"{user}{i}", user_id=user, text=f"{user} {i}", time=float(i))

    examples = [
        Example(id=f"{user}{i}", user_id=user, query="q", input="q", target="t", time=float(i),
                profile=tuple(document(user, j) for j in range(i)), unit=user[0])
        for user in ("ax", "ay", "b", "c") for i in (1, 2, 3)
    ]  # fmt: skip
    build(tmp_path / "store.sqlite", examples)
    store = Store(tmp_path / "store.sqlite")
    view = Fold([e.id for e in examples if e.unit == "a"], store=store)
    asked, learned = [*view.examples()], [*view.examples(training=True)]
    assert [e.id for e in asked] == [e.id for e in examples[:6]]
    assert [e.id for e in learned] == [e.id for e in examples[6:]]
    assert all(e.training for e in learned)
    assert (view.summary.examples, view.summary.training) == (6, 6)
    assert view.asked(training=True).tolist() == [False] * 6 + [True] * 6
    assert len(view.near_targets) == 6
    assert view.content != store.content
    assert view.rows == store.rows
    for example, whole in zip([*asked, *learned], store.examples(), strict=True):
        for user in (example.user_id, "b"):
            assert view.visible(example, user).tolist() == store.visible(whole, user).tolist()
    assert [e.id for e in Questions(training=True, sample=6).read(view)] == [e.id for e in learned]
    few = Questions(training=True, sample=3, seed=4)
    assert few.count(view) == len([*few.read(view)]) == 3


def test_what_is_not_trained_has_the_same_folds(file: Path, told: dict[str, Any], tmp_path: Path):
    pbr_jax.run(override(load(file).config, {**told, "stream.folds": 2}), tmp_path / "out")
    flags = {"retrieve.method": "recency", "stream.protocol": "cross_units", "stream.folds": 2}
    found = pbr_jax.run(override(Config(), {**told, **flags}), tmp_path / "plain")
    assert [line["block"] for line in found.records()] == [line["block"] for line in lines(tmp_path / "out")]
    assert not any("cross_units" in note for note in found.values["notes"])


def test_a_run_that_is_killed_in_a_fold_ends_as_one_that_was_not(
    file: Path, told: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pbr_jax.run(override(load(file).config, told), tmp_path / "whole")
    cache, wait = tmp_path / "killed", random.Random(SEED).randrange(1, 5)
    kill_once(lambda: len([*cache.glob("rank/*/stage.json")]) >= wait, file, told, cache, tmp_path / "out")
    monkeypatch.setenv("PBR_JAX_CACHE", str(cache))
    pbr_jax.run(override(load(file).config, told), tmp_path / "out")
    assert same_files(tmp_path / "out", tmp_path / "whole"), SEED


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--limit", "1"], "the questions are of 1 user or units; want at least 2"),
        (["--stream.keep", "1"], "stream.protocol cross_units keeps no states"),
        (["--limit_training", "5"], "stream.protocol cross_units takes no training split"),
        (["--collaboration", "none"], "counted learns from other users' histories"),
        (["--retrieve.method", "luf"], "retrieve.method luf learns from a stream"),
    ],
)
def test_bad_combinations_end_in_one_line(
    flags: list[str],
    error: str,
    file: Path,
    told: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    assert main(["run", str(file), *as_flags(told), *flags, "--out", str(tmp_path / "out")]) == 2
    (line,) = [one for one in capsys.readouterr().err.splitlines() if one.startswith("pbr-jax: error")]
    assert error in line

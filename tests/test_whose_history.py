"""Two people of one name never share a history: not in a run, not in `ask`, not as neighbours."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pbr_jax import Config, ask, run
from pbr_jax.cli.main import main
from pbr_jax.config import override
from pbr_jax.experiment.plan import Plan

SMALL = {"prompt.max_tokens": 500, "generate.max_new_tokens": 2, "eval.resamples": 20, "retrieve.k": 9}

pytestmark = pytest.mark.usefixtures("fresh_cache")


@pytest.fixture
def config(tiny_models) -> Callable[..., Config]:
    def made(root: Path, **fields: Any) -> Config:
        place = {"benchmark.name": "lamp_7", "benchmark.root": str(root)}
        place |= {"encoder.model": tiny_models["encoder.model"], "llm.model": tiny_models["llm.model"]}
        return override(Config(), {**place, **SMALL, **fields})

    return made


OTHERS = {"collaboration": "text", "neighbours.method": "mean", "neighbours.m": 3}


@pytest.mark.long
@pytest.mark.parametrize("training", ["dev", "train"])
def test_one_question_id_in_two_splits_is_two_people(
    config: Callable[..., Config], write_tweets, tmp_path: Path, training: str
):
    """User-split data: question 61 of the evaluated split and question 61 of the training split."""
    write_tweets({"61": ["SECRET tea"], "62": ["SECRET too"]}, training)
    root = write_tweets({"61": ["my own cats"], "63": []}, "test")
    place = {"benchmark.split": "test", "benchmark.training": training}
    results = run(config(root, **place, **OTHERS, **{"generate.method": "none"}), tmp_path / "out")
    for record in results.records():
        own = [d for d in record["documents"] if d["user_id"] == record["user_id"]]
        assert len(own) == (record["id"] == "61")
    owners = {d["user_id"] for record in results.records() for d in record["documents"]}
    assert {f"{training}/61", f"{training}/62"} <= owners
    alone = run(config(root, **place), tmp_path / "alone")
    assert [len(record["documents"]) for record in alone.records()] == [1, 0]
    # A run with neighbours has both people in its store; the one who is asked for is the evaluated one.
    answer = ask(tmp_path / "out", "61", "what do i like")
    own = [c.document.text for c in answer.documents if c.document.user_id == "61"]
    assert own == ["my own cats"]
    texts = (tmp_path / "alone" / "texts.jsonl").read_text()
    assert "SECRET" not in texts


def ended(root: Path, out: Path) -> int:
    place = ["--benchmark.name", "lamp_7", "--benchmark.root", str(root)]
    return main(["run", "bm25", *place, "--generate.method", "none", "--out", str(out)])


def test_an_id_that_looks_like_a_training_users_is_refused(
    config: Callable[..., Config], write_tweets, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    write_tweets({"61": ["SECRET tea"]}, "train")
    root = write_tweets({"train/61": ["my own cats"]})
    assert ended(root, tmp_path / "out") == 2
    told = capsys.readouterr().err
    assert "train/61" in told.splitlines()[-1]
    assert "dev_questions.json" in told.splitlines()[-1]
    assert not (tmp_path / "out" / "results.json").exists()


def test_ids_that_would_become_one_are_refused(
    config: Callable[..., Config], write_tweets, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Half a surrogate pair cannot be written down; replaced by a question mark two people would be one."""
    root = write_tweets({"one": ["SECRET tea"], "two": ["my own cats"]})
    for name in ("dev_questions.json", "dev_outputs.json"):
        text = (root / name).read_text().replace('"one"', '"u\\ud800"').replace('"two"', '"u\\ud801"')
        json.loads(text)
        (root / name).write_text(text)
    assert ended(root, tmp_path / "out") == 2
    assert "surrogate" in capsys.readouterr().err.splitlines()[-1]


def test_the_user_encoder_reads_no_document_that_is_younger_than_a_question(
    config: Callable[..., Config], tmp_path: Path
):
    """Time-split data: later documents of a user tell the answers of the user's earlier questions."""
    root = tmp_path / "news"
    root.mkdir()
    articles = [
        {"id": f"d{i}", "text": f"text {i}", "title": f"title {i}", "date": f"2015-0{i + 1}-01"}
        for i in range(6)
    ]
    questions = [
        {"id": f"q{i}", "user_id": "ann", "input": f"Generate a headline for the following article: text {i}",
         "profile": articles[:i], "date": articles[i]["date"]}
        for i in (2, 4)
    ]  # fmt: skip
    golds = [{"id": f"q{i}", "output": f"title {i}"} for i in (2, 4)]
    for split in ("train", "dev"):
        (root / f"{split}_questions.json").write_text(json.dumps(questions if split == "dev" else []))
        (root / f"{split}_outputs.json").write_text(
            json.dumps({"task": "LaMP_4", "golds": golds if split == "dev" else []})
        )
    plan = Plan(config(root, **{"benchmark.name": "lamp_4", "benchmark.training": "none"}))
    store = plan.data.value
    learned = [d.fields["title"] for d in store.documents(store.training_rows("ann"))]
    assert learned == ["title 0", "title 1"]
    targets = {e.target for e in store.examples()}
    assert not targets & set(learned)

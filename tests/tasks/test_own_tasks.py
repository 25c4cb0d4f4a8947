"""A task of one's own on data in a benchmark's format: what a run shows, scores and keeps."""

import json
import re
import tomllib
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from pbr_jax import Config, data, run
from pbr_jax.base.types import Document, UserError
from pbr_jax.config import override
from pbr_jax.eval.metrics import text_metric
from pbr_jax.eval.report import report
from pbr_jax.experiment.plan import Plan
from pbr_jax.graph.lists import stages
from pbr_jax.tasks import METRICS, Task, load, released
from pbr_jax.text.answers import parse_answer
from pbr_jax.text.prompts import record

VERDICTS = """\
title = "Verdicts"
kind = "classification"
metrics = ["f1_macro", "accuracy"]
labels = ["1", "2"]
fields = ["text", "score"]

[spellings]
poor = "1"

[prompt.own]
history = "Verdicts of {who}:"
document = ["claim: {text}", "verdict: {score}"]
instruction = "Judge the next claim likewise."
cue = "verdict:"
"""
TARGETS = {"ann": "1", "bob": "2", "cyd": "2"}


@pytest.fixture
def config(tiny_models, tmp_path: Path) -> Callable[..., Config]:
    """A run over three users in LaMP-3's format, whose folder holds a task."""

    def made(**fields: Any) -> Config:
        root = tmp_path / "data"
        root.mkdir(exist_ok=True)
        questions = [
            {"id": user, "input": f"The claim. review: tea of {user}",
             "profile": [{"id": f"{user}{i}", "text": f"tea {i}", "score": "2"} for i in range(2)]}
            for user in TARGETS
        ]  # fmt: skip
        golds = [{"id": user, "output": target} for user, target in TARGETS.items()]
        (root / "dev_questions.json").write_text(json.dumps(questions))
        (root / "dev_outputs.json").write_text(json.dumps({"task": "LaMP_3", "golds": golds}))
        if not (root / "task.toml").exists():
            (root / "task.toml").write_text(VERDICTS)
        place = {"benchmark.name": "lamp_3", "benchmark.root": str(root), "prompt.max_tokens": 900}
        return override(Config(), {**place, **tiny_models, "eval.resamples": 50, **fields})

    return made


def edited(config: Config, before: str, after: str) -> None:
    path = Path(config.benchmark.root, "task.toml")
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))


def test_a_run_follows_the_folders_task(config: Callable[..., Config], tmp_path: Path) -> None:
    wanted = config(**{"generate.method": "label", "retrieve.method": "recency"})
    results = run(wanted, tmp_path / "out")
    assert set(results.metrics) >= {"f1_macro", "accuracy"}
    assert {record["prediction"] for record in results.records()} <= {"1", "2"}
    right = [record["prediction"] == TARGETS[record["id"]] for record in results.records()]
    assert results.metrics["accuracy"] == pytest.approx(sum(right) / 3)
    for text in (tmp_path / "out" / "texts.jsonl").read_text().splitlines():
        message = json.loads(text)["prompt"][-1]
        assert message["content"].startswith("Verdicts of this user:\n")
        assert "claim: tea 0\nverdict: 2" in message["content"]
        assert "\nJudge the next claim likewise.\n\nThe claim. review: tea of " in message["content"]
        assert message["content"].endswith("\nverdict:")
    told = report([tmp_path / "out"])
    assert "## Verdicts, dev" in told
    assert told.index("f1_macro") < told.index("accuracy")  # in the task's order

    edited(wanted, 'title = "Verdicts"', "max_new_tokens = 3")  # which nothing here reads
    assert run(wanted, tmp_path / "out").values == results.values
    edited(wanted, '["f1_macro", "accuracy"]', '["accuracy"]')
    with pytest.raises(UserError, match="task"):
        run(wanted, tmp_path / "out")


CHANGES = [
    ("Judge the next claim likewise.", "Judge.", "likelihood generate"),
    ("claim: {text}", "text: {text}", "likelihood generate scores"),
    ('title = "Verdicts"', "max_new_tokens = 3", "generate"),
    ('title = "Verdicts"', 'title = "Claims"', ""),
    ('"f1_macro", "accuracy"', '"accuracy"', "scores"),
    ('poor = "1"', 'weak = "1"', "scores"),
    (
        "[prompt.own]",
        '[prompt.lamp]\nhistory = ""\ndocument = ["{text}"]\ninstruction = ""\n[prompt.own]',
        "",
    ),
]


@pytest.mark.parametrize(("before", "after", "moved"), CHANGES)
def test_an_edit_moves_what_reads_it(config: Callable[..., Config], before: str, after: str, moved: str):
    wanted = config(**{"generate.method": "ipa", "eval.likelihood": "on"})

    def keys() -> dict[str, str]:
        plan = Plan(wanted)
        return {label: stage.key for label, stage in stages(plan.last).items()} | {
            "scores": plan.identity["task"]
        }

    old = keys()
    assert {"data", "embed", "rank", "generate", "likelihood"} <= old.keys()
    edited(wanted, before, after)
    new = keys()
    assert {label for label in old if old[label] != new[label]} == set(moved.split())


def test_the_field_that_plays_the_answer_is_the_datas(config: Callable[..., Config]) -> None:
    wanted = config(**{"retrieve.method": "recency"})
    assert Plan(wanted).data.value.summary.targets_in_history == 0
    edited(wanted, 'title = "Verdicts"', 'document_target = "score"')
    assert Plan(wanted).data.value.summary.targets_in_history == 2  # whose targets are 2


def test_feedback_follows_the_tasks_first_metric_and_its_answers(config: Callable[..., Config]) -> None:
    wanted = config(collaboration="signals", limit_training=3, **{"retrieve.method": "tuned"})
    root = Path(wanted.benchmark.root)
    for part in ("questions", "outputs"):
        (root / f"train_{part}.json").write_bytes((root / f"dev_{part}.json").read_bytes())
    edited(wanted, '"f1_macro", "accuracy"', '"accuracy"')

    def key() -> str:
        return stages(Plan(wanted).last)["feedback_retriever"].key

    old = key()
    edited(wanted, 'title = "Verdicts"', 'title = "Claims"')
    assert key() == old
    edited(wanted, 'poor = "1"', 'weak = "1"')
    assert key() != old


def test_a_scale_of_ten_is_read_and_scored_as_one() -> None:
    labels = tuple(map(str, range(1, 11)))
    task = replace(released("lamp_3"), labels=labels)
    read = [parse_answer(task.answers, text) for text in ("8 of 10", "11, or 10", "0.5", "it was 7.5")]
    assert read == ["8", "10", "0.5", "7.5"]
    errors = text_metric("mae", labels).statistics(["8", "nothing"], ["9", "4"])[:, 0]
    assert errors.tolist() == [1.0, 6.0]  # no number is as wrong as can be: 10 for 4


def test_spellings_count_where_no_label_stands() -> None:
    task = replace(released("lamp_2"), spellings=(("science fiction", "sci-fi"), ("funny", "comedy")))
    texts = ("Funny.", "funny, but an action", "Science-Fiction")
    read = [parse_answer(task.answers, text) for text in texts]
    assert read == ["comedy", "action", "sci-fi"]


def test_the_example_of_the_docs_is_a_whole_task(config: Callable[..., Config]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "data_format.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    wanted = config(**{"benchmark.name": "lamp_4", "prompt.form": "lamp"})
    path = Path(wanted.benchmark.root, "task.toml")
    path.write_text(example, encoding="utf-8")
    task = load(path)  # of its own, without a benchmark's
    assert {item.name for item in fields(Task)} - set(tomllib.loads(example)) == {"name", "answer"}
    assert task.wording("lamp").entries == "sentences"
    document = Document("d", "u", "The screen is dark", {"title": "repair"})
    assert record(task.wording("own"), document) == "ticket: The screen is dark\ndecision: repair"
    assert record(task.wording("lamp"), document) == '"repair" on the ticket "The screen is dark"'
    assert parse_answer(task.answers, "Give the money back.") == "refund"
    assert replace(data.task(wanted.benchmark), name=task.name) == replace(task, answer="line")
    assert all(f"`{name}" in page for names in METRICS.values() for name in names)

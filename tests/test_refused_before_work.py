"""What config and data alone tell is told before any work: by `--dry`, `--cost`, run and `data validate`."""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pbr_jax import data
from pbr_jax.base.types import UserError
from pbr_jax.cli.main import main
from pbr_jax.config import Benchmark, Config, override
from pbr_jax.experiment.plan import Plan
from pbr_jax.methods.select import Purple
from pbr_jax.tasks.scoring import MOST_COMBINATIONS

Keys = Mapping[str, Any] | Callable[[int], Mapping[str, Any]]
RETRIEVAL = 'kind = "retrieval"\nmetrics = ["recall@1"]\n'
CHOICE = 'kind = "choice"\nmetrics = ["accuracy"]\n'
LABELS = 'kind = "classification"\nmetrics = ["accuracy"]\nlabels = ["tea", "cats"]\n'
RATING = 'kind = "rating"\nmetrics = ["mae"]\nlabels = ["1", "2"]\n'
DIALOGUE = 'kind = "dialogue"\nmetrics = ["jga"]\n'
TUNED = {"retrieve.method": "tuned", "retrieve.alpha": 0.0, "collaboration": "signals"}
GENERATOR = {"generator.method": "lora", "collaboration": "signals"}
LUF = {"retrieve.method": "luf", "stream.size": 4, "retrieve.update.batch_size": 2,
       "encoder.normalize": "yes"}  # fmt: skip
WEIGHTED = {"retrieve.method": "fused", "retrieve.how": "weighted", "collaboration": "signals"}


def write(root: Path, dev: Keys | None, train: Keys | None, task: str, documents: int) -> None:
    """Four users with a question in each split; None: the split has no questions."""
    own = [{"id": f"d{d}", "user": f"u{u}", "text": "tea day"} for u in range(4) for d in range(documents)]
    lines = {"documents": own}
    for split, keys in (("dev", dev), ("train", train)):
        lines[split] = [
            {"id": f"{split}{u}", "user": f"u{u}", "input": "about?", "target": "tea"}
            | dict(keys(u) if callable(keys) else keys)
            for u in range(4)
            if keys is not None
        ]
    for name, records in lines.items():
        told = ({key: value for key, value in record.items() if value is not None} for record in records)
        (root / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in told))
    (root / "task.toml").write_text(task)


def third(**keys: Any) -> Callable[[int], Mapping[str, Any]]:
    """Keys of the third question alone."""
    return lambda user: keys if user == 2 else {}


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no relevant documents": ({"task": RETRIEVAL}, {}, "no relevant documents of 4 of 4 scored"),
    "a group of none": ({"task": RETRIEVAL, "dev": {"relevant": [[]]}}, {}, "'dev0': found an empty group"),
    "a label unknown": ({"task": LABELS, "dev": third(target="milk")}, {}, "'dev2': found the target 'milk'"),
    "no number": ({"task": RATING}, {}, "'dev0': found the target 'tea', wanted a number"),
    "no state": ({"task": DIALOGUE}, {}, "'dev0': found no reference of the dialogue state"),
    "options": ({"task": CHOICE, "dev": {"options": ["tea", "a  b", "a b"]}}, {}, "'dev0' has equal options"),
    "no options": ({"task": CHOICE}, {}, "'dev0' has 0 options"),
    "no question": ({"dev": None}, {}, "found no question in the split dev"),
    "no training question": ({"train": None}, TUNED, "found no question in the split train"),
    "feedback": ({"train": {"target": None}}, TUNED, "question has a target, and feedback for the"),
    "feedback's labels": ({"task": LABELS, "train": third(target="x")}, TUNED, "'train2': found the target"),
    "generator": ({"train": {"target": None}}, GENERATOR, "question has a target, and the generator"),
    "no documents": ({"documents": 0}, GENERATOR, "training prompts, and no training question has"),
    "users": (
        {"documents": 0},
        {"neighbours.method": "contrastive", "neighbours.m": 2, "collaboration": "text"},
        "the user encoder learns from users' documents, and the data has none",
    ),
    "policy": (
        {"train": {"target": None}},
        {"select": Purple(k=2, num_layers=1, num_heads=2), "retrieve.k": 3, "collaboration": "signals"},
        "no training question has a target, and select.method purple",
    ),
    "weights": ({"task": RETRIEVAL, "dev": {"relevant": ["d0"]}}, WEIGHTED, "no training question names any"),
    "no shared documents": ({}, {**LUF, "collaboration": "signals"}, "labels on shared documents"),
    "gold": ({}, {**LUF, "collaboration": "text", "retrieve.labels.kind": "gold"}, "kind is gold, and"),
    "answer": (
        {"dev": {"target": None}},
        {**LUF, "collaboration": "text", "retrieve.labels.kind": "answer"},
        "kind is answer, and no question has one",
    ),
    "oracle": ({"dev": {"target": None}}, {"select.method": "oracle"}, "'dev0' has none; take a split"),
    "judge": ({}, {"select.method": "multi_level", "select.judge": "oracle"}, "'dev0' has none, as have"),
    "context": ({}, {"llm.context": 10**6}, "llm.context is 1000000"),
    "beams": (
        {},
        {"llm.url": "http://127.0.0.1:1/v1", "llm.backend": "http", "generate.num_beams": 2},
        "generate.num_beams is 2, but of servers",
    ),
}  # fmt: skip


@pytest.fixture
def config(tiny_models: dict[str, str], tmp_path: Path) -> Callable[..., Config]:
    def made(told: Mapping[str, Any], fields: Mapping[str, Any]) -> Config:
        write(tmp_path, **{"dev": {}, "train": {}, "task": "", "documents": 3, **told})
        known = {"benchmark.name": "own", "benchmark.root": str(tmp_path), "retrieve.method": "bm25"}
        return override(Config(), {**known, **tiny_models, **fields})

    return made


@pytest.mark.parametrize("name", CASES)
def test_a_plan_is_refused_in_one_line(name: str, config: Callable[..., Config]):
    told, fields, message = CASES[name]
    wrong = config(told, fields)
    with pytest.raises(UserError, match=message) as error:
        Plan(wrong).check()
    assert "\n" not in str(error.value)


def test_what_is_whole_is_accepted(config: Callable[..., Config]):
    gold = {"relevant": ["d0", ["d1", "d2"]]}
    for told, fields in (
        ({}, {}),
        ({"task": RETRIEVAL, "dev": gold}, {}),
        ({"task": RETRIEVAL, "dev": gold, "train": gold}, WEIGHTED),
        ({"task": LABELS}, TUNED),
        ({"dev": {"target": None}}, {}),  # all are withheld
        ({"train": {"target": None}}, {}),  # nothing learns
    ):
        Plan(config(told, fields)).check()


def test_scann_is_looked_for_where_it_searches(
    config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
):
    wanted = {"neighbours.method": "mean", "neighbours.m": 2, "neighbours.index": "scann"}
    plan = Plan(config({}, {**wanted, "collaboration": "text"}))
    monkeypatch.setitem(sys.modules, "scann.scann_ops.py", None)
    with pytest.raises(UserError, match="ScaNN cannot be imported"):
        plan.check()


def test_released_expansions_are_looked_for_of_all_questions(config: Callable[..., Config], tmp_path: Path):
    file = tmp_path / "released.json"
    told = {"utterances": ["tea"], "reasoning": ""}
    file.write_text(json.dumps({f"dev{user}": told for user in range(3)}))
    plan = Plan(config({}, {"expand.method": "pbr", "expand.released": str(file)}))
    with pytest.raises(UserError, match="no expansion for question 'dev3'"):
        plan.check()


@pytest.mark.parametrize("words", [["--dry"], ["--dry", "--cost"], ["--out"]])
def test_commands_refuse_before_anything_is_ranked(
    words: list[str],
    config: Callable[..., Config],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
):
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "cache"))
    made = config({"task": RETRIEVAL}, {})
    words = [*words, *([str(tmp_path / "out")] * (words == ["--out"]))]
    flags = ["--benchmark.name", "own", "--benchmark.root", made.benchmark.root]
    assert main(["run", "bm25", *flags, *words]) == 2
    told = capfd.readouterr()
    assert told.out == ""
    assert "found no relevant documents of 4 of 4 scored questions" in told.err.splitlines()[-1]
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()] == ["data"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"task": RETRIEVAL}, "split dev: found no relevant documents of 4 of 4 scored questions"),
        (
            {"task": RETRIEVAL, "dev": {"relevant": [["d0", "d1", "d2"]] * 9}},
            f"most {MOST_COMBINATIONS} comb",
        ),
        ({"task": LABELS, "train": third(target="milk")}, "'train2': found the target 'milk', wanted one of"),
        (
            {"task": RATING, "dev": {"target": "tea"}, "train": {"target": "1"}},
            "'dev0': found the target 'tea'",
        ),
    ],
)
def test_validation_says_what_cannot_be_scored(told: dict[str, Any], message: str, tmp_path: Path):
    write(tmp_path, **{"dev": {}, "train": {}, "task": "", "documents": 3, **told})
    with pytest.raises(UserError, match=message) as error:
        data.validate(Benchmark(name="own", root=str(tmp_path)))
    assert "\n" not in str(error.value)


def test_a_training_split_needs_no_relevant_documents(tmp_path: Path):
    write(tmp_path, {"relevant": ["d0"]}, {}, RETRIEVAL, 3)
    assert [split.relevant for split in data.validate(Benchmark(name="own", root=str(tmp_path)))] == [4, 0]

"""The synthetic world is in LaMP's format."""

import hashlib
import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pbr_jax.base.types import Example, UserError
from pbr_jax.cli.main import main
from pbr_jax.config import Benchmark, Config, override
from pbr_jax.data import read, validate
from pbr_jax.data.synthetic import generate
from pbr_jax.experiment.plan import Plan
from pbr_jax.methods import select

FILES = ["dev_outputs", "dev_questions", "train_outputs", "train_questions", "truth"]


def load(folder: Path, name: str):
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


# --- format ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", ["train", "dev"])
def test_format(tmp_path, split):
    generate(tmp_path)
    questions, outputs = load(tmp_path, f"{split}_questions"), load(tmp_path, f"{split}_outputs")
    assert outputs["task"] == "LaMP_4"
    ids = [question["id"] for question in questions]
    assert len(set(ids)) == len(ids)
    assert [gold["id"] for gold in outputs["golds"]] == ids
    assert all(gold["output"] for gold in outputs["golds"])
    for question in questions:
        assert set(question) == {"id", "user_id", "input", "date", "profile"}
        assert question["input"].count("article:") == 1
        names = [document["id"] for document in question["profile"]]
        assert len(set(names)) == len(names)
        assert question["id"] not in names
        for document in question["profile"]:
            assert set(document) == {"id", "text", "title", "date"}
            assert all(isinstance(value, str) and value for value in document.values())


@pytest.mark.parametrize("name", ["synthetic", "lamp_4"])
def test_the_readers_take_it(tmp_path, name):
    generate(tmp_path, users=30)
    summaries = validate(Benchmark(name=name, root=str(tmp_path)))
    assert [summary.split for summary in summaries] == ["train", "dev"]
    assert all(summary.undated == 0 and not summary.repairs for summary in summaries)
    questions = load(tmp_path, "dev_questions")
    for example, question in zip(read(Benchmark(name=name, root=str(tmp_path))), questions, strict=True):
        assert question["input"].endswith(example.query)
        assert example.time is not None
        assert all((document.time or math.inf) < example.time for document in example.profile)


# --- reproducible, bounded, checked ----------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments", [{"users": 0}, {"cohorts": 0}, {"follow": 1.2}, {"newcomers": 0.8, "cold": 0.4}]
)
def test_impossible_worlds_are_named(tmp_path, arguments):
    with pytest.raises(UserError, match=next(iter(arguments))):
        generate(tmp_path / "new", **arguments)
    assert not (tmp_path / "new").exists()


def test_an_unwritable_folder_is_named_and_nothing_is_left(tmp_path):
    (tmp_path / "truth.json").mkdir()
    with pytest.raises(UserError, match=str(tmp_path)):
        generate(tmp_path, users=2)
    assert not list(tmp_path.glob("*.tmp"))


@pytest.mark.parametrize("users", [1, 2, 10])
def test_small_worlds(tmp_path, users):
    generate(tmp_path, users=users, cohorts=1)
    assert {question["user_id"] for question in load(tmp_path, "dev_questions")} == set(range(users))


@pytest.mark.parametrize("name", ["dev_questions", "train_outputs", "truth"])
def test_nothing_that_exists_is_overwritten(tmp_path, name, capsys):
    generate(tmp_path / "same", users=12)
    generate(tmp_path / "same", users=12)  # the same bytes are no harm
    path = tmp_path / f"{name}.json"
    path.write_text("[]")
    with pytest.raises(
        UserError, match=r"found a file with other content, .* choose another folder"
    ) as error:
        generate(tmp_path, users=12)
    assert str(error.value).startswith(f"{path}: ")
    assert main(["data", "synthetic", "--out", str(tmp_path), "--users", "12"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == [path.name]
    assert path.read_text() == "[]"


# --- the page that describes the format ------------------------------------------------------------


def test_the_example_of_the_format_page_is_valid(tmp_path):
    page = (Path(__file__).parents[2] / "docs" / "reference" / "data_format.md").read_text(encoding="utf-8")
    own, questions, outputs, *_ = re.findall(r"```json\n(.*?)```", page, flags=re.DOTALL)
    (tmp_path / "documents.jsonl").write_text(own.replace("\n ", " "), encoding="utf-8")
    (tmp_path / "dev.jsonl").write_text('{"id": "t2", "user": "ann", "input": "?", "order": 1}')
    (summary,) = validate(Benchmark(name="own", root=str(tmp_path)))
    assert (summary.examples, summary.documents, summary.undated) == (1, 1, 0)
    (tmp_path / "dev_questions.json").write_text(questions, encoding="utf-8")
    (tmp_path / "dev_outputs.json").write_text(outputs, encoding="utf-8")
    (summary,) = validate(Benchmark(name="lamp_4", root=str(tmp_path)))
    assert (summary.examples, summary.users, summary.documents, summary.undated) == (1, 1, 2, 0)


HASHES = {  # of the world that recorded runs were made with
    "dev_outputs.json": "db4e6de3d202",
    "dev_questions.json": "c546796b7531",
    "train_outputs.json": "6d0b526194c4",
    "train_questions.json": "9353ca394193",
    "truth.json": "395c6f999f18",
}


def test_a_seed_gives_the_same_world_in_every_version(tmp_path):
    generate(tmp_path, seed=3, users=25)
    assert {p.name: hashlib.sha256(p.read_bytes()).hexdigest()[:12] for p in tmp_path.iterdir()} == HASHES


# -- the habits are where the world says, by plain counting ------------------------------------------


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Path:
    """Enough users for statistics."""
    folder = tmp_path_factory.mktemp("large")
    generate(folder, seed=7, users=400, cohorts=8)
    return folder


def majority(tags: list[str]) -> str:
    return Counter(tags).most_common(1)[0][0] if tags else ""


def rates(folder: Path) -> dict[tuple[str, str], float]:
    """How often a rule names the tag of the answer, by kind of user."""
    users = {user["user_id"]: user for user in load(folder, "truth")["users"]}
    truth = {name: entry for user in users.values() for name, entry in user["documents"].items()}
    asked = {gold["id"] for gold in load(folder, "dev_outputs")["golds"]}
    hits: dict[tuple[str, str], list[bool]] = {}
    for question in load(folder, "dev_questions"):
        user, wanted = users[question["user_id"]], truth[question["id"]]
        own = [truth[document["id"]] for document in question["profile"]]
        told: dict[bool, list[str]] = {True: [], False: []}
        for other in users.values():
            if other is not user:
                told[other["cohort"] == user["cohort"]] += [
                    entry["tag"]
                    for name, entry in other["documents"].items()
                    if entry["topic"] == wanted["topic"] and name not in asked
                ]
        rules = {
            "own": majority([entry["tag"] for entry in own if entry["topic"] == wanted["topic"]]),
            "latest": own[-1]["tag"] if own else "",
            "cohort": majority(told[True]),
            "elsewhere": majority(told[False]),
        }
        for rule, tag in rules.items():
            hits.setdefault((user["kind"], rule), []).append(tag == wanted["tag"])
    return {key: sum(values) / len(values) for key, values in hits.items()}


def test_long_histories_answer_for_themselves_and_short_ones_through_their_cohort(large):
    rate = rates(large)
    assert rate["regular", "own"] > 0.75
    assert rate["regular", "own"] > rate["regular", "cohort"] + 0.15  # own habits differ from the cohort's
    assert rate["regular", "own"] > rate["regular", "latest"] + 0.3  # the topic matters, not the date
    assert rate["newcomer", "own"] == rate["cold", "own"] == 0
    for kind in ("newcomer", "cold"):
        assert rate[kind, "cohort"] > 0.6
        assert rate[kind, "elsewhere"] < 0.3
        assert rate[kind, "latest"] < 0.15
    assert rate["regular", "own"] < 0.98  # habits are noisy
    assert rate["newcomer", "cohort"] < 0.95


# --- a run draws it --------------------------------------------------------------------------------


def test_the_seed_of_a_run_leaves_the_made_up_data_alone(fresh_cache: Path, weights: None):
    """Runs of several seeds ask the same questions; `benchmark.seed` draws others."""

    def asked(**fields: Any) -> list[Example]:
        return list(
            Plan(
                override(Config(select=select.TopK(k=2)), {"retrieve.method": "random", **fields})
            ).data.value.examples()
        )

    plain = asked()
    assert asked(seed=1) == plain
    assert asked(**{"benchmark.seed": 1}) != plain
    assert asked(**{"benchmark.seed": 1, "seed": 5}) == asked(**{"benchmark.seed": 1})
    learned = {"select.method": "purple", "collaboration": "signals", "benchmark.seed": 1}
    assert [(one.query, one.target) for one in asked(**learned)] == [
        (one.query, one.target) for one in asked(**{"benchmark.seed": 1})
    ]


def test_data_that_are_read_have_no_seed(tmp_path: Path):
    for name in ("synthetic", "lamp_7"):
        with pytest.raises(UserError, match=rf"benchmark\.seed is 1, and {name} is not drawn"):
            Benchmark(name=name, seed=1, root=str(tmp_path))

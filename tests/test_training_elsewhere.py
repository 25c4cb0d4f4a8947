"""What was learned on one data set is tested on another: `benchmark.training_root`, `training_name`."""

import json
from pathlib import Path
from typing import Any

import pytest

from pbr_jax.base.types import UserError
from pbr_jax.data import task
from pbr_jax.methods import retrieve
from pbr_jax.options import Benchmark
from pbr_jax.stages.data import Data, data

pytestmark = pytest.mark.usefixtures("fresh_cache")


def written(folder: Path, users: list[str], number: int, split: str, ask: str, output: str) -> Path:
    """Questions of users as a split of LaMP, each with a document."""
    folder.mkdir()
    questions = [
        {"id": f"q{user}", "user_id": user, "input": ask,
         "profile": [{"id": f"d{user}", "text": f"by {user}"}]}
        for user in users
    ]  # fmt: skip
    golds = [{"id": question["id"], "output": output} for question in questions]
    (folder / f"{split}_questions.json").write_text(json.dumps(questions))
    (folder / f"{split}_outputs.json").write_text(json.dumps({"task": f"LaMP_{number}", "golds": golds}))
    return folder


TWEET = "Paraphrase the following tweet without any explanation before or after it: hello"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    return written(tmp_path / "here", ["a", "b"], 7, "dev", TWEET, "hi")


def found(here: Path, **fields: Any) -> Data:
    benchmark = Benchmark(name="lamp_7", root=str(here), **fields)
    return data(
        benchmark, task(benchmark), [retrieve.Tuned()],
        limit=None, limit_training=None, limit_history=None,
    )  # fmt: skip


def test_training_questions_come_from_the_other_data_set(here: Path, tmp_path: Path):
    there = written(tmp_path / "there", ["c", "d", "e"], 7, "dev", TWEET, "hi")
    read = found(here, training_root=str(there), training="dev")
    store = read.node.value
    assert [example.user_id for example in store.examples()] == ["a", "b"]
    assert [example.user_id for example in store.examples(training=True)] == ["c", "d", "e"]
    assert read.hashes["training"] != read.hashes["data"]
    assert {document.user_id for document in store.documents(range(store.rows))} == set("abcde")


def test_another_data_set_is_another_key(here: Path, tmp_path: Path):
    keys = []
    for name, users in (("one", ["c", "d"]), ("two", ["c", "e"])):
        there = written(tmp_path / name, users, 7, "dev", TWEET, "hi")
        keys.append(found(here, training_root=str(there), training="dev").node.known_by)
    assert len({*keys}) == 2


def test_one_name_of_two_people_ends_in_one_line(here: Path, tmp_path: Path):
    there = written(tmp_path / "there", ["b", "c"], 7, "dev", TWEET, "hi")
    with pytest.raises(UserError, match=r"training question 'qb' is of user 'b', whose name"):
        _ = found(here, training_root=str(there), training="dev").node.value


def test_questions_of_another_kind_end_in_one_line(here: Path, tmp_path: Path):
    there = written(tmp_path / "there", ["c"], 3, "dev", "What is the score? review: good", "3")
    with pytest.raises(UserError, match="whose questions are of another kind"):
        found(here, training_root=str(there), training_name="lamp_3", training="dev")


def test_a_missing_split_of_the_other_root_is_named(here: Path, tmp_path: Path):
    there = written(tmp_path / "there", ["c"], 7, "dev", TWEET, "hi")
    with pytest.raises(UserError, match=r"there: found the splits dev, wanted 'train'"):
        found(here, training_root=str(there))

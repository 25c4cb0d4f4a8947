"""Baidu's WebQA: files in the format of its release, its evidences as passages, and faults."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from pbr_jax import data
from pbr_jax.base.types import Example, UserError
from pbr_jax.config import Benchmark
from pbr_jax.data import passages
from pbr_jax.data.question_sets import paragraph_id

CONFIGS = Path(__file__).parents[2] / "configs"


def evidence(text: str, answers: list[str] | None = None, type: str = "") -> dict[str, Any]:
    """With the keys of the release; texts are words with spaces between them."""
    golden = [answer.split() for answer in answers or ["no_answer"]]
    kind = type or ("positive" if answers else "other_negative")
    words = text.split()
    return {"e_key": f"e{len(text)}", "evidence_tokens": words, "golden_answers": golden, "type": kind,
            "source": "ANN", "golden_labels": ["o1"] * len(words), "q-e.comm_features": [0] * len(words),
            "eecom_features_list": []}  # fmt: skip


DREAM = evidence("《 红楼梦 》 的 作者 是 曹 雪芹 。", ["曹 雪芹"])
SAME = evidence("曹 雪芹 写 了 红楼梦", ["曹 雪芹", "曹雪芹 先生"])
OTHER = evidence("曹 雪芹 生 于 南京", type="hit_answer_negative")
PHONE = evidence("iPhone 4 S 是 Apple Inc. 的 手机", ["Apple Inc."])


def line(id: str, question: str, *evidences: dict[str, Any]) -> dict[str, Any]:
    return {"q_key": id, "question_tokens": question.split(), "evidences": list(evidences)}


LINES = [
    line("Q1", "谁 写 了 红楼梦 ?", OTHER, DREAM, SAME),
    line("Q2", "iPhone 4 S 是 谁 的 ?", PHONE, OTHER),
    line("Q3", "无 答案 吗 ?", OTHER),
]


def write(path: Path, lines: list[Any]) -> Path:
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()  # escapes, as the release has them
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def read(root: Path, **fields: Any) -> list[Example]:
    return list(data.read(Benchmark(name="web_qa", root=str(root), **fields)))


@pytest.mark.parametrize(
    "place", ["validation.ann.json.gz", "validation.ann.json", "data/validation.ann.json.gz"]
)
def test_questions_are_joined_words_with_the_answers_of_all_evidences(tmp_path: Path, place: str) -> None:
    write(tmp_path / place, LINES)
    first, second, third = read(tmp_path)
    assert (first.id, first.user_id, first.query) == ("Q1", "Q1", "谁写了红楼梦?")
    assert (first.target, first.alternatives) == ("曹雪芹", ("曹雪芹先生",))
    assert (second.query, second.target) == ("iPhone 4 S是谁的?", "Apple Inc.")
    assert (third.target, third.alternatives) == ("", ())
    assert {e.relevant for e in (first, second, third)} == {()}


def test_evidences_are_passages_once_and_positive_ones_are_relevant(tmp_path: Path) -> None:
    write(tmp_path / "validation.ann.json.gz", LINES)
    benchmark = Benchmark(name="web_qa", root=str(tmp_path), passages="dev")
    found = {d.text: d for d in passages.documents(benchmark)}
    assert list(found) == [
        "曹雪芹生于南京", "《红楼梦》的作者是曹雪芹。", "曹雪芹写了红楼梦", "iPhone 4 S是Apple Inc.的手机",
    ]  # fmt: skip
    ids = [found[text].id for text in list(found)[1:3]]
    assert ids == [paragraph_id(text) for text in list(found)[1:3]]
    relevant = [example.relevant for example in read(tmp_path, passages="dev")]
    assert relevant == [(tuple(ids),), ((found["iPhone 4 S是Apple Inc.的手机"].id,),), ()]


def test_annotated_and_retrieved_evidence_are_splits(tmp_path: Path) -> None:
    names = ("training", "validation.ann", "validation.ir", "test.ann", "test.ir")
    for name in names:
        write(tmp_path / f"{name}.json.gz", LINES[: 2 - name.endswith("ir")])
    benchmark = Benchmark(name="web_qa", root=str(tmp_path), passages="dev.ir")
    assert data.splits(benchmark) == ("train", "dev", "dev.ir", "test", "test.ir")
    assert [s.examples for s in data.validate(Benchmark(name="web_qa", root=str(tmp_path)))] == [
        2,
        2,
        1,
        2,
        1,
    ]
    assert read(tmp_path, split="train")[0].user_id == "train/Q1"
    with pytest.raises(UserError, match=r"validation\.ir\.json\.gz: found no question 'Q2', wanted its id"):
        list(data.read(benchmark))


@pytest.mark.parametrize(
    ("record", "wanted"),
    [
        (line("Q", ""), r"field 'question_tokens': found no words"),
        (line("", "谁"), r"field 'q_key': found an empty string, wanted an id"),
        (line("Q", "谁", {**DREAM, "golden_answers": ["曹"]}), r"golden_answers\[0\]': found a string"),
        (line("Q", "谁", {**DREAM, "golden_answers": [[1]]}), r"golden_answers\[0\]': found a number in"),
        (line("Q", "谁", {**DREAM, "evidence_tokens": []}), r"evidences\[0\]\.evidence_tokens': found no"),
    ],
)  # fmt: skip
def test_faults_are_told_in_one_line(tmp_path: Path, record: Any, wanted: str) -> None:
    write(tmp_path / "validation.ann.json.gz", [record])
    with pytest.raises(UserError, match=wanted) as error:
        read(tmp_path, passages="dev")
    assert "\n" not in str(error.value)

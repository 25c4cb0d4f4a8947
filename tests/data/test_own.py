"""Data of one's own: which documents a question sees, and what is no such data."""

import json
from pathlib import Path
from typing import Any

import pytest

from pbr_jax import data
from pbr_jax.base.types import Example, UserError
from pbr_jax.config import Benchmark

DOCUMENTS: list[dict[str, Any]] = [
    {"id": "a", "user": "ann", "text": "tea", "time": "2024-01"},
    {"id": "b", "user": "ann", "text": "cake", "time": "2024-02-03", "fields": {"title": "A cake", "n": 3}},
    {"id": "c", "user": "ann", "text": "undated"},
    {"id": "d", "user": "ann", "fields": {"title": "only", "body": "fields"}, "order": 5},
    {"id": "a", "user": "bob", "text": "another's", "time": "2020"},
]


def write(root: Path, questions: list[dict[str, Any]], documents: list[dict[str, Any]] = DOCUMENTS) -> None:
    for name, records in (("documents", documents), ("dev", questions)):
        (root / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def read(root: Path) -> list[Example]:
    return list(data.read(Benchmark(name="own", root=str(root))))


def seen(root: Path, **keys: Any) -> list[str]:
    write(root, [{"id": "q", "user": "ann", "input": "what?", **keys}])
    return [document.id for document in read(root)[0].profile]


@pytest.mark.parametrize("name", ["task.toml", "documents.jsonl"])
def test_a_link_to_nothing_is_no_missing_file(tmp_path: Path, name: str) -> None:
    write(tmp_path, [{"id": "q", "user": "ann", "input": "?", "target": "x"}])
    assert data.validate(Benchmark(name="own", root=str(tmp_path)))
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).symlink_to(tmp_path / "gone" / name)
    with pytest.raises(UserError, match=name):
        data.validate(Benchmark(name="own", root=str(tmp_path)))


def test_a_question_sees_what_came_before_it(tmp_path: Path) -> None:
    assert seen(tmp_path) == ["a", "b", "c", "d"]
    assert seen(tmp_path, time="2024-01-31") == ["c", "d"]  # all of January is not before its last day
    assert seen(tmp_path, time="2024-02-03") == ["a", "c", "d"]
    assert seen(tmp_path, time="2024-02-04") == ["a", "b", "c", "d"]
    assert seen(tmp_path, order=5) == ["a", "b", "c"]
    assert seen(tmp_path, order=5.5, time="2020") == ["c", "d"]
    assert seen(tmp_path, history=["d", "a", "d"]) == ["d", "a"]
    assert seen(tmp_path, history=[]) == []
    own = [*DOCUMENTS, {"id": "e", "user": "ann", "text": "answer", "question": "q"}]
    write(tmp_path, [{"id": "q", "user": "ann", "input": "?"}, {"id": "r", "user": "ann", "input": "?"}], own)
    assert [[d.id for d in e.profile] for e in read(tmp_path)] == [[*"abcd"], [*"abcde"]]


def test_fields_and_everything_that_is_optional(tmp_path: Path) -> None:
    question = {
        "id": 7,
        "user": "ann",
        "input": "long input",
        "query": "short",
        "target": "x",
        "category": "k",
        "unit": "u",
        "alternatives": ["y"],
        "relevant": ["a", ["b", "c"]],
        "time": "2024-03",
    }
    write(tmp_path, [question, {"id": "q2", "user": "new", "input": "hi", "scored": False}])
    first, second = read(tmp_path)
    assert (first.id, first.query, first.input, first.target) == ("7", "short", "long input", "x")
    assert (first.relevant, first.alternatives) == ((("a",), ("b", "c")), ("y",))
    assert (first.category, first.unit, first.time) == ("k", "u", 1709251200.0)
    _, cake, _, fields = first.profile
    assert cake.fields == {"text": "cake", "title": "A cake", "n": "3"}
    assert fields.text == "only fields"
    assert (second.profile, second.target, second.time) == ((), None, None)
    (split,) = data.validate(Benchmark(name="own", root=str(tmp_path)))
    assert str(split) == (
        "dev: 2 questions of 2 users; a question sees 0 to 4 of 4 documents; 1 with a target; "
        "1 with relevant documents; 1 not scored; 1 without history; 2 documents without date; 1 unit"
    )


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (
            {"id": "q", "user": "ann", "input": "?", "order": "5"},
            "field 'order': found a string, wanted a num",
        ),
        (
            {"id": "q", "user": "ann", "input": "?", "time": "soon"},
            "field 'time': found 'soon', wanted a date",
        ),
        ({"id": "q", "user": "ann", "input": "?", "history": ["z"]}, "found 'z', no document of the user"),
        ({"id": "q", "user": "bob", "input": "?", "history": ["b"]}, "found 'b', no document of the user"),
        ({"id": "q", "user": "ann", "input": "?", "relevant": ["a"], "time": "2024-01"}, "does not see"),
        ({"id": "q", "user": "ann", "input": "?", "alternatives": [1]}, "found a number, wanted a string"),
        ({"id": "q", "user": "train/ann", "input": "?"}, "which a user of the training split may be called"),
        ({"id": "q", "user": "ann", "input": "?", "ordr": 1}, "field 'ordr': found an unknown key"),
        ({"id": "q", "user": "ann", "input": "?", "ordr": 1}, "; did you mean order?"),
        (
            {"id": "q", "user": "ann", "input": "?", "answer": "x"},
            "wanted one of id, user, input, query, target",
        ),
    ],
)
def test_faults_of_questions_are_one_line(tmp_path: Path, question: dict[str, Any], message: str) -> None:
    write(tmp_path, [question])
    with pytest.raises(UserError, match=r"^[^\n]*$") as error:
        read(tmp_path)
    assert message in str(error.value)
    assert "dev.jsonl: record 0" in str(error.value)


def test_documents_are_counted_once_and_histories_by_question(tmp_path: Path) -> None:
    """Two users with two documents each; of ann's three questions the first sees one."""
    documents = [{"id": str(i % 2), "user": user, "text": "t", "time": f"2024-0{i + 1}"}
                 for i, user in enumerate(["ann", "ann", "bob", "bob"])]  # fmt: skip
    questions = [
        {"id": str(i), "user": user, "input": "?", "time": time}
        for i, (user, time) in enumerate(
            [("ann", "2024-02"), ("ann", "2025"), ("ann", "2025"), ("bob", "2025")]
        )
    ]
    write(tmp_path, questions, documents)
    (split,) = data.validate(Benchmark(name="own", root=str(tmp_path)))
    assert (
        str(split) == "dev: 4 questions of 2 users; a question sees 1 to 2 of 4 documents; none with a target"
    )


def test_a_target_is_in_all_scored_questions_or_in_none(tmp_path: Path) -> None:
    answered = {"id": "a", "user": "ann", "input": "?", "target": "x"}
    open = {"id": "b", "user": "ann", "input": "?", "relevant": ["a"]}
    write(tmp_path, [answered, answered | {"id": "c"}, open])
    with pytest.raises(UserError, match=r"^[^\n]*$") as error:
        data.validate(Benchmark(name="own", root=str(tmp_path)))
    assert str(error.value) == (
        f"{tmp_path}, split dev: found no target of 1 of 3 scored questions (the first is 'b'), wanted "
        "all or none; complete them, take all away to predict without scoring, or "
        'write "scored": false to keep a question out of all numbers'
    )
    write(tmp_path, [answered, open | {"scored": False}])
    assert [example.scored for example in read(tmp_path)] == [True, False]
    write(tmp_path, [answered, open])
    (tmp_path / "task.toml").write_text('kind = "retrieval"\nmetrics = ["recall@1"]\n')
    write(tmp_path, [answered | {"relevant": ["a"]}, open])
    assert [example.target for example in read(tmp_path)] == ["x", None]  # recall needs no target
    write(tmp_path, [open, answered])
    with pytest.raises(UserError, match=r"found no relevant documents of 1 of 2 .* \(the first is 'a'\)"):
        data.validate(Benchmark(name="own", root=str(tmp_path)))


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"id": "a", "user": "ann", "text": "twice"}, "found 'a' a second time for the user 'ann'"),
        ({"id": "z", "user": "zoe", "text": " "}, "field 'text': found no text"),
        ({"id": "z", "user": "zoe", "fields": {}}, "field 'text': found no text"),
        ({"id": "z", "user": "zoe", "fields": []}, "field 'fields': found a list, wanted an object"),
        (
            {"id": "z", "user": "zoe", "text": "x", "tiem": "2024"},
            "5 (id 'z'), field 'tiem': found an unknown",
        ),
        ({"id": "z", "user": "zoe", "text": "x", "tiem": "2024"}, "; did you mean time?"),
    ],
)
def test_faults_of_documents_too_also_where_nobody_sees_them(
    tmp_path: Path, document: dict[str, Any], message: str
) -> None:
    write(tmp_path, [{"id": "q", "user": "ann", "input": "?"}], [*DOCUMENTS, document])
    with pytest.raises(UserError, match=r"^[^\n]*$") as error:
        read(tmp_path)
    assert message in str(error.value)
    assert "documents.jsonl: record 5" in str(error.value)


def test_questions_without_any_documents(tmp_path: Path) -> None:
    (tmp_path / "dev.jsonl").write_text('{"id": "q", "user": "ann", "input": "?"}\n')
    assert read(tmp_path)[0].profile == ()
    assert data.splits(Benchmark(name="own", root=str(tmp_path))) == ("dev",)

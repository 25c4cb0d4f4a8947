"""LUCid's published schema, on files made in that form."""

import json
from pathlib import Path
from typing import Any

import pytest

from pbr_jax import data
from pbr_jax.base.types import UserError
from pbr_jax.config import Benchmark


def turn(role: str, content: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def question(name: str = "q1", **changes: Any) -> dict[str, Any]:
    return {
        "query_id": name,
        "query": "What should I do on Sunday?",
        "query_dimension": "age_group",
        "query_topic": "leisure",
        "expected_category": "Teen",
        "ans_session_topic": "school",
        "answer_session_ids": ["answer_s2"],
        "haystack_session_ids": ["s1", "answer_s2", "answer_s2"],
        "haystack_sessions": [
            [turn("user", "hi"), turn("assistant", "hello")],
            [turn("user", "my exam", has_answer=True), turn("assistant", "ok"), turn("user", "thanks")],
            [turn("user", "again"), turn("user", "my school", has_answer=True)],
        ],
        **changes,
    }


def write(tmp_path: Path, *questions: Any, form: Any = "official") -> Benchmark:
    (tmp_path / "lucid_s.json").write_text(json.dumps(list(questions)))
    return Benchmark(name="lucid", root=str(tmp_path), split="lucid_s", form=form)


def test_a_document_is_a_session_of_the_user(tmp_path: Path) -> None:
    (example,) = data.read(write(tmp_path, question()))
    assert [(d.id, d.text) for d in example.profile] == [
        ("s1", "hi"), ("answer_s2", "my exam thanks"), ("answer_s2#2", "again my school"),
    ]  # fmt: skip
    assert example.relevant == (("answer_s2", "answer_s2#2"),)
    assert (example.category, example.target, example.scored) == ("age_group", None, True)
    assert data.question_users(write(tmp_path, question()))


def test_in_the_form_turns_evidence_is_the_marked_turns(tmp_path: Path) -> None:
    (example,) = data.read(write(tmp_path, question(), form="turns"))
    assert [d.id for d in example.profile] == [
        "s1_0", "answer_s2_0", "answer_s2_1", "answer_s2#2_0", "answer_s2#2_1",
    ]  # fmt: skip
    assert example.relevant == (("answer_s2_0",), ("answer_s2#2_1",))


def test_evidence_that_is_not_in_the_history_is_noted(tmp_path: Path) -> None:
    (summary,) = data.validate(write(tmp_path, question(answer_session_ids=["s9"])))
    (note,) = summary.repairs
    assert "record 0 (query_id 'q1'), field 'answer_session_ids': 's9' is no session of the history" in note
    (example,) = data.read(write(tmp_path, question(answer_session_ids=["s9"])))
    assert not example.scored


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"haystack_sessions": []}, "field 'haystack_sessions': found 3 ids and 0 sessions, wanted equally"),
        ({"haystack_sessions": [1, 2, 3]}, "field 'haystack_sessions[0]': found a number, wanted a list of"),
    ],
)
def test_a_malformed_record_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        list(data.read(write(tmp_path, question("q0"), question(**change))))
    assert str(error.value).startswith(f"{tmp_path / 'lucid_s.json'}: record 1 (query_id 'q1'), {message}")


def test_an_id_that_stands_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="field 'query_id': found the id 'q1' a second time"):
        list(data.read(write(tmp_path, question(), question())))

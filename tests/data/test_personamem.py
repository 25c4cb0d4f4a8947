"""PersonaMem's published files, both versions, on files made in that form."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from pbr_jax import data
from pbr_jax.base.types import UserError
from pbr_jax.config import Benchmark
from pbr_jax.data import personamem

SAID = [
    {"role": "system", "content": "Current user persona: Ann"},
    {"role": "user", "content": "User: I like\ntea"},
    {"role": "assistant", "content": "Assistant: Noted."},
    {"role": "system", "content": "Current user persona: Ann"},
    {"role": "user", "content": "And rain"},
    {"role": "user", "content": "and cats"},
    {"role": "assistant", "content": "Good."},
]


def row(**changes: Any) -> dict[str, Any]:
    return {
        "persona_id": "7",
        "question_id": "q1",
        "question_type": "recall",
        "topic": "drinks",
        "user_question_or_message": "What shall I drink?",
        "correct_answer": "(b)",
        "all_options": str(["(a) Coffee, it's strong", "(b) Tea", "(c) Milk"]),
        "shared_context_id": "c1",
        "end_index_in_shared_context": "6",
        **changes,
    }


def table(path: Path, *rows: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def first(root: Path, *rows: dict[str, Any], form: Any = "official") -> Benchmark:
    table(root / "questions_32k.csv", *rows)
    lines = [{"c0": SAID[:1]}, {"c1": SAID}]
    (root / "shared_contexts_32k.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Benchmark(name="personamem", root=str(root), split="32k", form=form)


def second(root: Path, *rows: dict[str, Any]) -> Benchmark:
    table(root / "benchmark" / "text" / "benchmark.csv", *rows)
    for number in (1, 2):
        path = root / "data" / f"history_{number}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"metadata": {}, "chat_history": SAID}))
    return Benchmark(name="personamem", root=str(root), split="benchmark")


def asked(persona: int, **changes: Any) -> dict[str, Any]:
    return {
        "persona_id": persona,
        "chat_history_32k_link": f"data/history_{persona}.json",
        "user_query": str({"role": "user", "content": "It's late, what now?"}),
        "correct_answer": "Tea",
        "incorrect_answers": json.dumps(["Milk", "Coffee"]),
        "pref_type": "neutral",
        **changes,
    }


def test_a_question_sees_its_context_up_to_its_end(tmp_path: Path) -> None:
    example, whole = data.read(first(tmp_path, row(), row(question_id="q2", end_index_in_shared_context="7")))
    assert [d.text for d in example.profile] == [
        "Current user persona: Ann",  # once
        "User: I like tea\nAssistant: Noted.",
        "User: And rain\nUser: and cats",
    ]
    assert whole.profile[-1].text == "User: And rain\nUser: and cats\nAssistant: Good."
    assert whole.profile[:2] == example.profile[:2]
    assert whole.profile[2].id != example.profile[2].id  # another text is another document
    assert (example.user_id, example.unit, example.category) == ("c1", "persona_7", "recall")
    assert example.options == ("Coffee, it's strong", "Tea", "Milk")  # as released, without letters
    assert example.target == "Tea"


def test_in_the_form_turns_a_document_is_a_message(tmp_path: Path) -> None:
    (example,) = data.read(first(tmp_path, row(), form="turns"))
    assert [d.text for d in example.profile] == [
        "Current user persona: Ann", "User: I like tea", "Assistant: Noted.", "User: And rain",
        "User: and cats",
    ]  # fmt: skip


@pytest.mark.parametrize("right", "abcd")
def test_equal_options_are_one_wherever_they_stand(tmp_path: Path, right: str) -> None:
    offered = ["(a) Tea", "(b) Milk", "(c)  Tea", "(d) Cold  milk"]
    told: list[str] = []
    benchmark = first(tmp_path, row(all_options=str(offered), correct_answer=right), row(question_id="q2"))
    merged, other = personamem.READERS["personamem"].examples(benchmark, told.append)
    assert merged.options == ("Tea", "Milk", "Cold  milk")
    assert merged.target == {"a": "Tea", "b": "Milk", "c": "Tea", "d": "Cold  milk"}[right]
    assert len(other.options) == 3
    assert told == ["questions_32k.csv: 1 questions offer equal options, which are counted as one"]
    same = first(tmp_path, row(all_options="['(a) Tea', '(b) Tea ']"))
    with pytest.raises(UserError, match="question 'q1' offers one answer 2 times, wanted two or more"):
        list(personamem.READERS["personamem"].examples(same, told.append))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"all_options": "['(a) x'"}, "field 'all_options': found"),
        ({"all_options": "__import__('os')"}, "wanted JSON or a Python literal"),
        ({"all_options": "7"}, "field 'all_options': found a number, wanted a list of texts"),
        ({"all_options": "['(a) x', '(a) y']", "correct_answer": "(a)"}, "wanted two or more options"),
        ({"correct_answer": "(d)"}, "and the right one 'd', wanted two or more options that begin with (a)"),
        ({"end_index_in_shared_context": "8"}, "found '8', wanted a number from 0 to 7"),
        ({"end_index_in_shared_context": "-1"}, "found '-1', wanted a number from 0 to 7"),
        ({"shared_context_id": "c9"}, "found 'c9', which is not in shared_contexts_32k.jsonl, wanted the id"),
        ({"question_id": "q0"}, "found the id 'q0' a second time"),
    ],
)
def test_a_malformed_row_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        list(data.read(first(tmp_path, row(question_id="q0"), row(**change))))
    assert str(error.value).startswith(f"{tmp_path / 'questions_32k.csv'}: row 2, field '")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_file_of_contexts_is_named(tmp_path: Path) -> None:
    benchmark = first(tmp_path, row())
    (tmp_path / "shared_contexts_32k.jsonl").unlink()
    with pytest.raises(UserError, match=r"shared_contexts_32k\.jsonl: found no such file"):
        data.read(benchmark)


def test_the_second_version_reads_the_history_of_each_persona(tmp_path: Path) -> None:
    benchmark = second(tmp_path, asked(1), asked(1, user_query="Plain?"), asked(2))
    assert data.splits(benchmark) == ("benchmark",)
    assert len(data.files(benchmark)) == 3
    one, plain, other = data.read(benchmark)
    assert (one.query, one.target, one.options) == ("It's late, what now?", "Tea", ("Coffee", "Milk", "Tea"))
    assert plain.query == "Plain?"
    assert one.profile is plain.profile
    assert (one.user_id, other.user_id, one.unit, one.category) == ("1", "2", "1", "neutral")
    assert one.profile[1].text == "User: I like tea\nAssistant: Noted."


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chat_history_32k_link": "../../etc/passwd"}, "wanted the path of a file under --benchmark.root"),
        ({"chat_history_32k_link": "/etc/passwd"}, "wanted the path of a file under --benchmark.root"),
        ({"chat_history_32k_link": "data/none.json"}, "data/none.json: found no such file"),
        ({"incorrect_answers": "[]"}, "field 'incorrect_answers': found [], wanted one or more"),
        ({"incorrect_answers": '["Tea"]'}, "field 'incorrect_answers': found ['Tea'], wanted one or more"),
        ({"user_query": "{'role': 'user'}"}, "field 'user_query.content': found no such key"),
    ],
)
def test_a_malformed_row_of_the_second_version_is_named(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError) as error:
        list(data.read(second(tmp_path, asked(1), asked(2, **change))))
    assert message in str(error.value)
    assert "\n" not in str(error.value)

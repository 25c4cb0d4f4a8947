"""LaMP's files: both splits, every task, and what can be wrong with them."""

import json
import math
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pbr_jax import data
from pbr_jax.base.types import Example, UserError
from pbr_jax.config import Benchmark

PAPERS = {"title": "On trees", "abstract": "Trees grow."}
HISTORIES: dict[str, dict[str, Any]] = {
    "lamp_1": PAPERS,
    "lamp_2": {"tag": "comedy", "description": "Two friends."},
    "lamp_3": {"text": "Broke at once.", "score": 1},
    "lamp_4": {"text": "It rained.", "title": "Rain"},
    "lamp_5": PAPERS,
    "lamp_7": {"text": "good morning"},
}
INPUTS = {
    "lamp_1": 'Title "T" cites? Answer without explanation. [1]: "A tree" [2]: "A bush"',
    "lamp_2": "Which of the tags: [comedy, action] description: A cop: alone. description: twice ",
    "lamp_3": "Rate the review: Works: mostly, says this review: fine",
    "lamp_4": "Headline of this article: A storm: came",
    "lamp_5": "Title of this paper: We study paper: the material",
    "lamp_7": "Say it anew: hello: you",
}
ANSWERS = {"lamp_1": "[1]", "lamp_2": "comedy", "lamp_3": "4"}  # of those with labels
QUERIES = {
    "lamp_1": "A tree A bush",
    "lamp_2": "A cop: alone. description: twice",
    "lamp_3": "Works: mostly, says this review: fine",
    "lamp_4": "A storm: came",
    "lamp_5": "We study paper: the material",
    "lamp_7": "hello: you",
}
TEXTS = {
    "lamp_1": "On trees Trees grow.",
    "lamp_2": "Two friends.",
    "lamp_3": "Broke at once.",
    "lamp_4": "Rain It rained.",
    "lamp_5": "On trees Trees grow.",
    "lamp_7": "good morning",
}
QUOTED = {  # query and text in CFRAG's form, where they are not as above
    "lamp_1": ("'title': 'A tree' 'title': 'A bush'", "'title': 'On trees' 'abstract': 'Trees grow.'"),
    "lamp_2": (
        "'description': 'A cop: alone. description: twice'",
        "'description': 'Two friends.' 'tag': 'comedy'",
    ),
    "lamp_4": ("'text': 'A storm: came'", "'text': 'It rained.' 'title': 'Rain'"),
    "lamp_5": ("'abstract': 'We study paper: the material'", "'abstract': 'Trees grow.' 'title': 'On trees'"),
}


def question(task: str, name: str = "q0", **changes: Any) -> dict[str, Any]:
    profile = [{"id": f"{name}-{i}", **HISTORIES[task]} for i in range(2)]
    return {"id": name, "input": INPUTS[task], "profile": profile, **changes}


def write(
    root: Path, task: str, questions: list[Any], outputs: dict[str, Any] | None = None, split: str = "dev"
) -> Benchmark:
    """Official files; outputs default to one for every question."""
    root.mkdir(parents=True, exist_ok=True)
    (root / f"{split}_questions.json").write_text(json.dumps(questions))
    if outputs is None:
        golds = [{"id": record["id"], "output": ANSWERS.get(task, "an answer")} for record in questions]
        outputs = {"task": task.replace("lamp", "LaMP"), "golds": golds}
    if outputs:
        (root / f"{split}_outputs.json").write_text(json.dumps(outputs))
    return Benchmark(name=task, root=str(root), split=split)


def examples(benchmark: Benchmark) -> list[Example]:
    return list(data.read(benchmark))


def error_of(benchmark: Benchmark) -> str:
    """The one line that reading and validating both raise."""
    with pytest.raises(UserError) as read:
        examples(benchmark)
    with pytest.raises(UserError) as validated:
        data.validate(benchmark)
    assert str(read.value) == str(validated.value)
    assert "\n" not in str(read.value)
    return str(read.value)


@pytest.mark.parametrize("task", HISTORIES)
def test_every_task_gives_query_text_and_fields(tmp_path: Path, task: str) -> None:
    benchmark = write(tmp_path, task, [question(task)])
    (example,) = examples(benchmark)
    assert (example.id, example.user_id, example.target) == ("q0", "q0", ANSWERS.get(task, "an answer"))
    assert example.query == QUERIES[task]
    assert example.input == INPUTS[task]
    assert example.time is None
    assert [document.text for document in example.profile] == [TEXTS[task]] * 2
    assert [document.id for document in example.profile] == ["q0-0", "q0-1"]
    assert {document.user_id for document in example.profile} == {"q0"}
    assert example.profile[0].fields == {key: str(value) for key, value in HISTORIES[task].items()}
    assert data.validate(benchmark)[0].repairs == ()


@pytest.mark.parametrize("task", HISTORIES)
def test_cfrags_form_quotes_fields_by_their_names(tmp_path: Path, task: str) -> None:
    benchmark = write(tmp_path, task, [question(task)])
    [official], [quoted] = examples(benchmark), examples(replace(benchmark, form="cfrag"))
    query, text = QUOTED.get(task, (QUERIES[task], TEXTS[task]))
    assert quoted.query == query
    assert {document.text for document in quoted.profile} == {text}
    # Prompts are made of these, so only retrieval and what it learns from differ.
    assert quoted.input == official.input
    assert quoted.profile[0].fields == official.profile[0].fields


def test_a_form_belongs_to_its_benchmarks() -> None:
    assert data.task(Benchmark(name="synthetic", form="cfrag"))
    with pytest.raises(
        UserError, match=r"benchmark\.form: found 'cfrag', wanted official for longlamp_topic"
    ):
        data.task(Benchmark(name="longlamp_topic", form="cfrag"))


@pytest.mark.parametrize(
    ("candidates", "query"),
    [
        ('[1]: "Say "yes" [or no]" [2]: "Why "no""', 'Say "yes" [or no] Why "no"'),
        ('[1]: "A: [2] again" [2]: "B\nC"', "A: [2] again B\nC"),
        ('[1]: "" [2]: "B"', " B"),
    ],
)
def test_titles_with_quotes_are_found_whole(tmp_path: Path, candidates: str, query: str) -> None:
    text = f'The paper "On [1]: "x" [2]: "y"" cites which? Say it without explanation. {candidates}'
    benchmark = write(tmp_path, "lamp_1", [question("lamp_1", input=text)])
    assert examples(benchmark)[0].query == query


@pytest.mark.parametrize(
    ("task", "text", "query"),
    [
        ("lamp_2", "Which of the tags: [comedy, action] A cop alone.", "A cop alone."),
        ("lamp_2", "Which of the tags: [comedy, action]", "Which of the tags: [comedy, action]"),
        ("lamp_2", "A cop alone.", "A cop alone."),
        ("lamp_1", "Which of two? [1] A [2] B", "Which of two? [1] A [2] B"),
        ("lamp_3", "Rate the review: ", "Rate the review:"),
        ("lamp_7", "no colon", "no colon"),
    ],
)
def test_a_malformed_input_is_kept_and_reported(tmp_path: Path, task: str, text: str, query: str) -> None:
    questions = [question(task), question(task, "110", input=text)]
    benchmark = write(tmp_path, task, questions)
    assert [example.query for example in examples(benchmark)] == [QUERIES[task], query]
    (summary,) = data.validate(benchmark)
    assert summary.examples == 2
    (repair,) = summary.repairs
    assert "record 1 (id '110'), field 'input'" in repair


def dated(*dates: Any) -> list[dict[str, Any]]:
    return [{"id": str(i), **HISTORIES["lamp_4"], "date": date} for i, date in enumerate(dates)]


def test_the_time_split_has_users_and_times(tmp_path: Path) -> None:
    questions = [
        question("lamp_4", "0-1", user_id=0, profile=dated("2018-03-02")),
        question("lamp_4", "0-2", user_id=0, profile=dated("2018-03-02", "2018-03-07", None)),
        question("lamp_4", "1-0", user_id=1, profile=[]),
    ]
    benchmark = write(tmp_path, "lamp_4", questions)
    first, second, cold = examples(benchmark)
    assert [first.user_id, second.user_id, cold.user_id] == ["0", "0", "1"]
    assert [document.time for document in second.profile] == [1519948800.0, 1520380800.0, None]
    assert second.time == 1520380801.0
    assert first.time == 1519948801.0
    assert cold.time is None
    assert "date" not in second.profile[0].fields
    (summary,) = data.validate(benchmark)
    assert (summary.examples, summary.users, summary.documents) == (3, 2, 3)
    assert (summary.empty_profiles, summary.undated) == (1, 1)


def test_a_coarse_date_says_until_when(tmp_path: Path) -> None:
    profile = dated("2015", "2015-05", "2015-05-03", "2015-05-03T10:00", None)
    (example,) = examples(write(tmp_path, "lamp_4", [question("lamp_4", profile=profile, date="2016")]))
    following = ("2016-01-01", "2015-06-01", "2015-05-04")
    nexts = [datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() for text in following]
    assert [document.until for document in example.profile] == [
        *(math.nextafter(end, -math.inf) for end in nexts), None, None,
    ]  # fmt: skip
    assert example.profile[0].time == 1420070400.0
    assert example.time == nexts[0]


def test_dates_without_user_ids_are_read(tmp_path: Path) -> None:
    profile = [{"id": "a", "text": "x", "score": "5", "date": "1369526400"}]
    (example,) = examples(write(tmp_path, "lamp_3", [question("lamp_3", profile=profile)]))
    assert example.user_id == "q0"
    assert example.profile[0].time == 1369526400.0


def test_test_labels_may_be_withheld_but_no_others(tmp_path: Path) -> None:
    withheld = write(tmp_path / "a", "lamp_7", [question("lamp_7")], {}, split="test")
    assert [example.target for example in examples(withheld)] == [None]
    assert [path.name for path in data.files(withheld)] == ["test_questions.json"]
    missing = write(tmp_path / "b", "lamp_7", [question("lamp_7")], {})
    assert "dev_outputs.json: found no such file" in error_of(missing)


def users(root: Path, split: str, training: str = "train") -> list[str]:
    found = data.read(Benchmark(name="lamp_7", root=str(root), split=split, training=training))
    return [example.user_id for example in found]


def test_a_question_of_the_training_split_is_nobody_of_another_split(tmp_path: Path) -> None:
    for split in ("train", "dev", "test"):
        write(tmp_path, "lamp_7", [question("lamp_7", "110")], split=split)
    assert (users(tmp_path, "train"), users(tmp_path, "dev")) == (["train/110"], ["110"])
    assert (users(tmp_path, "dev", "dev"), users(tmp_path, "test", "dev")) == (["dev/110"], ["110"])
    assert users(tmp_path, "train", "dev") == ["110"]
    learned = next(data.read(Benchmark(name="lamp_7", root=str(tmp_path), split="dev", training="dev")))
    assert {document.user_id for document in learned.profile} == {"dev/110"}


@pytest.mark.parametrize("key", ["id", "user_id"])
def test_a_name_that_a_training_user_may_bear_is_refused(tmp_path: Path, key: str) -> None:
    benchmark = write(tmp_path, "lamp_7", [question("lamp_7", **{key: "train/110"})])
    error = error_of(benchmark)
    assert f"field '{key}': found 'train/110', which a user of the training split may be called" in error
    assert "wanted a name that does not begin with 'train/'; rename it" in error
    assert len(users(tmp_path, "dev", "test")) == 1
    write(tmp_path, "lamp_7", [question("lamp_7", **{key: "train/110"})], split="train")
    assert users(tmp_path, "train") == [{"id": "train/train/110", "user_id": "train/110"}[key]]


def test_a_named_user_keeps_the_name_in_every_split(tmp_path: Path) -> None:
    for split in ("train", "dev"):
        write(tmp_path, "lamp_7", [question("lamp_7", split, user_id=5)], split=split)
    assert users(tmp_path, "train") == users(tmp_path, "dev") == ["5"]


@pytest.mark.parametrize("first", [{"user_id": 5}, {"user_id": None}])
def test_a_file_that_names_some_users_only_is_refused(tmp_path: Path, first: dict[str, Any]) -> None:
    second = {"user_id": None} if first["user_id"] else {"user_id": "a"}
    questions = [question("lamp_7", "a", **first), question("lamp_7", "b", **second)]
    error = error_of(write(tmp_path, "lamp_7", questions))
    assert "record 1 (id 'b'), field 'user_id': found " in error
    assert "wanted one in every record or in none" in error


def test_questions_that_are_users_never_stand_beside_a_training_split_of_named_users(tmp_path: Path) -> None:
    write(tmp_path, "lamp_7", [question("lamp_7", "5")])
    assert users(tmp_path, "dev") == ["5"]
    write(tmp_path, "lamp_7", [question("lamp_7", "x", user_id=5)], split="train")
    with pytest.raises(
        UserError, match="found questions that are users by themselves, wanted a 'user_id' in"
    ):
        users(tmp_path, "dev")
    assert users(tmp_path, "train") == ["5"]
    assert users(tmp_path, "dev", "test") == ["5"]


def test_the_folders_of_the_official_download_are_found(tmp_path: Path) -> None:
    benchmark = write(tmp_path / "train", "lamp_7", [question("lamp_7")], split="train")
    nested = Benchmark(name="lamp_7", root=str(tmp_path), split="train")
    assert examples(nested) == examples(benchmark)
    assert data.splits(nested) == ("train",)


def test_synthetic_is_read_as_lamp_4(tmp_path: Path) -> None:
    write(tmp_path, "lamp_4", [question("lamp_4")])
    assert examples(Benchmark(name="synthetic", root=str(tmp_path))) == examples(
        Benchmark(name="lamp_4", root=str(tmp_path))
    )


def test_a_limit_reads_that_many_in_file_order(tmp_path: Path) -> None:
    names = [(f"q{i}", f"u{i // 5}") for i in range(20)]
    benchmark = write(tmp_path, "lamp_7", [question("lamp_7", name, user_id=user) for name, user in names])
    everything = examples(benchmark)
    found = list(data.read(benchmark, limit=4))
    assert [example for example in everything if example in found] == found
    assert len({example.user_id for example in found}) == len(found) == 4
    for more in (20, 21, 10**22):
        assert list(data.read(benchmark, limit=more)) == everything


def test_ids_of_questions_and_outputs_must_agree(tmp_path: Path) -> None:
    questions = [question("lamp_7", "a"), question("lamp_7", "b")]
    golds = [{"id": name, "output": "x"} for name in ("a", "c", "d")]
    outputs = {"task": "LaMP_7", "golds": golds}
    error = error_of(write(tmp_path, "lamp_7", questions, outputs))
    assert (
        "dev_questions.json: record 1 (id 'b'), field 'id': found no output for 'b' in dev_outputs" in error
    )
    error = error_of(write(tmp_path, "lamp_7", questions[:1], outputs))
    assert "dev_questions.json: found no question with the id 'c'" in error


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id": ""}, "record 0 (id ''), field 'id': found an empty string"),
        ({"id": "b"}, "record 1 (id 'b'), field 'id': found the id 'b' a second time"),
        ({"profile": [{"id": "a", "text": " "}]}, "field 'profile[0].text': found a blank string"),
        ({"profile": [{"id": "a", "text": "x"}, {"id": "a", "text": "y"}]}, "field 'profile[1].id'"),
        ({"profile": [{"id": "a", "text": "x", "date": "soon"}]}, "field 'profile[0].date': found 'soon'"),
    ],
)
def test_a_malformed_record_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    questions = [question("lamp_7", **changes), question("lamp_7", "b")]
    golds = [{"id": name, "output": "x"} for name in ("q0", "b")]
    error = error_of(write(tmp_path, "lamp_7", questions, {"task": "LaMP_7", "golds": golds}))
    assert error.startswith(str(tmp_path / "dev_questions.json"))
    assert message in error


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({"task": "LaMP_7", "golds": [{"id": "q0", "output": "x"}] * 2}, "field 'golds[1].id'"),
        ({"task": "LaMP_3"}, "field 'task': found 'LaMP_3', wanted 'LaMP_7'; set --benchmark.name lamp_3"),
        ({"task": "news", "golds": []}, "field 'task': found 'news', wanted 'LaMP_7'"),
    ],
)  # fmt: skip
def test_malformed_outputs_are_named(tmp_path: Path, outputs: dict[str, Any], message: str) -> None:
    error = error_of(write(tmp_path, "lamp_7", [question("lamp_7")], outputs))
    assert error.startswith(str(tmp_path / "dev_outputs.json"))
    assert message in error


@pytest.mark.parametrize(
    ("asked", "there", "named"),
    [
        ("lamp_7", "lamp_3", "which look like lamp_3"),
        ("lamp_7", "lamp_4", "which look like lamp_4"),
        ("lamp_3", "lamp_7", "which look like lamp_7"),
        ("lamp_2", "lamp_5", "which look like lamp_1 or lamp_5"),
        ("lamp_1", "lamp_2", "which look like lamp_2"),
    ],
)
def test_another_tasks_questions_are_recognised(tmp_path: Path, asked: str, there: str, named: str) -> None:
    write(tmp_path, there, [question(there)], {}, split="test")
    assert named in error_of(Benchmark(name=asked, root=str(tmp_path), split="test"))


def test_a_repeated_document_is_kept_once(tmp_path: Path) -> None:
    benchmark = write(tmp_path, "lamp_7", [question("lamp_7", profile=[{"id": "a", "text": "x"}] * 2)])
    assert len(examples(benchmark)[0].profile) == 1
    assert "document 'a' stands there twice" in data.validate(benchmark)[0].repairs[0]


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "folder", "counts", "users", "documents"),
    [
        ("lamp_7", "LaMP_7", {"train": 900, "dev": 200}, [900, 200], [15845, 3726]),
        ("lamp_3", "LaMP_3_amazon_mi", {"train": 800, "dev": 200}, [800, 200], [4955, 1203]),
        ("lamp_4", "LaMP_4_huffpost", {"train": 345, "dev": 199}, [48, 23], [1713, 1043]),
    ],
)
def test_the_real_files_are_read_whole(
    real_data: Path, name: str, folder: str, counts: dict[str, int], users: list[int], documents: list[int]
) -> None:
    summaries = data.validate(Benchmark(name=name, root=str(real_data / folder)))
    assert {summary.split: summary.examples for summary in summaries} == counts
    assert [summary.users for summary in summaries] == users
    assert [summary.documents for summary in summaries] == documents
    assert all(summary.repairs == () for summary in summaries)
    assert all(summary.undated == (summary.documents if name == "lamp_7" else 0) for summary in summaries)

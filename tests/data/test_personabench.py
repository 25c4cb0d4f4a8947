"""PersonaBench's folders: people, segments and their ground truth."""

import json
from pathlib import Path
from typing import Any

import pytest

from pbr_jax import data
from pbr_jax.base.types import Example, UserError
from pbr_jax.config import Benchmark
from pbr_jax.text.speakers import speakers, without

NAMES = ("Ann", "Bob", "Cid", "Dee")  # the fourth has no data, as in the release
NOISE = "noise_0.0"


def conversation(name: str, number: int) -> dict[str, Any]:
    turns = [{"role": name, "content": f"I like café {number}"}]
    return {"session": "s", "time": f"2024/Oct/{14 + number}/09:14 AM", "target_name": "Eve",
            "conversation": turns, "segment_id": f"{name}-c{number}"}  # fmt: skip


def talk(name: str) -> dict[str, Any]:
    return {"Target_name": "Eve", "Conversations": [conversation(name, number) for number in (0, 1)]}


def chat(name: str) -> dict[str, Any]:
    turns = [{"role": "user", "content": "hi"}]
    return {
        "session": "s",
        "time": "2024/Oct/01/01:25 PM",
        "user_ai_interaction": turns,
        "segment_id": f"{name}-a",
    }


def purchase(name: str) -> dict[str, Any]:
    return {"session": "s", "time": "2024/Oct/20/08:17 AM", "purchase_history": [{"title": "Pen"}],
            "segment_id": f"{name}-p"}  # fmt: skip


def questions(name: str) -> list[dict[str, Any]]:
    def ask(number: int, kind: str, difficulty: str, answer: Any) -> dict[str, Any]:
        return {"q_id": f"{name}-{number}", "question": f"Question {number}?", "answer": answer, "type": kind,
                "difficulty": difficulty, "outdated_value": None}  # fmt: skip

    return [
        ask(0, "Basic information", "easy", 39),
        ask(1, "Preference", "hard", ["tea", "rain"]),
        ask(2, "Preference", "easy", [{"cat": "Tom"}, {"dog": "Rex"}]),
        ask(3, "Social", "hard", "Eve"),
        ask(4, "Subjective", "easy", "Kind"),
    ]


def truth(name: str) -> list[dict[str, Any]]:
    groups = {"tea": [f"{name}-c0", f"{name}-a"], "rain": [f"{name}-c1"]}
    return [
        {"q_id": question["q_id"], "question": "", "answer": "",
         "segment_id": groups if question["q_id"].endswith("1") else {"value": [f"{name}-c0"]}}
        for question in questions(name)
    ]  # fmt: skip


def make(root: Path, splits: tuple[str, ...] = (NOISE,)) -> None:
    for number in (0, 1):
        folder = root / f"community_{number}"
        people = [f"{name}{number}" for name in NAMES[:3]]
        asked = [
            {"Name": f"{name}{number}", "Eval_Info": {"qa": questions(f"{name}{number}")}} for name in NAMES
        ]
        put(folder / "eval_info" / "eval_info_all.json", asked)
        for split in splits:
            facts = [fact for name in people for fact in truth(name)]
            put(folder / "eval_info" / f"qa_gt_context_all_{split}.json", facts)
            talks = [{"Name": name, "Data": [talk(name)]} for name in people]
            put(folder / "private_data" / split / "conversation_data_all.json", talks)
            chats = [{"Name": name, "Data": [chat(name)]} for name in people]
            put(folder / "private_data" / split / "user_ai_interaction_data_all.json", chats)
            bought = [{"Name": name, "Data": [] if name == "Ann1" else [purchase(name)]} for name in people]
            put(folder / "private_data" / split / "purchase_history_data_all.json", bought)


def put(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def examples(root: Path, split: str = NOISE) -> list[Example]:
    return list(data.read(Benchmark(name="personabench", root=str(root), split=split)))


def error_of(root: Path, split: str = NOISE) -> str:
    with pytest.raises(UserError) as error:
        examples(root, split)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_questions_in_the_first_person_keep_the_names_in_them(tmp_path: Path) -> None:
    """Documents name no speakers: "Eve" is whom the user asks about, and nobody's own name stands there."""
    make(tmp_path)
    for example in examples(tmp_path):
        known = speakers(document.fields for document in example.profile)
        asked = f"What did Eve and {example.user_id.rpartition('/')[2]} buy? {example.query}"
        assert without(asked, known, "i") == without(asked, known, "out") == asked


@pytest.mark.parametrize("parent", [".", "synthetic_data", "eval_data_v1/synthetic_data"])
def test_the_first_three_people_are_asked_under_unique_users(tmp_path: Path, parent: str) -> None:
    make(tmp_path / parent)
    found = examples(tmp_path)
    assert len(found) == 2 * 3 * 5
    assert len({example.id for example in found}) == 30
    assert list(dict.fromkeys(example.user_id for example in found)) == [
        f"community_{number}/{name}{number}" for number in (0, 1) for name in NAMES[:3]
    ]


def test_documents_are_compact_json_in_the_order_of_the_sources(tmp_path: Path) -> None:
    make(tmp_path)
    example = examples(tmp_path)[0]
    assert [document.id for document in example.profile] == ["Ann0-c0", "Ann0-c1", "Ann0-a", "Ann0-p"]
    assert example.profile[0].text == (
        '{"time":"2024/Oct/14/09:14 AM","target_name":"Eve",'
        '"conversation":[{"role":"Ann0","content":"I like caf\\u00e9 0"}]}'
    )
    assert example.profile[0].time == 1728897240.0
    assert example.profile[2].fields["source"] == "user_ai_interaction"
    assert {document.user_id for document in example.profile} == {example.user_id}
    assert example.time is not None
    assert all(document.time is not None and document.time < example.time for document in example.profile)


def test_an_empty_purchase_list_is_fine(tmp_path: Path) -> None:
    make(tmp_path)
    example = next(example for example in examples(tmp_path) if example.user_id == "community_1/Ann1")
    assert [document.id for document in example.profile] == ["Ann1-c0", "Ann1-c1", "Ann1-a"]


def test_categories_targets_and_ground_truth(tmp_path: Path) -> None:
    make(tmp_path)
    found = examples(tmp_path)[:5]
    categories = ["Basic", "Preference-hard", "Preference-easy", "Social", "Subjective"]
    assert [example.category for example in found] == categories
    assert [example.target for example in found] == ["39", "tea, rain", "cat: Tom, dog: Rex", "Eve", "Kind"]
    assert [example.scored for example in found] == [True, True, True, True, False]
    assert found[1].relevant == (("Ann0-c0", "Ann0-a"), ("Ann0-c1",))
    assert found[0].query == found[0].input == "Question 0?"


def test_splits_are_the_noise_levels_that_are_there(tmp_path: Path) -> None:
    make(tmp_path, ("noise_0.7", "noise_0.0"))
    benchmark = Benchmark(name="personabench", root=str(tmp_path), split="noise_0.7")
    assert data.splits(benchmark) == ("noise_0.0", "noise_0.7")
    assert [summary.examples for summary in data.validate(benchmark)] == [30, 30]
    assert len(data.files(benchmark)) == 10
    assert "found the splits noise_0.0, noise_0.7, wanted 'noise_0.3'" in error_of(tmp_path, "noise_0.3")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    make(tmp_path)
    path = tmp_path / "community_1" / "private_data" / NOISE / "purchase_history_data_all.json"
    path.unlink()
    assert f"{path}: found no such file" in error_of(tmp_path)


def change(path: Path, edit: Any) -> None:
    value = json.loads(path.read_text())
    edit(value)
    path.write_text(json.dumps(value))


PEOPLE = "eval_info/eval_info_all.json"
TRUTH = f"eval_info/qa_gt_context_all_{NOISE}.json"
TALKS = f"private_data/{NOISE}/conversation_data_all.json"


def segment(talks: Any) -> dict[str, Any]:
    return talks[0]["Data"][0]["Conversations"][1]


@pytest.mark.parametrize(
    ("file", "edit", "message"),
    [
        (PEOPLE, lambda v: v[0].update(Name="Zoe"), "found no private data of 'Zoe'"),
        (PEOPLE, lambda v: v[0]["Eval_Info"]["qa"][1].update(q_id="Ann0-0"),
         "field 'Eval_Info.qa[1].q_id': found the id 'Ann0-0' a second time"),
        (TRUTH, lambda v: v.pop(0), "found no ground truth for 'Ann0-0'"),
        (TRUTH, lambda v: v[0].update(segment_id={"value": ["zzz"]}),
         "record 0 (q_id 'Ann0-0'), field 'segment_id.value': found the segment 'zzz'"),
        (TRUTH, lambda v: v[0].update(segment_id={"value": []}),
         "field 'segment_id.value': found an empty list"),
        (TALKS, lambda v: segment(v).update(conversation=[]),
         "field 'Data[0].Conversations[1].conversation': found an empty list"),
        (TALKS, lambda v: segment(v).update(segment_id="Ann0-c0"),
         "found the id 'Ann0-c0' for a second, different document"),
        (TALKS, lambda v: segment(v).update(time="once"),
         "field 'Data[0].Conversations[1].time': found 'once'"),
    ],
)  # fmt: skip
def test_a_malformed_record_is_named(tmp_path: Path, file: str, edit: Any, message: str) -> None:
    make(tmp_path)
    change(tmp_path / "community_0" / file, edit)
    assert message in error_of(tmp_path)


@pytest.mark.data
@pytest.mark.parametrize("noise", ["0.0", "0.3", "0.5", "0.7"])
def test_the_real_questions_are_counted_as_published(real_data: Path, noise: str) -> None:
    found = examples(real_data / "personabench", f"noise_{noise}")
    assert len(found) == 263
    scored = [example.category for example in found if example.scored]
    counts = {"Basic": 110, "Preference-hard": 41, "Preference-easy": 26, "Social": 53}
    assert {category: scored.count(category) for category in set(scored)} == counts
    assert len({example.user_id for example in found}) == 6
    segments = {document.id for example in found for document in example.profile}
    if noise == "0.0":
        assert len(segments) == 213 + 43 + 8 + 209 + 49 + 5
    if noise == "0.7":
        assert len(segments) == 704 + 184 + 70 + 686 + 196 + 76


@pytest.mark.parametrize("name", ["eval_info/eval_info_all", f"private_data/{NOISE}/conversation_data_all"])
def test_two_people_of_one_name_are_refused(tmp_path: Path, name: str) -> None:
    make(tmp_path)
    path = tmp_path / "community_0" / f"{name}.json"
    people = json.loads(path.read_text())
    put(path, [*people, people[0]])
    assert "field 'Name': found the id 'Ann0' a second time" in error_of(tmp_path)

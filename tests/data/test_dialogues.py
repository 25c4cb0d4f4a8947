"""Dialogues of SGD and MultiWOZ 2.2: turns as questions, states as targets and references."""

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dialogue_files
import pytest

from pbr_jax import data
from pbr_jax.base.types import Example, UserError
from pbr_jax.cli.main import main
from pbr_jax.options import Benchmark
from pbr_jax.tasks.states import Slot, read_reference


def examples(root: Path, name: str = "sgd") -> list[Example]:
    return list(data.read(Benchmark(name=name, root=str(root), split="test")))


def test_a_turn_of_the_user_is_a_question_that_sees_the_turns_before_it(tmp_path: Path) -> None:
    found = examples(dialogue_files.write(tmp_path, "sgd"))
    assert [example.id for example in found] == [
        "1_00000-000", "1_00000-002", "1_00000-004", "2_00000-000", "2_00000-002"
    ]  # fmt: skip
    assert [example.user_id for example in found] == ["test/1_00000"] * 3 + ["test/2_00000"] * 2
    assert all(example.unit == example.user_id and example.scored for example in found)
    assert [[d.id for d in example.profile] for example in found[:3]] == [
        [], ["1_00000-000"], ["1_00000-000", "1_00000-002"]
    ]  # fmt: skip
    assert all(d.time < e.time for e in found for d in e.profile if d.time is not None and e.time is not None)
    assert found[2].query == "yes"
    assert found[0].query == found[1].profile[0].text == "I love tea, a table in Rome please"
    assert [example.category for example in found] == ["Tables_1"] * 3 + ["Tables_1, Rides_2"] * 2


def test_the_input_has_the_slots_that_intents_take_and_the_conversation(tmp_path: Path) -> None:
    found = examples(dialogue_files.write(tmp_path, "sgd"))
    assert found[1].input == (
        "service Tables_1: About Tables_1\n"
        "- city: The city\n"
        "- seats: The seats (one of: 1, 2)\n"
        "- time: The time\n"
        "conversation:\n"
        "user: I love tea, a table in Rome please\n"
        "system: For how many?\n"
        "user: Two, at eight"
    )
    assert "service Rides_2" in found[3].input


def test_target_and_reference_of_a_state(tmp_path: Path) -> None:
    found = examples(dialogue_files.write(tmp_path, "sgd"))
    assert found[1].target == '{"Tables_1": {"city": "Rome", "seats": "2", "time": "8 pm"}}'
    assert [example.target for example in found[3:]] == [
        "{}",
        '{"Rides_2": {"city": "Oslo", "shared": "False"}, "Tables_1": {"city": "Oslo"}}',
    ]
    frame = {"city": Slot("similar", ("Rome",)), "seats": Slot("first", ("2",)),
             "time": Slot("similar", ("8 pm", "eight")), "phone": Slot("similar")}  # fmt: skip
    assert read_reference(found[1].alternatives[0]) == [{"Tables_1": frame}]
    assert len(read_reference(found[3].alternatives[0])) == 2  # frames are judged apart


def test_multiwoz_judges_a_turn_as_one_and_leaves_out_turns_without_frames(tmp_path: Path) -> None:
    found = examples(dialogue_files.write(tmp_path, "multiwoz"), "multiwoz")
    assert [example.scored for example in found] == [True, True, False]
    (group,) = read_reference(found[1].alternatives[0])
    assert group["hotel"] == {"hotel-area": Slot("first", ("north",)), "hotel-ref": Slot("any"),
                              "hotel-name": Slot("any", ("the gables", "gables"))}  # fmt: skip
    assert group["taxi"]["taxi-leaveat"] == Slot("any", ("08:00", "8:00"))
    assert found[2].target == "{}"


def test_the_files_of_the_docs_are_read(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "data_format.md").read_text(encoding="utf-8")
    section = page[page.index("## Dialogues") : page.index("## Questions without users")]
    talks, schema = map(json.loads, re.findall(r"```json\n(.*?)```", section, re.DOTALL))
    for name in ("sgd", "multiwoz"):
        (found,) = examples(dialogue_files.write(tmp_path / name, name, talks, schema), name)
        assert found.target == '{"Restaurants_2": {"date": "March 8th"}}'


def test_withheld_states_have_no_target(tmp_path: Path) -> None:
    talk = copy.deepcopy(dialogue_files.TALKS[0])
    del talk["turns"][2]["frames"][0]["state"]
    found = examples(dialogue_files.write(tmp_path, "sgd", [talk]))
    assert [example.target is None for example in found] == [False, True, False]
    assert [len(example.alternatives) for example in found] == [1, 0, 1]


def test_files_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    root = dialogue_files.write(tmp_path, "sgd")
    (root / "test" / "dialogues_002.json").rename(root / "test" / "dialogues_10.json")
    (root / "test" / "dialogues_001.json").rename(root / "test" / "dialogues_9.json")
    assert [example.id for example in examples(root)][::4] == ["1_00000-000", "2_00000-002"]


Change = Callable[[dict[str, Any], list[Any]], object]


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (lambda talk, schema: talk["services"].append("Trains_9"), "field 'services': found the unknown ser"),
        (lambda talk, schema: talk["turns"][0]["frames"][0].update(service="X"),
         "field 'turns[0].frames[0].service': found the unknown service 'X', wanted one of schema.json: Tab"),
        (lambda talk, schema: talk["turns"][0]["frames"].append(talk["turns"][0]["frames"][0]),
         "found the id 'Tables_1' a second time"),
        (lambda talk, schema: talk["turns"][1].update(speaker="BOT"), "found 'BOT', wanted USER or SYSTEM"),
        (lambda talk, schema: talk["turns"][0]["frames"][0]["state"]["slot_values"].update(city="Rome"),
         "found a string, wanted a list"),
        (lambda talk, schema: talk["turns"][0].pop("utterance"), "unhandled"),
        (lambda talk, schema: schema.append(schema[0]), "found the id 'Tables_1' a second time"),
        (lambda talk, schema: schema[0]["slots"].append(schema[0]["slots"][0]),
         "field 'slots[4].name': found the id 'city' a second time"),
    ],
)  # fmt: skip
def test_bad_files_are_refused_in_one_line(
    change: Change, wanted: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    talk, schema = copy.deepcopy(dialogue_files.TALKS[0]), copy.deepcopy(dialogue_files.SGD)
    change(talk, schema)
    root = dialogue_files.write(tmp_path, "sgd", [talk], schema)
    if wanted == "unhandled":  # a turn without words
        assert examples(root)[0].query == ""
        return
    command = ["data", "validate", "--benchmark.name", "sgd", "--benchmark.root", str(root)]
    assert main(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert wanted in line


def test_a_dialogue_that_stands_twice_is_refused(tmp_path: Path) -> None:
    root = dialogue_files.write(tmp_path, "sgd", [dialogue_files.TALKS[0]] * 2)
    with pytest.raises(UserError, match=r"dialogues_002.json: record 0 \(dialogue_id '1_00000'\).* second t"):
        examples(root)


@pytest.mark.parametrize("name", ["sgd", "multiwoz"])
def test_a_missing_schema_is_named(name: str, tmp_path: Path) -> None:
    root = dialogue_files.write(tmp_path, name)
    next(root.rglob("schema.json")).unlink()
    with pytest.raises(UserError, match=r"schema\.json: found no such file, wanted it for the split test"):
        examples(root, name)


def test_slots_that_the_schema_lacks_are_left_out_and_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    talk = copy.deepcopy(dialogue_files.TALKS[0])
    for turn in talk["turns"][::2]:
        turn["frames"][0]["state"]["slot_values"] |= {"mood": ["good"], "phone": []}
    root = dialogue_files.write(tmp_path, "sgd", [talk])
    assert examples(root)[0].target == '{"Tables_1": {"city": "Rome"}}'
    assert main(["data", "validate", "--benchmark.name", "sgd", "--benchmark.root", str(root)]) == 0
    told = capsys.readouterr().out
    assert told.count("the slot 'mood' of Tables_1 is none of schema.json, left out") == 1
    assert told.count("the slot 'phone' of Tables_1 has no value, left out") == 1


@pytest.mark.data
@pytest.mark.long
def test_real_dialogues(real_data: Path) -> None:
    if not (real_data / "sgd").is_dir():
        pytest.skip(f"no dialogues in {real_data}")
    (summary,) = data.validate(Benchmark(name="sgd", root=str(real_data / "sgd"), split="test"))
    assert (summary.examples, summary.users, summary.repairs) == (6623, 1024, ())
    schema = json.loads((real_data / "sgd" / "test" / "schema.json").read_text())
    assert len(schema) == 21

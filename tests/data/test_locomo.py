"""LoCoMo's file: conversations, sessions, turns, evidence in all its spellings."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pbr_jax import data
from pbr_jax.base.types import Example, UserError
from pbr_jax.cli.main import main
from pbr_jax.config import Benchmark


def turn(id: str, speaker: str, text: str, **more: Any) -> dict[str, Any]:
    return {"speaker": speaker, "dia_id": id, "text": text, **more}


def question(evidence: list[Any], category: int = 1, **more: Any) -> dict[str, Any]:
    return {"question": "Where?", "answer": "here", "evidence": evidence, "category": category, **more}


def conversation(*questions: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "sample_id": "conv-1",
        "conversation": {
            "speaker_a": "Ann",
            "speaker_b": "Bob",
            "session_10_date_time": "1:10 pm on 3 May, 2023",
            "session_10": [turn("D10:1", "Bob", "Late\nnews")],
            "session_2_date_time": "12:05 am on 1 May, 2023",
            "session_2": [
                turn("D2:1", "Ann", "Hi!\n\n"),
                turn("D2:2", "Bob", "Look", blip_caption="a photo of a cat", img_url=["x"]),
                turn("D2:11", "Ann", "Nice"),
            ],
            "session_3": [],
            "session_4_date_time": "1:00 pm on 9 May, 2023",
        },
        "qa": list(questions or [question(["D2:1"])]),
        **more,
    }


def write(tmp_path: Path, *records: Any, form: Any = "official") -> Benchmark:
    path = tmp_path / "locomo10.json"
    path.write_text(json.dumps(list(records)))
    return Benchmark(name="locomo", root=str(tmp_path), split="locomo10", form=form)


def only(benchmark: Benchmark) -> Example:
    (example,) = data.read(benchmark)
    return example


def test_a_document_is_a_session_of_both_speakers_a_turn_a_line(tmp_path: Path) -> None:
    example = only(write(tmp_path, conversation()))
    first, last = example.profile
    assert (first.id, last.id) == ("conv-1_session_2", "conv-1_session_10")  # by number, empty ones left out
    assert first.text == "Ann: Hi!\nBob: Look and shared a photo of a cat.\nAnn: Nice"
    assert last.text == "Bob: Late news"
    ends = (*first.turns[1:], len(first.text) + 1)
    lines = [first.text[begin:end] for begin, end in zip(first.turns, ends, strict=True)]
    assert "".join(lines) == first.text
    assert [line.split(":")[0] for line in lines] == ["Ann", "Bob", "Ann"]
    assert first.fields == {"date": "12:05 am on 1 May, 2023", "speakers": "Ann, Bob"}
    assert last.fields["speakers"] == "Bob"
    assert (first.time, last.time) == (1682899500.0, 1683119400.0)
    assert example.time == 1683119401.0
    assert (example.id, example.user_id, example.unit) == ("conv-1_0", "conv-1", "conv-1")
    assert example.relevant == (("conv-1_session_2",),)


def test_in_the_form_turns_a_document_is_a_turn(tmp_path: Path) -> None:
    example = only(write(tmp_path, conversation(), form="turns"))
    assert [d.id for d in example.profile] == ["conv-1_D2:1", "conv-1_D2:2", "conv-1_D2:11", "conv-1_D10:1"]
    assert example.profile[1].text == "Bob: Look and shared a photo of a cat."
    assert example.profile[1].time == 1682899500.0
    assert example.relevant == (("conv-1_D2:1",),)


@pytest.mark.parametrize(
    ("evidence", "sessions", "turns", "notes"),
    [
        (["D2:1", "D2:11"], ["2"], ["D2:1", "D2:11"], 0),
        (["D2:1; D10:1"], ["2", "10"], ["D2:1", "D10:1"], 0),
        (["D2:1 D10:1 D2:2"], ["2", "10"], ["D2:1", "D10:1", "D2:2"], 0),
        (["D:2:11"], ["2"], ["D2:11"], 0),
        (["D2;1"], ["2"], ["D2:1"], 0),
        (["D02:01"], ["2"], ["D2:1"], 0),
        (["D10:9"], ["10"], [], 1),  # beyond the last turn: the session is known, the turn is not
        (["D2:5"], ["2"], ["D2:2"], 0),  # left out beside a turn with a picture
        (["D"], [], [], 1),
        (["D2:1", ""], ["2"], ["D2:1"], 1),
        (["D7:1"], [], [], 1),
        ([], [], [], 0),
    ],
)
def test_evidence_is_found_in_every_spelling(
    tmp_path: Path, evidence: list[str], sessions: list[str], turns: list[str], notes: int
) -> None:
    benchmark = write(tmp_path, conversation(question(evidence)))
    example = only(benchmark)
    assert [group for (group,) in example.relevant] == [f"conv-1_session_{name}" for name in sessions]
    assert example.scored == bool(sessions)
    (summary,) = data.validate(write(tmp_path, conversation(question(evidence)), form="turns"))
    found = only(write(tmp_path, conversation(question(evidence)), form="turns"))
    assert [group for (group,) in found.relevant] == [f"conv-1_{name}" for name in turns]
    assert len(summary.repairs) == notes
    for note in summary.repairs:
        assert note.startswith(f"{tmp_path / 'locomo10.json'}: record 0, field 'qa[0].evidence[")


@pytest.mark.parametrize("answered", [False, True])
def test_an_adversarial_question_has_evidence_and_no_target(tmp_path: Path, answered: bool) -> None:
    asked = question(["D2:1"], 5, adversarial_answer="in Rome")
    if not answered:  # the release gives two of them an answer, too
        del asked["answer"]
    example = only(write(tmp_path, conversation(asked)))
    assert (example.category, example.target) == ("adversarial", None)
    assert (example.options, example.alternatives) == ((), ())
    assert example.scored
    assert example.relevant == (("conv-1_session_2",),)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sample_id": ""}, "field 'sample_id': found an empty string"),
        (
            {"conversation": {"session_1": [turn("1", "Ann", "x")]}},
            "field 'conversation.session_1[0].dia_id': found '1', wanted an id such as D1:3",
        ),
        (
            {"conversation": {"session_1": [turn("D1:1", "Ann", "x"), turn("D1:01", "Ann", "y")]}},
            "field 'conversation.session_1[1].dia_id': found the id 'D1:01' a second time",
        ),
        (
            {"conversation": {"session_1": [turn("D1:1", "Ann", "x")], "session_1_date_time": "once"}},
            "field 'conversation.session_1_date_time': found 'once', wanted a date",
        ),
        ({"qa": [question(["D2:1"], 6)]}, "field 'qa[0].category': found 6, wanted one of 1, 2, 3, 4, 5"),
        ({"qa": [question([None])]}, "field 'qa[0].evidence[0]': found null, wanted a string"),
    ],
)  # fmt: skip
def test_a_malformed_record_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        list(data.read(write(tmp_path, conversation() | change)))
    assert str(error.value).startswith(f"{tmp_path / 'locomo10.json'}: record 0")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_validate_counts_and_says_what_evidence_names_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark = write(tmp_path, conversation(question(["D2:1", "D9:9"])))
    command = ["data", "validate", "--benchmark.name", "locomo", "--benchmark.root", benchmark.root]
    assert main([*command, "--benchmark.form", "turns"]) == 0
    shown = capsys.readouterr().out
    assert (
        "locomo10: 1 question of 1 user; a question sees 4 of 4 documents; 1 with a target; 1 with relevant"
        in shown
    )
    assert "field 'qa[0].evidence[1]': 'D9:9' names a turn that is not there, left out" in shown


def test_two_conversations_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="record 1, field 'sample_id': found the id 'conv-1' a second time"):
        list(data.read(write(tmp_path, conversation(), conversation())))


@pytest.mark.data
@pytest.mark.parametrize("form", ["official", "turns"])
def test_the_released_file_is_read_whole(real_data: Path, form: Any) -> None:
    path = real_data / "locomo" / "locomo10.json"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    examples = list(data.read(Benchmark(name="locomo", root=str(path), split="locomo10", form=form)))
    assert len(examples) == 1806
    assert len({example.unit for example in examples}) == 10
    counts = {"single_hop": 748, "adversarial": 446, "temporal": 277, "multi_hop": 250, "open_domain": 85}
    assert Counter(example.category for example in examples) == counts
    assert sum(example.scored for example in examples) == 1802  # four name no evidence
    documents = {d.id: d for example in examples for d in example.profile}
    assert {name for example in examples for group in example.relevant for name in group} <= documents.keys()
    raw = json.loads(path.read_bytes())
    adversarial = {
        f"{one['sample_id']}_{i}" for one in raw for i, q in enumerate(one["qa"]) if q["category"] == 5
    }
    assert {example.id for example in examples if example.target is None} == adversarial
    assert sum(example.scored for example in examples if example.id in adversarial) == 446
    assert all(example.target for example in examples if example.id not in adversarial)
    said = [
        t["text"].split()[0]
        for record in raw
        for name, turns in record["conversation"].items()
        if isinstance(turns, list)
        for t in turns
    ]
    assert sum(len(document.text.split("\n")) for document in documents.values()) == len(said)

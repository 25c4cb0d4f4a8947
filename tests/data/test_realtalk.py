"""REALTALK's chats: questions about them, and the next message of a person."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from pbr_jax import data
from pbr_jax.base.types import UserError
from pbr_jax.config import Benchmark


def message(id: str, speaker: str, text: str, moment: str, **more: Any) -> dict[str, Any]:
    return {"clean_text": text, "speaker": speaker, "date_time": moment, "img_file": [], "dia_id": id, **more}


def chat(first: str, second: str, day: int, *evidence: str, **more: Any) -> dict[str, Any]:
    """Two sessions; the ids of the second go on where those of the first end."""
    return {
        "name": {"speaker_1": first, "speaker_2": second},
        "session_1": [
            message("D1:1", first, "Hello", f"{day:02}.01.2024, 10:00:00"),
            message("D1:2", second, "Hi", f"{day:02}.01.2024, 10:01:00"),
            message("D1:4", second, "My cat", f"{day:02}.01.2024, 10:02:00", img_file=["cat.jpg"]),
        ],
        "session_2": [
            message("D1:5", second, "Back", f"{day + 1:02}.01.2024, 10:00:00"),
            message("D1:6", first, "Me too", f"{day + 1:02}.01.2024, 10:01:00"),
        ],
        "session_1_date_time": f"{day:02}.01.2024, 10:00:00",
        "session_2_date_time": f"{day + 1:02}.01.2024, 10:00:00",
        "qa": [{"question": "Who?", "answer": "Ann", "evidence": list(evidence or ["D1:5"]), "category": 2}],
        **more,
    }


def write(tmp_path: Path, *chats: Any, name: str = "realtalk", form: Any = "official") -> Benchmark:
    for number, one in enumerate(chats, 1):
        (tmp_path / f"Chat_{number}.json").write_text(json.dumps(one))
    return Benchmark(name=name, root=str(tmp_path), split="all", form=form)


def test_evidence_is_found_by_ids_and_not_by_the_number_of_a_session(tmp_path: Path) -> None:
    (example,) = data.read(write(tmp_path, chat("Ann", "bob", 1, "D1:5")))
    assert example.relevant == (("Chat_1_session_2",),)
    assert (example.category, example.unit) == ("temporal", "Chat_1")
    assert [d.text for d in example.profile] == ["Ann: Hello\nbob: Hi\nbob: My cat", "bob: Back\nAnn: Me too"]
    assert example.profile[1].time == 1704189600.0
    assert [d.fields["speakers"] for d in example.profile] == ["Ann, bob", "Ann, bob"]


def test_a_picture_that_was_left_out_is_found_with_the_message_that_shows_it(tmp_path: Path) -> None:
    (session,) = data.read(write(tmp_path, chat("Ann", "bob", 1, "D1:3")))
    assert session.relevant == (("Chat_1_session_1",),)
    (turn,) = data.read(write(tmp_path, chat("Ann", "bob", 1, "D1:3"), form="turns"))
    assert turn.relevant == (("Chat_1_D1:4",),)
    assert [d.time for d in turn.profile[:2]] == [1704103200.0, 1704103260.0]


def test_a_question_of_a_person_is_a_message_that_answers(tmp_path: Path) -> None:
    chats = [chat("Ann", "Bob", 10), chat("ann", "Cid", 5)]
    examples = {e.id: e for e in data.read(write(tmp_path, *chats, name="realtalk_persona"))}
    # Bob's first message answers too, but he has written nothing before it.
    assert set(examples) == {"Chat_1_D1:6", "Chat_2_D1:6"}
    asked = examples["Chat_1_D1:6"]
    assert (asked.user_id, asked.target) == ("ann", "Me too")
    assert asked.input == "Bob: Back\nWhat Ann writes next:"
    assert asked.query == "Bob: Back"
    # From both chats, by whatever spelling, strictly before the session began.
    assert [(d.id, d.text) for d in asked.profile] == [
        ("Chat_1_D1:1", "Hello"), ("Chat_2_D1:1", "Hello"), ("Chat_2_D1:6", "Me too"),
    ]  # fmt: skip
    assert [d.id for d in examples["Chat_2_D1:6"].profile] == ["Chat_2_D1:1"]


def test_the_last_messages_of_the_session_are_shown(tmp_path: Path) -> None:
    day = [message(f"D2:{n}", "AB"[n % 2], f"m{n}", f"09.01.2024, 10:{n:02}:00") for n in range(1, 30)]
    first = [message(f"D1:{n}", "AB"[n - 1], "x", "01.01.2024, 10:00:00") for n in (1, 2)]
    one = chat("A", "B", 1) | {"session_1": first, "session_2": day, "qa": []}
    examples = list(data.read(write(tmp_path, one, name="realtalk_persona")))
    assert len(examples) == 28
    assert examples[0].input == "B: m1\nWhat A writes next:"
    assert examples[-1].input.split("\n")[:-1] == [f"{'AB'[n % 2]}: m{n}" for n in range(21, 29)]


@pytest.mark.parametrize(
    ("change", "message_"),
    [
        ({"name": {"speaker_1": "Ann", "speaker_2": "Cid"}}, "field 'session_1[1].speaker': found 'Bob'"),
        ({"session_2_date_time": "soon"}, "field 'session_2_date_time': found 'soon'"),
    ],
)  # fmt: skip
def test_a_malformed_chat_is_named(tmp_path: Path, change: dict[str, Any], message_: str) -> None:
    with pytest.raises(UserError) as error:
        list(data.read(write(tmp_path, chat("Ann", "Bob", 1) | change)))
    assert str(error.value).startswith(f"{tmp_path / 'Chat_1.json'}: ")
    assert message_ in str(error.value)


def test_a_message_without_a_moment_is_no_history(tmp_path: Path) -> None:
    one = chat("Ann", "Bob", 1)
    one["session_1"][0]["date_time"] = ""
    with pytest.raises(
        UserError, match=r"field 'session_1\[0\].date_time': found no date, wanted the moment"
    ):
        list(data.read(write(tmp_path, one, name="realtalk_persona")))


@pytest.fixture
def chats(real_data: Path) -> Path:
    if not (root := real_data / "realtalk").is_dir():
        pytest.skip(f"{root} is not there")
    return root


@pytest.mark.data
def test_the_released_chats_are_read_whole(chats: Path) -> None:
    examples = list(data.read(Benchmark(name="realtalk", root=str(chats), split="all")))
    assert Counter(e.category for e in examples) == {"temporal": 212, "multi_hop": 211, "commonsense": 79}
    assert len({e.unit for e in examples}) == 7
    assert sum(e.scored for e in examples) == 500
    persona = list(data.read(Benchmark(name="realtalk_persona", root=str(chats), split="all")))
    people = {"emi", "elise", "kevin", "paola", "nicolas", "nebraas", "vanessa"}
    assert {e.user_id for e in persona} == people
    for example in persona:
        assert all(d.time is not None and d.time < (example.time or 0) for d in example.profile)
    assert all(len({d.id.rsplit("_D", 1)[0] for d in e.profile}) <= 2 for e in persona)  # both chats, no more

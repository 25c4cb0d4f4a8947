"""LongMemEval's schema and the official rules of relevance."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pbr_jax import data
from pbr_jax.base.types import Example, UserError
from pbr_jax.config import Benchmark, Config, override
from pbr_jax.data import prepared
from pbr_jax.experiment.plan import Plan
from pbr_jax.methods import retrieve


def turn(role: str, content: str, has_answer: bool | None = None) -> dict[str, Any]:
    return {"role": role, "content": content} | ({} if has_answer is None else {"has_answer": has_answer})


def question(
    name: str = "q1", sessions: dict[str, list[Any]] | None = None, **changes: Any
) -> dict[str, Any]:
    sessions = sessions or {
        "s1": [turn("user", "I moved."), turn("assistant", "Where?"), turn("user", "To Rome.")],
        "answer_s2": [turn("user", "My cat is Tom.", True), turn("assistant", "Nice.", False)],
    }
    return {
        "question_id": name,
        "question_type": "single-session-user",
        "question": "What is my cat's name?",
        "answer": "Tom",
        "question_date": "2023/05/30 (Tue) 23:40",
        "haystack_session_ids": list(sessions),
        "haystack_dates": ["2023/05/20 (Sat) 02:21"] * len(sessions),
        "haystack_sessions": list(sessions.values()),
        "answer_session_ids": ["answer_s2"],
        **changes,
    }


def write(root: Path, *questions: Any) -> Benchmark:
    path = root / "longmemeval_s.json"
    path.write_text(json.dumps(questions))
    return Benchmark(name="longmemeval", root=str(root), split=path.stem)


def only(benchmark: Benchmark) -> Example:
    (example,) = data.read(benchmark)
    return example


def error_of(benchmark: Benchmark) -> str:
    with pytest.raises(UserError) as error:
        list(data.read(benchmark))
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_document_is_the_user_side_of_a_session(tmp_path: Path) -> None:
    example = only(write(tmp_path, question()))
    assert (example.id, example.user_id, example.category) == ("q1", "q1", "single-session-user")
    assert example.query == "What is my cat's name?"
    assert example.target == "Tom"
    assert [(document.id, document.text) for document in example.profile] == [
        ("s1", "I moved. To Rome."),
        ("answer_s2", "My cat is Tom."),
    ]
    assert [document.time for document in example.profile] == [1684549260.0] * 2
    assert example.time == 1685490000.0
    assert example.relevant == (("answer_s2",),)
    assert example.scored


TALK = [turn("user", "Deb: Hi Jo: how are you?"), turn("assistant", "Jo:  Fine"), turn("user", "Deb: Good!")]
ELSE = [turn("user", "Jo: Hi."), turn("assistant", "Deb: Hi")]


@pytest.mark.parametrize(
    ("sessions", "unit"),
    [
        ({"conv-4_session_1": TALK, "answer_conv-4_session_12": TALK}, "conv-4 Deb"),
        ({"conv-4_session_1": ELSE}, "conv-4 Jo"),
        ({"conv-4_session_1": TALK, "conv-4_session_2": ELSE}, "conv-4"),
        ({"conv-4_session_1": [turn("user", "Hi.")]}, "conv-4"),
        ({"conv-4_session_1": [turn("assistant", "Deb: Hi.")]}, "conv-4"),
        ({"conv-4_session_1": TALK, "conv-5_session_1": TALK}, ""),
        ({"conv-4_session_1": TALK, "sharegpt_1": TALK}, ""),
        ({"sharegpt_1": TALK, "answer_280352e9": TALK}, ""),  # LongMemEval's own
    ],
)
def test_the_unit_of_a_question_of_two_speakers(tmp_path: Path, sessions: dict[str, Any], unit: str) -> None:
    assert only(write(tmp_path, question(sessions=sessions))).unit == unit


@pytest.mark.data
def test_locomos_units_are_its_speakers(real_data: Path) -> None:
    root = real_data / "longmemeval_like_locomo"
    examples = list(data.read(Benchmark(name="longmemeval", root=str(root), split="locomo_dev")))
    assert (len(examples), len({e.unit for e in examples})) == (120, 20)
    histories: dict[str, set[tuple[str, ...]]] = {}
    for example in examples:
        histories.setdefault(example.unit, set()).add(tuple(d.text for d in example.profile))
    assert {len(own) for own in histories.values()} == {1}  # a unit is all questions of one history


def test_a_session_answered_by_the_assistant_alone_is_not_relevant(tmp_path: Path) -> None:
    sessions = {
        "answer_1": [turn("user", "Which?", False), turn("assistant", "This.", True)],
        "answer_2": [turn("user", "It is blue.", True)],
        "answer_3": [turn("user", "Old release, no marks.")],
        "other": [turn("user", "Marked but not named.", True)],
    }
    example = only(write(tmp_path, question(sessions=sessions)))
    assert example.relevant == (("answer_2",),)
    assert example.scored


def test_in_pbrs_form_a_document_is_json_and_every_session_named_an_answer_is_relevant(
    tmp_path: Path,
) -> None:
    sessions = {
        "answer_1": [turn("user", 'Which "café"?', False), turn("assistant", "This.", True)],
        "answer_2": [turn("user", "It is blue.", True), turn("assistant", "Ah."), turn("user", "Yes.")],
        "other": [turn("user", "Marked but not named.", True)],
    }
    untold = {"answer_1": sessions["answer_1"]}
    benchmark = write(
        tmp_path, question("q1", sessions), question("q2", untold), question("q3_abs", sessions)
    )
    found = list(data.read(replace(benchmark, form="pbr")))
    date = "2023/05/20 (Sat) 02:21"
    assert found[0].profile[0].text == r'{"date":"' + date + r'","conversation":["Which \"caf\u00e9\"?"]}'
    assert [json.loads(document.text) for document in found[0].profile[1:]] == [
        {"date": date, "conversation": ["It is blue.", "Yes."]},
        {"date": date, "conversation": ["Marked but not named."]},
    ]
    assert found[0].relevant == (("answer_1",), ("answer_2",))
    official = list(data.read(benchmark))
    assert official[0].relevant == (("answer_2",),)
    assert [e.scored for e in found] == [e.scored for e in official] == [True, False, False]
    assert [d.fields for d in found[0].profile] == [d.fields for d in official[0].profile]


def test_the_form_is_a_part_of_the_datas_key_and_of_longmemeval_alone(tmp_path: Path) -> None:
    benchmark = write(tmp_path, question())
    config = Config(benchmark=benchmark, retrieve=retrieve.Recency())
    pbr = override(config, {"benchmark.form": "pbr"})
    assert Plan(config).data.key != Plan(pbr).data.key
    with pytest.raises(UserError, match=r"benchmark\.form: found 'pbr', wanted official or cfrag for lamp_7"):
        Plan(override(pbr, {"benchmark.name": "lamp_7"}))


def test_prepared_data_are_of_the_official_form_alone(tmp_path: Path) -> None:
    pytest.importorskip("array_record")
    benchmark = write(tmp_path, question())
    there = replace(benchmark, root=str(prepared.prepare(benchmark, tmp_path / "prepared")))
    assert only(there) == only(benchmark)
    assert "prepared with benchmark.form 'official', wanted 'pbr'" in error_of(replace(there, form="pbr"))


def test_what_the_official_scorer_skips_is_not_scored(tmp_path: Path) -> None:
    untold = {"answer_1": [turn("user", "Which?"), turn("assistant", "This.", True)]}
    benchmark = write(tmp_path, question("q1_abs"), question("q2", untold), question("q3"))
    assert [example.scored for example in data.read(benchmark)] == [False, False, True]


def test_a_session_id_that_occurs_again_stays_one_fact(tmp_path: Path) -> None:
    record = question()
    for part in ("session_ids", "dates", "sessions"):
        record[f"haystack_{part}"] += record[f"haystack_{part}"][::-1]
    benchmark = write(tmp_path, record)
    example = only(benchmark)
    names = [document.id for document in example.profile]
    assert names == ["s1", "answer_s2", "answer_s2#2", "s1#2"]
    assert example.relevant == (("answer_s2", "answer_s2#2"),)
    assert len(data.validate(benchmark)[0].repairs) == 2


def test_empty_histories_and_silent_users_are_valid(tmp_path: Path) -> None:
    empty = question("q1", haystack_session_ids=[], haystack_dates=[], haystack_sessions=[])
    silent = question("q2", {"s1": [turn("assistant", "Hello?")]})
    first, second = data.read(write(tmp_path, empty, silent))
    assert first.profile == ()
    assert not first.scored
    assert [document.text for document in second.profile] == [""]


def test_a_split_is_the_stem_of_a_file(tmp_path: Path) -> None:
    benchmark = write(tmp_path, question())
    (tmp_path / "longmemeval_s_cleaned.json").write_text(json.dumps([question("q9")]))
    assert data.splits(benchmark) == ("longmemeval_s", "longmemeval_s_cleaned")
    cleaned = Benchmark(name="longmemeval", root=str(tmp_path), split="longmemeval_s_cleaned")
    assert only(cleaned).id == "q9"
    path = str(tmp_path / "longmemeval_s.json")
    alone = Benchmark(name="longmemeval", root=path, split="longmemeval_s")
    assert data.splits(alone) == ("longmemeval_s",)
    assert only(alone) == only(benchmark)
    assert [str(file) for file in data.files(alone)] == [path]
    assert "wanted 'dev'" in error_of(Benchmark(name="longmemeval", root=path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"haystack_dates": []}, "field 'haystack_sessions': found 2 ids, 0 dates and 2 sessions"),
        (
            {"haystack_sessions": [[], "x"]},
            "field 'haystack_sessions[1]': found a string, wanted a list of turns",
        ),
        ({"haystack_dates": ["once", ""]}, "field 'haystack_dates[0]': found 'once'"),
        ({"question_date": "once"}, "field 'question_date': found 'once'"),
        ({"question_id": "q1"}, "field 'question_id': found the id 'q1' a second time"),
    ],
)
def test_a_malformed_record_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    error = error_of(write(tmp_path, question("q1"), question("q2") | change))
    name = change.get("question_id", "q2")
    assert error.startswith(f"{tmp_path / 'longmemeval_s.json'}: record 1 (question_id '{name}')")
    assert message in error


@pytest.mark.data
def test_the_real_dialogues_are_read_whole(real_data: Path) -> None:
    root = real_data / "longmemeval_like_locomo"
    benchmark = Benchmark(name="longmemeval", root=str(root), split="locomo_dev")
    raw = json.loads((root / "locomo_dev.json").read_bytes())
    found = list(data.read(benchmark))
    assert len(found) == 120
    assert all(example.scored for example in found)
    for record, example in zip(raw, found, strict=True):
        texts = [
            " ".join(turn["content"] for turn in session if turn["role"] == "user")
            for session in record["haystack_sessions"]
        ]
        assert [document.text for document in example.profile] == texts
        assert all(document.time is not None for document in example.profile)
    # Four sessions named as answers hold it on the assistant's side only.
    named = sum("answer" in name for record in raw for name in record["haystack_session_ids"])
    assert sum(len(example.relevant) for example in found) == named - 4


def test_a_question_of_the_training_split_is_another_user(tmp_path: Path) -> None:
    benchmark = write(tmp_path, question())
    learned = only(replace(benchmark, training=benchmark.split))
    assert (learned.id, learned.user_id) == ("q1", "longmemeval_s/q1")
    assert {document.user_id for document in learned.profile} == {"longmemeval_s/q1"}
    taken = write(tmp_path, question("other/q1"))
    assert "'other/q1', which a user of the training split may be called" in error_of(
        replace(taken, training="other")
    )


def test_a_session_whose_id_looks_like_a_repeated_one_is_another_document(tmp_path: Path) -> None:
    names = ["s1", "s1", "s1#2"]
    changes: dict[str, Any] = {"haystack_session_ids": names, "haystack_dates": [""] * 3}
    asked = question(**changes, haystack_sessions=[[turn("user", name)] for name in names])
    assert len({document.id for document in only(write(tmp_path, asked)).profile}) == 3

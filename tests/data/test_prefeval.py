"""PrefEval's released folder: what becomes a document, what is relevant, and how options are matched."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbr_jax import data
from pbr_jax.base.types import Example, UserError
from pbr_jax.config import Benchmark
from pbr_jax.corpus.store import Store, build
from pbr_jax.data import prepared

OFFERED = ["Visit a museum.", "Climb a tower.", "Go ziplining.", "Take a balloon ride."]


def asked(place: int = 0, **changes: Any) -> dict[str, Any]:
    return {"preference": f"I fear heights {place}.", "question": f"What to do in town {place}?",
            "explanation": "x", **changes}  # fmt: skip


def chosen(place: int = 0) -> dict[str, Any]:
    told = {"query": "Fun for the weekend?", "assistant_options": "1. Climb. 2. Museum.",
            "user_selection": "2, the other is too high.", "assistant_acknowledgment": "Good."}  # fmt: skip
    return asked(place, conversation=told, aligned_op="Museum.")


def talk(*texts: str) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {"conversation": [{"role": roles[place % 2], "content": text} for place, text in enumerate(texts)]}


def write(
    root: Path,
    *questions: dict[str, Any],
    options: list[Any] | None = None,
    between: list[Any] | None = None,
    **fields: Any,
) -> Benchmark:
    questions = questions or (asked(),)
    options = (
        [{**q, "classification_task_options": OFFERED} for q in questions] if options is None else options
    )
    between = [talk("a", "b", "c", "d"), talk("e", "f")] if between is None else between
    files = {
        "explicit_preference/travel.json": list(questions),
        "implicit_preference/choice-based/travel.json": [chosen(place) for place in range(len(questions))],
        "mcq_options/travel.json": options,
        "filtered_inter_turns.json": between,
    }
    for name, value in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(json.dumps(value))
    return Benchmark(
        **{"name": "prefeval", "root": str(root), "split": "explicit", "inter_turns": 2, **fields}
    )


def error_of(benchmark: Benchmark) -> str:
    with pytest.raises(UserError) as error:
        data.validate(benchmark)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_question_has_the_preference_first_and_the_turns_between(tmp_path: Path) -> None:
    (example,) = data.read(write(tmp_path))
    assert (example.id, example.user_id, example.unit, example.category) == ("travel_0",) * 2 + (
        "travel",
    ) * 2
    assert example.query == example.input == "What to do in town 0?"
    assert [(d.id, d.text) for d in example.profile] == [
        ("preference_0", "User: I fear heights 0."),
        ("turn_0", "User: a\nAssistant: b"),
        ("turn_1", "User: c\nAssistant: d"),
    ]
    assert example.relevant == (("preference_0",),)
    assert (example.target, example.options) == (OFFERED[0], tuple(sorted(OFFERED)))


def test_a_choice_states_the_preference_in_two_turns(tmp_path: Path) -> None:
    (example,) = data.read(write(tmp_path, split="choice_based"))
    assert [d.id for d in example.profile] == ["preference_0", "preference_1", "turn_0", "turn_1"]
    assert example.profile[1].text == "User: 2, the other is too high.\nAssistant: Good."
    assert example.relevant == (("preference_0",), ("preference_1",))


@pytest.mark.parametrize("count", [0, 1, 3])
def test_as_many_turns_stand_between_as_are_asked_for(tmp_path: Path, count: int) -> None:
    (example,) = data.read(write(tmp_path, inter_turns=count))
    assert [d.fields["user"] for d in example.profile[1:]] == ["a", "c", "e"][:count]


def test_more_turns_than_there_are_is_told(tmp_path: Path) -> None:
    error = error_of(write(tmp_path, inter_turns=4))
    assert "found 3 turns, wanted 4 to stand between preference and question" in error


def test_turns_between_are_of_prefeval_alone() -> None:
    with pytest.raises(UserError, match=r"benchmark\.inter_turns is 3, and lamp_7 has no turns between"):
        Benchmark(name="lamp_7", inter_turns=3)


def test_options_are_matched_by_preference_and_question_or_a_question_that_stands_once(
    tmp_path: Path,
) -> None:
    """The release says "absolutely" in some preferences of the options alone, and repeats questions."""
    same = asked(2)["question"]
    questions = [asked(0), asked(1), asked(2), asked(3, question=same), asked(4, question=same)]
    others = [[f"{place} {text}" for text in OFFERED] for place in range(4)]
    options = [
        {**question, "classification_task_options": offered} for question, offered in zip(questions, others)
    ]
    options[1]["preference"] = "I absolutely fear heights 1."
    benchmark = write(tmp_path, *questions, options=options[::-1])
    found = list(data.read(benchmark))
    assert [e.id for e in found] == [f"travel_{place}" for place in range(4)]
    assert [e.target for e in found] == [f"{place} {OFFERED[0]}" for place in range(4)]
    (explicit, choice) = data.validate(benchmark)
    assert (explicit.examples, choice.examples) == (4, 3)
    assert explicit.repairs[0].endswith("travel.json: 1 questions have no options in mcq_options, left out")


def test_topics_without_preferences_are_noted(tmp_path: Path) -> None:
    benchmark = write(tmp_path)
    (tmp_path / "mcq_options" / "hotel copy.json").write_text("[]")
    assert "hotel copy.json: no preferences of this topic" in data.validate(benchmark)[0].repairs[0]
    (tmp_path / "mcq_options" / "travel.json").unlink()
    with pytest.raises(UserError, match="found no example in the split explicit"):
        data.validate(benchmark)


@pytest.mark.parametrize(
    ("offered", "found"),
    [
        (["one"], "['one'], wanted two or more different answers"),
        (["one", "one "], "wanted two or more different answers"),
        (["one", " "], "wanted two or more different answers"),
        (["one", None], "found null, wanted a string"),
        ("one", "found a string, wanted a list"),
    ],
)
def test_options_that_are_none_are_told(tmp_path: Path, offered: Any, found: str) -> None:
    error = error_of(write(tmp_path, options=[{**asked(), "classification_task_options": offered}]))
    assert "travel.json: record 0" in error
    assert found in error


def test_turns_out_of_order_are_told(tmp_path: Path) -> None:
    wrong = talk("a", "b")["conversation"][::-1]
    error = error_of(write(tmp_path, between=[{"conversation": wrong}]))
    assert "field 'conversation[0].role': found 'assistant', wanted 'user', turn by turn" in error


def test_the_training_split_has_users_of_its_own(tmp_path: Path) -> None:
    benchmark = write(tmp_path, training="choice_based")
    (own,) = data.read(benchmark)
    (other,) = data.read(replace(benchmark, split="choice_based"))
    assert (own.user_id, other.user_id) == ("travel_0", "choice_based/travel_0")


TEXTS = st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip)


@given(st.lists(TEXTS, min_size=2, max_size=6, unique_by=str.strip), TEXTS, TEXTS)
def test_any_question_offers_all_its_options_and_the_store_gives_them_back(
    tmp_path_factory: pytest.TempPathFactory, offered: list[str], preference: str, question: str
) -> None:
    folder = tmp_path_factory.mktemp("any")
    one = asked(preference=preference, question=question)
    (example,) = data.read(write(folder, one, options=[{**one, "classification_task_options": offered}]))
    assert example.options == tuple(sorted(text.strip() for text in offered))
    assert example.target == offered[0].strip()
    build(folder / "store.sqlite", [example])
    (back,) = Store(folder / "store.sqlite").examples()
    assert back == replace(example, profile=())


def test_prepared_data_are_of_ten_turns(tmp_path: Path) -> None:
    pytest.importorskip("array_record")
    between = [talk(*map(str, range(24)))]
    benchmark = write(tmp_path / "data", between=between, inter_turns=10)
    path = str(prepared.prepare(benchmark, tmp_path / "prepared"))
    assert list(data.read(replace(benchmark, root=path))) == list(data.read(benchmark))
    with pytest.raises(UserError, match=r"prepared with benchmark\.inter_turns 10, wanted 2"):
        data.read(replace(benchmark, root=path, inter_turns=2))


@pytest.mark.data
def test_the_release_has_691_questions_of_14_topics_in_both_forms(real_data: Path) -> None:
    root = real_data / "prefeval"
    for split, stated in (("explicit", 1), ("choice_based", 2)):
        found: list[Example] = list(data.read(Benchmark(name="prefeval", root=str(root), split=split)))
        assert (len(found), len({e.unit for e in found})) == (691, 14)
        assert all(len(e.profile) == stated + 10 and e.target in e.options for e in found)
        first = sum(e.options[0] == e.target for e in found)
        assert 0.2 < first / 691 < 0.3  # the order of the options does not tell
    released = json.loads((root / "mcq_options" / "shop_motors.json").read_text())
    motors = [e for e in found if e.unit == "shop_motors"]
    assert [e.target for e in motors] == [one["classification_task_options"][0].strip() for one in released]

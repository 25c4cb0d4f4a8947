"""What stands at any place of a benchmark's files: read where it is of its kind, else refused in one line."""

import copy
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dialogue_files
import pytest
import test_lamp as lamp
import test_locomo as locomo
import test_longlamp as longlamp
import test_longmemeval as longmemeval
import test_lucid as lucid
import test_own as own
import test_personabench as personabench
import test_personamem as personamem
import test_prefeval as prefeval
import test_realtalk as realtalk
import test_web_qa as web_qa
import test_xquad as xquad

from pbr_jax import data
from pbr_jax.base.types import UserError
from pbr_jax.config import Benchmark

Place = tuple[str | int, ...]
LEFT_OUT = object()
ODD = (LEFT_OUT, None, True, 10**30, "", "\ud83d", [], [math.nan], {"odd": 1e308})


def write_longlamp(root: Path) -> Benchmark:
    longlamp.write(root / "val.jsonl", longlamp.rows("longlamp_topic"))
    return Benchmark(name="longlamp_topic", root=str(root))


def write_personabench(root: Path) -> Benchmark:
    personabench.make(root)
    return Benchmark(name="personabench", root=str(root), split=personabench.NOISE)


def write_own(root: Path) -> Benchmark:
    told = {"query": "short", "target": "x", "category": "k", "unit": "u", "alternatives": ["y"]}
    seen = {"relevant": ["a", ["b"]], "time": "2024-03", "history": ["a", "b"], "order": 9, "scored": True}
    own.write(root, [{"id": "q", "user": "ann", "input": "long", **told, **seen}])
    return Benchmark(name="own", root=str(root))


def write_web_qa(root: Path) -> Benchmark:
    web_qa.write(root / "validation.ann.json", web_qa.LINES)
    return Benchmark(name="web_qa", root=str(root), passages="dev")


def write_xquad(root: Path) -> Benchmark:
    xquad.write(root / "xquad.en.json", xquad.ENGLISH)
    xquad.write(root / "xquad.de.json", xquad.GERMAN)
    return Benchmark(name="xquad", root=str(root), split="de", passages="en")


def write_nq_open(root: Path) -> Benchmark:
    (root / "NQ-open.dev.jsonl").write_text(json.dumps({"question": "who?", "answer": ["Ann", "Bob"]}))
    return Benchmark(name="nq_open", root=str(root))


def write_dialogues(name: str, root: Path) -> Benchmark:
    return Benchmark(name=name, root=str(dialogue_files.write(root, name)), split="test")


WRITE: dict[str, Callable[[Path], Benchmark]] = {
    "lamp_3": lambda root: lamp.write(root, "lamp_3", [lamp.question("lamp_3")]),
    "lamp_7": lambda root: lamp.write(root, "lamp_7", [lamp.question("lamp_7")]),
    "longlamp": write_longlamp,
    "longmemeval": lambda root: longmemeval.write(root, longmemeval.question()),
    "locomo": lambda root: locomo.write(root, locomo.conversation()),
    "realtalk": lambda root: realtalk.write(root, realtalk.chat("Ann", "Bob", 1)),
    "realtalk_persona": lambda root: realtalk.write(
        root, realtalk.chat("Ann", "Bob", 1), name="realtalk_persona"
    ),
    "lucid": lambda root: lucid.write(root, lucid.question()),
    "personabench": write_personabench,
    "personamem": lambda root: personamem.first(root, personamem.row()),
    "personamem 2": lambda root: personamem.second(root, personamem.asked(1), personamem.asked(2)),
    "prefeval": prefeval.write,
    "prefeval choices": lambda root: prefeval.write(root, split="choice_based"),
    "own": write_own,
    "web_qa": write_web_qa,
    "xquad": write_xquad,
    "nq_open": write_nq_open,
    "sgd": lambda root: write_dialogues("sgd", root),
    "multiwoz": lambda root: write_dialogues("multiwoz", root),
}


SESSIONS = "session_1_date_time session_2_date_time session_1.img_file session_2.img_file "
SCHEMA = (
    "description intents intents.description intents.name intents.optional_slots intents.required_slots "
    "intents.result_slots slots.description slots.possible_values turns.frames.actions turns.frames.slots "
    "turns.frames.state turns.frames.state.active_intent turns.frames.state.requested_slots turns.utterance "
)
OPTIONAL = {  # the keys that may be left out
    "longlamp": "profile.author profile.id",
    "longmemeval": "answer answer_session_ids question_date",
    "locomo": "conversation.speaker_a conversation.speaker_b conversation.session_4_date_time "
    "conversation.session_2 conversation.session_2_date_time conversation.session_3 "
    "conversation.session_10 conversation.session_10_date_time",
    "realtalk": f"{SESSIONS} session_1 session_2 session_1.date_time session_2.date_time",
    "realtalk_persona": f"{SESSIONS} qa qa.answer qa.category qa.evidence qa.question",
    "lucid": "ans_session_topic expected_category query_topic",
    "personabench": "answer question segment_id.value Eval_Info.qa.difficulty Eval_Info.qa.outdated_value "
    "Data.session Data.time Data.Target_name Data.purchase_history.title "
    "Data.user_ai_interaction.content Data.user_ai_interaction.role Data.Conversations.session "
    "Data.Conversations.target_name Data.Conversations.time Data.Conversations.conversation.content "
    "Data.Conversations.conversation.role",
    "personamem": "c0 c0.content c0.role",  # that no question asks about
    "personamem 2": "metadata",
    "prefeval": "aligned_op explanation",
    "prefeval choices": "aligned_op explanation",
    "own": "alternatives category history order query relevant scored target time unit",
    "web_qa": "evidences.e_key evidences.eecom_features_list evidences.golden_labels evidences.source "
    "evidences.q-e.comm_features",
    "xquad": "data.paragraphs.qas.answers.answer_start data.title version",
    "sgd": f"{SCHEMA} intents.optional_slots.seats intents.optional_slots.time "
    "turns.frames.state.slot_values.city",
    "multiwoz": f"{SCHEMA} intents.optional_slots.hotel-name intents.optional_slots.hotel-ref "
    "turns.frames.state.slot_values.hotel-area",
}  # fmt: skip
NO_TEXT = ("profile.score", "profile.content", "profile.summary", "Eval_Info.qa.answer")  # or of any kind


def places(value: Any, here: Place = ()) -> Iterator[Place]:
    """Of lists the first item stands for all."""
    if here:
        yield here
    for key in [*value] if isinstance(value, dict) else [0] if value and isinstance(value, list) else []:
        yield from places(value[key], (*here, key))


def changed(value: Any, place: Place, odd: Any) -> Any:
    made = holder = copy.deepcopy(value)
    for key in place[:-1]:
        holder = holder[key]
    if odd is LEFT_OUT:
        del holder[place[-1]]
    else:
        holder[place[-1]] = odd
    return made


def outcomes(benchmark: Benchmark, file: Path) -> Iterator[tuple[Place, Any, Any, str | None]]:
    """Of each place what stands there, what is put there instead, and what is told: None where it is read."""
    text, lined = file.read_text(), file.suffix == ".jsonl" or "ann" in file.name
    whole = [*map(json.loads, text.splitlines())] if lined else json.loads(text)
    for place in places(whole):
        good: Any = whole
        for key in place:
            good = good[key]
        for odd in ODD:
            made = changed(whole, place, odd)
            file.write_text("".join(json.dumps(one) + "\n" for one in made) if lined else json.dumps(made))
            try:
                data.validate(benchmark)
                yield place, good, odd, None
            except UserError as error:
                yield place, good, odd, str(error)
    file.write_text(text)


def kind(value: Any) -> str:
    """Of a value that may stand in the place of another of its kind."""
    return {list: "list", dict: "object", bool: "switch", type(None): "null"}.get(type(value), "text")


@pytest.mark.parametrize("name", WRITE)
def test_a_key_that_is_needed_has_a_value_of_its_kind_or_is_named(name: str, tmp_path: Path) -> None:
    """And what is told of any place is one line that says where the data are."""
    benchmark = WRITE[name](tmp_path)
    data.validate(benchmark)
    optional, left_out = OPTIONAL.get(name, "").split(), set[str]()
    for file in sorted(path for path in tmp_path.rglob("*.json*") if "community_1" not in str(path)):
        for place, good, odd, told in outcomes(benchmark, file):
            where = (".".join(key for key in place if isinstance(key, str)), odd, told)
            if told is not None:
                assert "\n" not in told, where
                assert str(tmp_path) in told, where
            if isinstance(place[-1], int):
                continue
            if odd is LEFT_OUT:
                left_out |= {where[0]} if told is None else set()
                assert told is None or place[-1] in told or "found no" in told, where
            elif told is None and where[0] not in (*optional, *NO_TEXT):
                assert kind(odd) == kind(good), where
    assert left_out == {*optional}

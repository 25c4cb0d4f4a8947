"""Small files in the formats of Schema-Guided Dialogue and MultiWOZ 2.2."""

import json
from pathlib import Path
from typing import Any

Said = dict[str, dict[str, list[str]]]  # slots' values by service


def slot(name: str, values: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"name": name, "description": f"The {name}", "is_categorical": bool(values),
            "possible_values": list(values)}  # fmt: skip


def service(name: str, slots: list[dict[str, Any]], results: tuple[str, ...] = ()) -> dict[str, Any]:
    taken = [one["name"] for one in slots if one["name"] not in results]
    intent = {"name": "Find", "description": "", "required_slots": taken[:1], "result_slots": list(results),
              "optional_slots": dict.fromkeys(taken[1:], "dontcare")}  # fmt: skip
    return {"service_name": name, "description": f"About {name}", "slots": slots, "intents": [intent]}


SGD = [
    service("Tables_1", [slot("city"), slot("seats", ("1", "2")), slot("time"), slot("phone")], ("phone",)),
    service("Rides_2", [slot("city"), slot("shared", ("True", "False"))]),
]
MULTIWOZ = [
    service("hotel", [slot("hotel-area", ("north", "south")), slot("hotel-name"), slot("hotel-ref")]),
    service("taxi", [slot("taxi-destination"), slot("taxi-leaveat")]),
]


def user(text: str, said: Said) -> dict[str, Any]:
    frames = [
        {"service": name, "slots": [], "actions": [],
         "state": {"active_intent": "NONE", "requested_slots": [], "slot_values": values}}
        for name, values in said.items()
    ]  # fmt: skip
    return {"speaker": "USER", "utterance": text, "frames": frames}


def system(text: str) -> dict[str, Any]:
    return {"speaker": "SYSTEM", "utterance": text, "frames": [{"service": "Tables_1", "slots": []}]}


def dialogue(name: str, services: list[str], turns: list[dict[str, Any]]) -> dict[str, Any]:
    return {"dialogue_id": name, "services": services, "turns": turns}


TALKS = [
    dialogue("1_00000", ["Tables_1"], [
        user("I love tea, a table in  Rome\nplease", {"Tables_1": {"city": ["Rome"]}}),
        system("For how many?"),
        user("Two, at eight", {"Tables_1": {"time": ["8 pm", "eight"], "seats": ["2"], "city": ["Rome"]}}),
        system("Shall I book?"),
        user("yes", {"Tables_1": {"city": ["Rome"], "seats": ["2"], "time": ["8 pm"]}}),
    ]),
    dialogue("2_00000", ["Tables_1", "Rides_2"], [
        user("hello", {"Rides_2": {}, "Tables_1": {}}),
        system("Hi"),
        user("a ride in Oslo, alone", {"Rides_2": {"city": ["Oslo"], "shared": ["False"]},
                                       "Tables_1": {"city": ["Oslo", "oslo"]}}),
    ]),
]  # fmt: skip
WOZ = [
    dialogue("PMUL1.json", ["hotel", "taxi"], [
        user("a hotel in the north", {"hotel": {"hotel-area": ["north"]}, "taxi": {}}),
        system("the Gables?"),
        user("yes, and a taxi", {"hotel": {"hotel-area": ["north"], "hotel-name": ["the gables", "gables"]},
                                 "taxi": {"taxi-leaveat": ["08:00", "8:00"]}}),
        system("done"),
        user("thanks", {}),
    ]),
]  # fmt: skip


def write(root: Path, name: str, talks: list[Any] | None = None, schema: list[Any] | None = None) -> Path:
    """The folder of a benchmark with a test split, a file for each dialogue."""
    folder = root / "test"
    folder.mkdir(parents=True, exist_ok=True)
    for number, talk in enumerate(talks or {"sgd": TALKS, "multiwoz": WOZ}[name], 1):
        (folder / f"dialogues_{number:03}.json").write_text(json.dumps([talk]))
    place = folder if name == "sgd" else root
    (place / "schema.json").write_text(json.dumps(schema or {"sgd": SGD, "multiwoz": MULTIWOZ}[name]))
    return root

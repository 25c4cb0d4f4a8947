"""Task-oriented dialogues: Schema-Guided Dialogue and MultiWOZ 2.2, of which states are tracked.

Rastogi et al., "Towards Scalable Multi-Domain Conversational Agents: The Schema-Guided Dialogue Dataset",
2020; Zang et al., "MultiWOZ 2.2", 2020. A question is a turn of the user, a dialogue is a user of its own,
and the profile holds the user's earlier turns. Documents and questions are timed by their turn's number.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from pbr_jax.base.types import Document, Example
from pbr_jax.data import json_stream
from pbr_jax.data.reader import Reader, named
from pbr_jax.data.records import Note, Record, kind
from pbr_jax.options import Benchmark
from pbr_jax.tasks.states import Frame, Match, Reference, Slot, first_values, reference_text, written

SPLITS = ("train", "dev", "test")
SCHEMA = "schema.json"


class _Service(NamedTuple):
    """A service of the schema: its slots without values, and how prompts describe it."""

    slots: Frame
    text: str


class _Turn(NamedTuple):
    """A turn of the user; `reference` is None where states are withheld, and empty without frames."""

    number: int
    text: str
    reference: Reference | None


def _layout(benchmark: Benchmark) -> dict[str, tuple[Path, ...]]:
    """The dialogues and the schema of each split whose dialogues are there."""
    found = {split: _dialogues(benchmark.root, split) for split in SPLITS}
    return {split: (*paths, _schema_file(benchmark, split)) for split, paths in found.items() if paths}


def _examples(benchmark: Benchmark, note: Note) -> Iterator[Example]:
    """The user's turns, dialogue by dialogue in the order of the files' numbers."""
    schema = _schema(benchmark)
    strange: set[tuple[str, str]] = set()  # slots that were noted
    dialogues = chain.from_iterable(map(json_stream.records, _dialogues(benchmark.root, benchmark.split)))
    for name, dialogue in named(dialogues, "dialogue_id"):
        yield from _Reading(benchmark, schema, note, strange).questions(dialogue, name)


def _dialogues(root: str, split: str) -> list[Path]:
    """The files of a split, by their numbers."""
    found = Path(root, split).glob("dialogues_*.json")
    return sorted(found, key=lambda path: [int(n) for n in re.findall(r"\d+", path.stem)])


def _schema_file(benchmark: Benchmark, split: str) -> Path:
    return Path(benchmark.root, split if benchmark.name == "sgd" else "", SCHEMA)


def _schema(benchmark: Benchmark) -> dict[str, _Service]:
    """The services by name. MultiWOZ's scorer knows no similarity of free values."""
    free: Match = "similar" if benchmark.name == "sgd" else "any"
    records = json_stream.records(_schema_file(benchmark, benchmark.split))
    return {name: _service(record, name, free) for name, record in named(records, "service_name")}


def _service(record: Record, name: str, free: Match) -> _Service:
    slots: Frame = {}
    lines = [f"service {name}: {_line(record, 'description')}"]
    wanted = _tracked(record)
    for own, slot in named(record.records("slots"), "name"):
        categorical = slot.value("is_categorical")
        if not isinstance(categorical, bool):
            raise slot.fault("is_categorical", kind(categorical), "true or false")
        slots[own] = Slot("first" if categorical else free)
        values = [str(v) for v in slot.items("possible_values")] if slot.has("possible_values") else []
        choice = f" (one of: {', '.join(values)})" if categorical and values else ""
        if not wanted or own in wanted:
            lines.append(f"- {own}: {_line(slot, 'description')}{choice}")
    return _Service(slots, "\n".join(lines))


def _tracked(record: Record) -> set[str]:
    """The slots that some intent takes; others are results of a service, which no user sets."""
    found: set[str] = set()
    for intent in record.records("intents") if record.has("intents") else []:
        found.update(intent.names("required_slots") if intent.has("required_slots") else [])
        found.update(intent.record("optional_slots").values if intent.has("optional_slots") else [])
    return found


def _line(record: Record, key: str) -> str:
    return " ".join(record.text(key).split()) if record.has(key) else ""


class _Reading(NamedTuple):
    """How the dialogues of a split are read."""

    benchmark: Benchmark
    schema: Mapping[str, _Service]
    note: Note
    strange: set[tuple[str, str]]

    def questions(self, dialogue: Record, name: str) -> Iterator[Example]:
        services = dialogue.names("services")
        for service in services:
            self._known(service, dialogue, "services")
        user = f"{self.benchmark.split}/{name}"  # ids are unique within a split
        about = "\n".join(self.schema[service].text for service in services or self.schema)
        said: list[str] = []
        past: list[Document] = []
        for number, record in enumerate(dialogue.records("turns")):
            text = _line(record, "utterance")
            if (speaker := record.text("speaker")) not in ("USER", "SYSTEM"):
                raise record.fault("speaker", repr(speaker), "USER or SYSTEM")
            said.append(f"{speaker.lower()}: {text}")
            if speaker == "SYSTEM":
                continue
            turn = _Turn(number, text, self._reference(record))
            reference = turn.reference
            yield Example(
                id=f"{name}-{number:03}",
                user_id=user,
                unit=user,
                query=text,
                input="\n".join([about, "conversation:", *said]),
                target=None if reference is None else written(first_values(reference)),
                alternatives=() if reference is None else (reference_text(reference),),
                profile=tuple(past),
                time=float(number),
                category=", ".join(services),
                scored=reference is None or bool(reference),
            )
            past.append(Document(f"{name}-{number:03}", user, text, {"text": text}, float(number)))

    def _known(self, service: str, record: Record, key: str) -> None:
        if service not in self.schema:
            found, known = f"the unknown service {service!r}", ", ".join(self.schema)
            raise record.fault(key, found, f"one of {SCHEMA}: {known:.200}")

    def _reference(self, turn: Record) -> Reference | None:
        """The states of a turn's frames; None where any is withheld."""
        frames: dict[str, Frame] = {}
        for service, record in named(turn.records("frames"), "service"):
            self._known(service, record, "service")
            if not record.has("state"):
                return None
            frames[service] = self._frame(record.record("state").record("slot_values"), service)
        if self.benchmark.name == "sgd":
            return [{service: frame} for service, frame in frames.items()]
        return [frames] if frames else []

    def _frame(self, state: Record, service: str) -> Frame:
        """The slots of a service with the values that count; slots that the schema lacks are noted."""
        frame = dict(self.schema[service].slots)
        for name in state.values:
            values = tuple(state.inner({"": value}, name).text("") for value in state.items(name))
            if name in frame and values:
                frame[name] = Slot(frame[name].match, values)
            elif (service, name) not in self.strange:
                self.strange.add((service, name))
                what = "has no value" if name in frame else f"is none of {SCHEMA}"
                self.note(f"{state.file}: {state.label}: the slot {name!r} of {service} {what}, left out")
        return frame


READERS = {
    name: Reader(
        expected=f"{{split}}/dialogues_*.json and {schema}, split one of {', '.join(SPLITS)}",
        layout=_layout,
        examples=_examples,
    )
    for name, schema in {"sgd": f"{{split}}/{SCHEMA}", "multiwoz": SCHEMA}.items()
}

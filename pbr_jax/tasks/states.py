"""Dialogue states as text: what a model answers, what is right, and how both are read.

A state is the values of slots, by service. As an answer it is one JSON object,
`{"Restaurants_2": {"date": "March 8th"}}`; services and slots without a value are left out. A reference is
the released annotation: of every slot of the schema the values that count, and how a value is compared.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

State = dict[str, dict[str, str]]
"""Values by service and slot; the service "" has slots that stand under none."""


Match = Literal["first", "any", "similar"]


class Slot(NamedTuple):
    """A slot of the schema in a reference; without values it is not set.

    `match`: a value must be equal to the first one, be equal to any of them, or is scored by its similarity
    to the nearest of them.
    """

    match: Match
    values: tuple[str, ...] = ()


Frame = dict[str, Slot]
Reference = list[dict[str, Frame]]
"""Frames by service; those of one entry are right or wrong together."""

_UNSET = frozenset({"", "none", "null", "n/a", "not mentioned", "not specified"})
_LONGEST = 20_000  # characters of an answer that are read
_DECODER = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=lambda _: None)
_PAIR = re.compile(  # of JSON that is cut off, or has Python's quotes
    r"""(["'])([^"'\n]{1,99})\1\s*:\s*(?:"((?:[^"\\\n]|\\.)*)"|'([^'\n]*)'|([\w.]+))"""
)
_HEADING = re.compile(r"\W*\[(\w[\w -]{0,59})\]\W*")
_LINE = re.compile(r"\W*(\w[\w .-]{0,59})[\"'`*\])]*\s*[:=]\s*(.*)")


def written(state: State) -> str:
    """The one text of a state."""
    inner = {service: slots for service, slots in state.items() if service and slots}
    return json.dumps({**state.get("", {}), **inner}, ensure_ascii=False)


def parsed(text: str) -> State | None:
    """The state in an answer; None where it holds none.

    Read is the JSON object that begins at the first brace; where that cannot be decoded the pairs of quoted
    names and values in it, under no service; without a brace lines such as `date = March 8th`, after a line
    with their service in brackets or with the service and a point before the slot. Of a list the first value
    counts. Values such as "none" and null are not set.
    """
    text = text[:_LONGEST]
    start = text.find("{")
    if start < 0:
        return _from_pairs(_lines(text))
    try:
        return _from_object(_DECODER.raw_decode(text, start)[0])
    except (ValueError, RecursionError):
        pairs = ((m[2], m[3] or m[4] or m[5] or "") for m in _PAIR.finditer(text, start))
        return _from_pairs(("", name, value) for name, value in pairs)


def reference_text(reference: Reference) -> str:
    """A reference as JSON: a list of objects, service → slot → [match, values …]."""
    plain = [{s: {n: [o.match, *o.values] for n, o in f.items()} for s, f in g.items()} for g in reference]
    return json.dumps(plain, ensure_ascii=False)


def read_reference(text: str) -> Reference:
    """The reference that `reference_text` wrote. Raises ValueError for another text."""
    try:
        groups: Any = json.loads(text)
        if not isinstance(groups, list):
            raise TypeError("no list")
        return [
            {s: {n: Slot(o[0], tuple(o[1:])) for n, o in f.items()} for s, f in g.items()} for g in groups
        ]
    except (AttributeError, TypeError, IndexError) as error:
        raise ValueError(f"{text!r:.60} is no reference of a dialogue state") from error


def first_values(reference: Reference) -> State:
    """The state of the first value of every slot that is set."""
    return {
        service: {name: slot.values[0] for name, slot in frame.items() if slot.values}
        for group in reference
        for service, frame in group.items()
    }


def _from_object(value: Any) -> State | None:
    if not isinstance(value, dict):
        return None
    state: State = {}
    for name, inner in value.items():
        slots, service = (inner, _whole(name)) if isinstance(inner, dict) else ({name: inner}, "")
        for slot, said in slots.items():
            if (text := _value(said)) is not None:
                state.setdefault(service, {})[_whole(slot)] = text
    return state


def _from_pairs(pairs: Iterator[tuple[str, str, str]]) -> State | None:
    """None where there is no pair at all; pairs whose values are not set make an empty state."""
    state, found = State(), False
    for service, slot, said in pairs:
        found = True
        if (text := _value(said)) is not None:
            state.setdefault(service, {})[_whole(slot)] = text
    return state if found else None


def _lines(text: str) -> Iterator[tuple[str, str, str]]:
    """Service, slot and value of each line that has them."""
    service = ""
    for line in text.splitlines():
        if match := _HEADING.fullmatch(line):
            service = match[1].strip()
        elif match := _LINE.fullmatch(line.rstrip()):
            name, value = match[1].strip(), match[2].strip().strip("\"'`*,;")
            before, _, after = name.rpartition(".")
            if value:
                yield before.strip() or service, after.strip(), value


def _value(said: Any) -> str | None:
    """A value as text; None: not set."""
    said = said[0] if isinstance(said, list) and said else said
    if not isinstance(said, (str, bool)):
        return None
    text = _whole(str(said))
    return None if text.strip().casefold() in _UNSET else text


def _whole(text: str) -> str:
    """Without halves of surrogate pairs, which no file holds."""
    return text.encode("utf-8", "replace").decode()

"""An `Example` as a row of strings, counts and flags, as TensorFlow Datasets writes it, and back.

Without TensorFlow, TFDS writes neither lists of lists nor numbers of more than 32 bits after the point. So
nested lists stand flat beside their sizes, and a time is the decimal text of its float, which reads
back exactly; an empty text is no time. Of the text features only `target` tells None from "".
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

from pbr_jax.base.types import Document, Example

VERSION = "2.4.0"  # raise it whenever the layout changes, or a reader makes other examples of the same files

Row = Mapping[str, Any]


def to_row(example: Example) -> dict[str, Any]:
    """The row of an example: plain strings, lists and dicts."""
    documents = example.profile
    fields = [pair for document in documents for pair in document.fields.items()]
    return {
        "id": example.id,
        "user_id": example.user_id,
        "query": example.query,
        "input": example.input,
        "target": example.target,
        "alternatives": list(example.alternatives),
        "options": list(example.options),
        "time": _written(example.time),
        "relevant": {
            "id": [id for group in example.relevant for id in group],
            "sizes": [len(group) for group in example.relevant],
        },
        "category": example.category,
        "unit": example.unit,
        "scored": example.scored,
        "profile": {
            "id": [document.id for document in documents],
            "user_id": [document.user_id for document in documents],
            "text": [document.text for document in documents],
            "time": [_written(document.time) for document in documents],
            "until": [_written(document.until) for document in documents],
            "num_fields": [len(document.fields) for document in documents],
            "num_turns": [len(document.turns) for document in documents],
        },
        "fields": {"name": [name for name, _ in fields], "value": [value for _, value in fields]},
        "turns": [begin for document in documents for begin in document.turns],
    }


def from_row(row: Row) -> Example:
    """The example of a row that TFDS read: texts as UTF-8 bytes, counts as NumPy numbers."""
    ids, profile = iter(texts(row["relevant"]["id"])), row["profile"]
    fields = iter(list(zip(texts(row["fields"]["name"]), texts(row["fields"]["value"]), strict=True)))
    turns = iter(map(int, row["turns"]))
    columns = (texts(profile[name]) for name in ("id", "user_id", "text", "time", "until"))
    return Example(
        id=text(row["id"]),
        user_id=text(row["user_id"]),
        query=text(row["query"]),
        input=text(row["input"]),
        target=None if row["target"] is None else text(row["target"]),
        profile=tuple(
            Document(
                id,
                user,
                body,
                dict(_next(fields, int(of_fields))),
                _time(time),
                _time(until),
                turns=tuple(_next(turns, int(of_turns))),
            )
            for id, user, body, time, until, of_fields, of_turns in zip(
                *columns, profile["num_fields"], profile["num_turns"], strict=True
            )
        ),
        time=_time(text(row["time"])),
        relevant=tuple(tuple(_next(ids, size)) for size in map(int, row["relevant"]["sizes"])),
        category=text(row["category"]),
        unit=text(row["unit"]),
        scored=bool(row["scored"]),
        alternatives=tuple(texts(row["alternatives"])),
        options=tuple(texts(row["options"])),
    )


def text(value: bytes) -> str:
    """A text as TFDS reads it."""
    return value.decode("utf-8")


def texts(values: Iterable[bytes]) -> list[str]:
    """A list of texts as TFDS reads it."""
    return [value.decode("utf-8") for value in values]


def _next(items: Iterator[Any], count: int) -> Iterator[Any]:
    return islice(items, count)


def _written(time: float | None) -> str:
    return "" if time is None else repr(time)


def _time(written: str) -> float | None:
    return float(written) if written else None

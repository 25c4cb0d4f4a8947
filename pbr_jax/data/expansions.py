"""Released expansions: what a language model wrote for the questions of a benchmark, read instead of asked.

The file is one JSON object from question id to `{"utterances": [...], "reasoning": "..."}`.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pbr_jax.base.types import UserError
from pbr_jax.data import json_stream
from pbr_jax.data.records import Record, kind


class Expansion(NamedTuple):
    """What is added to a question: things the user might say, and a text (or none) of reasoning."""

    utterances: tuple[str, ...] = ()
    reasoning: tuple[str, ...] = ()


def read(path: Path) -> Callable[[str], Expansion]:
    """The function from a question's id to its expansion; UserError for what is malformed or missing."""
    _check(path)
    file = json_stream.load(path)
    known = {name: _expansion(file.record(name), name) for name in file.values}

    def find(id: str) -> Expansion:
        if id not in known:
            raise UserError(
                f"{path}: found no expansion for question {id!r} (it has {len(known)} others); take "
                "--expand.released away to let the language model write one"
            )
        return known[id]

    return find


def fingerprint(path: Path) -> str:
    """Hash of the file's content; UserError where there is no such file."""
    _check(path)
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _check(path: Path) -> None:
    if not path.is_file():
        raise UserError(f"{path}: found no such file of expansions; check --expand.released")


def _expansion(record: Record, name: str) -> Expansion:
    utterances = record.items("utterances")
    if wrong := [item for item in utterances if not isinstance(item, str) or not item.strip()]:
        found = "an empty string" if isinstance(wrong[0], str) else kind(wrong[0])
        raise record.fault("utterances", found, "texts")
    reasoning = record.text("reasoning")
    return Expansion(tuple(utterances), (reasoning,) if reasoning.strip() else ())

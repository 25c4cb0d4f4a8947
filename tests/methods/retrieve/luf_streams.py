"""What streams with LUF's retriever have left on disk."""

import json
from pathlib import Path
from typing import Any

TOPICS = ("tea", "cats", "football", "violins")


def documents(out: Path) -> list[list[str]]:
    """The ids of each question's documents in a run."""
    lines = map(json.loads, (out / "predictions.jsonl").read_text().splitlines())
    return [[document["id"] for document in line["documents"]] for line in lines]


def observed(cache: Path) -> list[dict[str, Any]]:
    """What was observed of each question, in the order of arrival."""
    files = sorted(cache.glob("stream/*/blocks/*/retrieve.*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def states(cache: Path) -> list[Path]:
    """The states of the only stream in a cache."""
    return sorted(cache.glob("stream/*/states/*/retrieve"))

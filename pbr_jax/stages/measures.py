"""What stages measure, count and time: kept beside their results, and reported in results.json."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pbr_jax.base.files import write_text
from pbr_jax.graph import Node
from pbr_jax.graph.lists import stages

MEASURES, TALLY, USAGE = "measures.json", "tally.json", "usage.json"
METRICS = ("silhouette", "silhouette_without_noise")
"""Measures that stand among a run's metrics too. They have no interval: they are of no single question."""


def keep_measures(folder: Path, values: Mapping[str, int | float]) -> None:
    """Keeps numbers by their names in a stage's folder."""
    write_text(folder / MEASURES, json.dumps(dict(values)))


def by_stage(last: Node, name: str) -> dict[str, Any]:
    """The content of the JSON file of this name of every stage under a node that has one, by labels."""
    files = {label: stage.folder / name for label, stage in stages(last).items()}
    return {
        label: json.loads(file.read_text(encoding="utf-8")) for label, file in files.items() if file.is_file()
    }

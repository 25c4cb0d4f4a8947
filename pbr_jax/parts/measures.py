"""What a stage measures of its own result: kept beside it, and reported in results.json."""

import json
from collections.abc import Mapping
from pathlib import Path

from pbr_jax.files import write_text
from pbr_jax.graph import Node, stages

_FILE = "measures.json"
METRICS = ("silhouette", "silhouette_without_noise")
"""Measures that stand among a run's metrics too. They have no interval: they are of no single question."""


def keep_measures(folder: Path, values: Mapping[str, int | float]) -> None:
    """Keeps numbers by their names in a stage's folder."""
    write_text(folder / _FILE, json.dumps(dict(values)))


def measures(last: Node) -> dict[str, dict[str, int | float]]:
    """What the stages under a node measured, by their labels."""
    files = {label: stage.folder / _FILE for label, stage in stages(last).items()}
    return {
        label: json.loads(file.read_text(encoding="utf-8")) for label, file in files.items() if file.is_file()
    }

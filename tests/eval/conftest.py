"""Finished runs written by hand, and reports read back as cells."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pbr_jax.eval.evaluate import evaluate
from pbr_jax.eval.run_files import sealed
from pbr_jax.tasks import released

N = 24


def _write(
    path: Path,
    system: str,
    predictions: list[str],
    *,
    benchmark: str = "lamp_3",
    targets: list[str] | None = None,
    ids: list[str] | None = None,
    users: list[str] | None = None,
    units: list[str] | None = None,
    alternatives: list[list[str]] | None = None,
    categories: list[str] | None = None,
    seed: int = 0,
    k: int = 4,
    data: str = "d" * 20,
    dropped: int = 0,
    fields: dict[str, Any] | None = None,
    fingerprint: dict[str, Any] | None = None,
    weights: dict[str, str] | None = None,
) -> Path:
    """A finished run of N questions, two of each user; targets go round the task's labels or 1 to 5."""
    task = released(benchmark)
    ids, users = ids or [f"q{i}" for i in range(N)], users or [f"u{i // 2}" for i in range(N)]
    labels = task.labels or tuple("12345")
    targets = targets or [labels[i % len(labels)] for i in range(len(ids))]
    sure = {"resamples": 300, "confidence": 0.9}
    found = evaluate(task, ids=ids, users=users, units=units, predictions=predictions, targets=targets,
                     alternatives=alternatives, categories=categories, seed=seed, **sure)  # type: ignore[arg-type]  # fmt: skip
    results = {"system": system, "benchmark": benchmark, "split": "dev",
               "task": {"metrics": task.metrics, "labels": task.labels}, "n": found.n, "dropped": dropped,
               "metrics": found.metrics, "intervals": found.intervals, "seconds": {}, "notes": found.notes,
               "variants": found.variants, "by_category": found.by_category,
               "by_category_intervals": found.by_category_intervals,
               "by_category_users": found.by_category_users, "clusters": found.clusters,
               "fingerprint": {"data": data, "config": "c" * 20, "commit": "f" * 40} | (fingerprint or {}),
               }  # fmt: skip
    config = {"system": system, "seed": seed, "retrieve": {"k": k}, "eval": sure, **(fields or {})}
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    if weights:
        parts = {name: {"options": hash} for name, hash in weights.items()}
        (path / "run.json").write_text(json.dumps({"parts": parts}))
    rows = zip(ids, users, predictions, targets, found.per_example, units or users, strict=True)
    names = ("id", "user_id", "prediction", "target", "metrics", *(["unit"] if units else []))
    lines = (dict(zip(names, row)) for row in rows)
    (path / "predictions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (path / "results.json").write_text(json.dumps(sealed(path, results)))
    return path


def _tables(text: str) -> list[list[list[str]]]:
    """Tables of a Markdown text as lists of rows of cells, rulers left out."""
    blocks = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    return [
        [
            [cell.strip() for cell in line.strip("|").split("|")]
            for line in block.splitlines()
            if "---" not in line
        ]
        for block in blocks
    ]


@pytest.fixture
def write() -> Callable[..., Path]:
    return _write


@pytest.fixture
def tables() -> Callable[[str], list[list[list[str]]]]:
    return _tables

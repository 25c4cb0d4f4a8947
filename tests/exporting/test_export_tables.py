"""Tables of predictions and rankings, against the lines of predictions.jsonl."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pbr_jax
from pbr_jax.config import Config, override
from pbr_jax.eval.run_files import sealed
from pbr_jax.methods import retrieve

LINES: list[dict[str, Any]] = [
    {
        "id": "q 1", "user_id": "ann", "prediction": 'a "b",\nc', "target": None, "near_target": False,
        "prompt_tokens": 3, "prompt_documents": 1, "metrics": {"rouge1": 0.5},
        "documents": [
            {"id": "d", "user_id": "ann", "score": 2.5, "scores": {"bm25": 1.0, "dense": 0.5}},
            {"id": "d", "user_id": "", "score": 1.5, "span": [3, 9]},
        ],
    },
    {
        "id": "q2", "user_id": "bob", "prediction": "é", "target": "t", "near_target": True,
        "prompt_tokens": 0, "prompt_documents": 0, "metrics": {"rouge1": 1, "extra": 2.0},
        "probabilities": {"yes": 0.25, "no": 0.75}, "over": ["new"], "documents": [],
    },
]  # fmt: skip
PREDICTIONS = [
    {"id": "q 1", "user_id": "ann", "prediction": 'a "b",\nc', "target": None, "near_target": False,
     "prompt_tokens": 3, "prompt_documents": 1, "metrics.rouge1": 0.5, "ranked": 2, "metrics.extra": None,
     "probabilities": None, "over": None},
    {"id": "q2", "user_id": "bob", "prediction": "é", "target": "t", "near_target": True,
     "prompt_tokens": 0, "prompt_documents": 0, "metrics.rouge1": 1.0, "ranked": 0, "metrics.extra": 2.0,
     "probabilities": '{"yes": 0.25, "no": 0.75}', "over": '["new"]'},
]  # fmt: skip
RANKINGS = [
    {"id": "q 1", "rank": 1, "document_id": "d", "document_user_id": "ann", "score": 2.5, "shown": True,
     "span.start": None, "span.end": None, "scores.bm25": 1.0, "scores.dense": 0.5},
    {"id": "q 1", "rank": 2, "document_id": "d", "document_user_id": "", "score": 1.5, "shown": False,
     "span.start": 3, "span.end": 9, "scores.bm25": None, "scores.dense": None},
]  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "predictions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    (folder / "results.json").write_text(json.dumps(sealed(folder, {"system": "bm25"})))
    return folder


def test_parquet_has_the_fields_with_their_types(run: Path, tmp_path: Path):
    parquet: Any = pytest.importorskip("pyarrow.parquet")
    out = pbr_jax.export(run, tmp_path / "out", "parquet")
    assert parquet.read_table(out / "predictions.parquet").to_pylist() == PREDICTIONS
    assert parquet.read_table(out / "rankings.parquet").to_pylist() == RANKINGS


def test_csv_has_the_same_as_text(run: Path, tmp_path: Path):
    out = pbr_jax.export(run, tmp_path / "out", "csv")
    for name, wanted in (("predictions", PREDICTIONS), ("rankings", RANKINGS)):
        with (out / f"{name}.csv").open(newline="", encoding="utf-8") as file:
            found = list(csv.DictReader(file))
        told = [{key: "" if value is None else str(value) for key, value in row.items()} for row in wanted]
        if name == "predictions":
            told[1]["metrics.rouge1"] = "1"
        assert found == told


def test_a_run_without_rankings_has_no_rows_of_them(
    write_tweets: Callable[..., Path], tmp_path: Path, monkeypatch
):
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "cache"))
    place = {"benchmark.name": "lamp_7", "benchmark.root": str(write_tweets({"ann": ["tea"]}))}
    options = {**place, "generate.method": "none", "eval.likelihood": "off"}
    pbr_jax.run(override(Config(retrieve=retrieve.Nothing()), options), tmp_path / "run")
    for format in ("csv", "parquet"):
        out = pbr_jax.export(tmp_path / "run", tmp_path / format, format)
        assert sorted(path.name for path in out.iterdir()) == [f"predictions.{format}", f"rankings.{format}"]

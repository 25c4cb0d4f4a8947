"""Two users' documents of one id: a relevant document is the asking user's own."""

import json
from pathlib import Path
from typing import Any

import pytest

from pbr_jax import run
from pbr_jax.base.types import Document, Example
from pbr_jax.config import Config, override
from pbr_jax.stages.labels import is_relevant


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Of two users with documents d0, d1, d2; only the other's d1 has the question's words."""
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "cache"))
    texts = {"ann": ["football", "violins", "cats"], "bob": ["football", "tea tea tea", "cats"]}
    documents = [{"id": f"d{i}", "user": u, "text": t} for u, of in texts.items() for i, t in enumerate(of)]
    asked = [
        {"id": "q", "user": "ann", "input": "tea", "relevant": ["d1"]},
        {"id": "r", "user": "bob", "input": "tea", "relevant": ["d1"], "scored": False},
    ]
    for name, records in (("documents", documents), ("dev", asked)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, records)))
    (tmp_path / "task.toml").write_text('kind = "retrieval"\nmetrics = ["recall@1", "recall@3"]\n')
    place = {"benchmark.name": "own", "benchmark.root": str(tmp_path), "collaboration": "text",
             "neighbours.method": "random", "neighbours.m": 2, "generate.method": "none"}  # fmt: skip
    return override(Config(), {**place, "eval.resamples": 20, "eval.likelihood": "off"})


def ranked(out: Path) -> list[tuple[str, str]]:
    line = (out / "predictions.jsonl").read_text().splitlines()[0]
    return [(document["user_id"], document["id"]) for document in json.loads(line)["documents"]]


def test_anothers_document_of_the_same_id_is_not_the_evidence(config: Config, tmp_path: Path) -> None:
    fields: dict[str, Any] = {"retrieve.method": "bm25", "retrieve.k": 3, "select.method": "bm25"}
    found = run(override(config, fields), tmp_path / "out").metrics
    documents = ranked(tmp_path / "out")
    assert documents[0] == ("bob", "d1")
    place = documents.index(("ann", "d1")) + 1
    assert (found["recall@1"], found["recall@3"]) == (0.0, float(place <= 3))
    assert len(set(documents)) == 6  # both users' documents are counted, in their places


def test_the_ceiling_shows_the_own_evidence_alone(config: Config, tmp_path: Path) -> None:
    fields: dict[str, Any] = {"retrieve.method": "bm25", "retrieve.k": 3, "select.method": "evidence"}
    found = run(override(config, fields), tmp_path / "out").metrics
    assert ranked(tmp_path / "out") == [("ann", "d1")]
    assert found["recall@1"] == 1.0


def test_shared_and_own_documents_and_passages_can_be_relevant() -> None:
    asked = Example("q", "ann", "tea", "tea", None, relevant=(("a", "b"), ("c",)))
    assert is_relevant(asked, Document("b", "ann", "x"))
    assert is_relevant(asked, Document("c", "", "x", shared=True))
    assert is_relevant(asked, Document("c#0", "ann", "x", part_of="c"))
    assert not is_relevant(asked, Document("b", "bob", "x"))
    assert not is_relevant(asked, Document("d", "ann", "x"))

"""Runs through LanceDB rank as runs without it; who is forgotten is forgotten there too."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import pbr_jax
from pbr_jax.base.types import Example, UserError
from pbr_jax.config import Config, override
from pbr_jax.index.engines.lancedb import Engine
from pbr_jax.text.encode import TextEncoder


@pytest.fixture
def config(
    tmp_path: Path, tiny_models: dict[str, str], write_tweets: Any, monkeypatch: pytest.MonkeyPatch
) -> Config:
    """Users' documents and shared ones, all searched through the engine, in an empty cache."""
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(Engine, "direct", 0)
    shared = tmp_path / "shared.jsonl"
    lines = [json.dumps({"id": f"p{i}", "text": f"{i} cats and {9 - i} violins"}) for i in range(9)]
    shared.write_text("\n".join(lines) + "\n")
    words = ["tea", "cats", "football", "violins"]
    root = write_tweets({u: [f"i love {w} {n} times {u}" for n in range(3) for w in words] for u in "ab"})
    place = {"benchmark.name": "lamp_7", "benchmark.root": str(root), "benchmark.training": "none"}
    search = {"benchmark.passages": str(shared), "retrieve.k": 3, "retrieve.index": "lancedb"}
    short = {"generate.method": "none", "eval.likelihood": "off", "eval.resamples": 20}
    return override(Config(), {**place, **search, **short, **tiny_models})


def test_rankings_are_those_of_the_exact_index(config: Config, tmp_path: Path) -> None:
    pytest.importorskip("lancedb")
    found = []
    for index in ("exact", "lancedb"):
        pbr_jax.run(override(config, {"retrieve.index": index}), tmp_path / index)
        found.append((tmp_path / index / "predictions.jsonl").read_text())
    assert found[0] == found[1]
    assert list((tmp_path / "cache").rglob("lancedb-*/*.lance"))


def test_what_is_added_is_found_and_who_is_forgotten_is_in_no_file(config: Config, tmp_path: Path) -> None:
    pytest.importorskip("lancedb")
    pbr_jax.run(config, tmp_path / "run")
    system = pbr_jax.open(tmp_path / "run")

    def first(text: str) -> str:
        (ranking,) = system.rank([Example("new", "a", text, text, None)])
        return ranking[0].document.text

    canary = "violins and nothing else"
    system.add("a", [canary])
    assert first(canary) == canary
    (encoded,) = TextEncoder(config.encoder).encode([canary])
    files = [file for file in (tmp_path / "cache").rglob("*") if file.is_file()]
    assert sum(encoded.tobytes() in file.read_bytes() for file in files) == 2  # the vectors', the table's
    system.forget("a")
    files = [file for file in (tmp_path / "cache").rglob("*") if file.is_file()]
    assert not any(encoded.tobytes() in file.read_bytes() for file in files)


def test_without_lancedb_a_run_ends_before_anything_is_encoded(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lancedb", None)
    with pytest.raises(UserError, match=r"LanceDB cannot be imported .*pip install 'pbr-jax\[lancedb\]'"):
        pbr_jax.run(config, tmp_path / "run")
    assert not (tmp_path / "cache" / "vectors").exists()

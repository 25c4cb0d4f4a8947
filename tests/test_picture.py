"""The picture of a question: who is drawn where, and what cannot be drawn."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from pbr_jax import run
from pbr_jax.cli import main
from pbr_jax.config import Config, override
from pbr_jax.picture import groups
from pbr_jax.plan import Plan

pytest.importorskip("matplotlib")

SESSIONS = {
    "s1": ("i love tea", False), "s2": ("cats that day", False), "answer_s3": ("i love violins", True),
}  # fmt: skip


@pytest.fixture
def config(tiny_models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    """Dense retrieval for a user with three sessions and one without any."""
    monkeypatch.setenv("PBR_JAX_CACHE", str(tmp_path / "cache"))
    (tmp_path / "data").mkdir()
    questions = [question("q1", SESSIONS), question("q2", {})]
    (tmp_path / "data" / "memory.json").write_text(json.dumps(questions))
    place = {"name": "longmemeval", "root": str(tmp_path / "data"), "split": "memory"}
    fields = {f"benchmark.{name}": value for name, value in place.items()}
    fields |= {"encoder.model": tiny_models["encoder.model"], "retrieve.method": "dense"}
    return override(Config(), fields)


def question(name: str, sessions: dict[str, tuple[str, bool]]) -> dict[str, Any]:
    turns = [
        [{"role": "user", "content": text, "has_answer": answers}] for text, answers in sessions.values()
    ]
    return {
        "question_id": name, "question_type": "x", "question": "i love football", "answer": "violins",
        "question_date": "2023/05/30 (Tue) 23:40", "haystack_session_ids": list(sessions),
        "haystack_dates": ["2023/05/20 (Sat) 02:21"] * len(sessions), "haystack_sessions": turns,
        "answer_session_ids": ["answer_s3"],
    }  # fmt: skip


def test_every_vector_is_in_its_group_and_of_length_one(config: Config, tmp_path: Path):
    expansion = {"utterances": ["about tea", "about cats"], "reasoning": "violins"}
    (tmp_path / "released.json").write_text(json.dumps({"q1": expansion, "q2": expansion}))
    fields = {"expand.method": "pbr", "expand.released": str(tmp_path / "released.json")}
    plan = Plan(override(config, fields))
    example = next(iter(plan.data.value.examples()))
    found = groups(plan, example)
    assert {name: len(own) for name, own in found.items()} == {
        "documents": 2, "documents that answer": 1, "added texts": 3, "query": 1, "what is searched for": 1,
    }  # fmt: skip
    for own in found.values():
        np.testing.assert_allclose(np.linalg.norm(own, axis=1), 1, rtol=1e-5)
    expected = plan.ranked.needs["retrieve"].needs["encoder"].value.encode(["i love violins"])
    np.testing.assert_allclose(
        found["documents that answer"], expected / np.linalg.norm(expected), rtol=1e-4, atol=1e-5
    )
    without = groups(Plan(config), example)
    assert list(without) == ["documents", "documents that answer", "query"]


def test_the_command_writes_a_picture_and_tells_what_it_cannot_draw(config: Config, tmp_path: Path, capfd):
    run(config, tmp_path / "out")
    command = [
        "picture",
        "--run",
        str(tmp_path / "out"),
        "--out",
        str(tmp_path / "new" / "q.svg"),
        "--question",
    ]
    assert main([*command, "q1"]) == 0
    drawn = (tmp_path / "new" / "q.svg").read_text()
    assert drawn.startswith("<!-- pbr_jax picture -->\n<svg")
    ElementTree.fromstring(drawn)
    assert 'xmlns="http://www.w3.org/2000/svg"' in drawn
    assert main([*command, "q1"]) == 0
    assert (tmp_path / "new" / "q.svg").read_text() == drawn
    (tmp_path / "new" / "q.svg").write_text("<svg>my own</svg>")
    capfd.readouterr()
    assert main([*command, "q1"]) == 2
    assert "q.svg exists and was not written by pbr-jax" in capfd.readouterr().err
    assert (tmp_path / "new" / "q.svg").read_text() == "<svg>my own</svg>"
    (tmp_path / "new" / "q.svg").unlink()
    for question, words in (
        ("q9", "no question 'q9'; its first ones are q1, q2"),
        ("q2", "has no documents"),
    ):
        assert main([*command, question]) == 2
        error = capfd.readouterr().err.splitlines()
        assert words in error[-1]

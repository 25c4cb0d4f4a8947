"""The picture of a question: who is drawn where, and what cannot be drawn."""

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from pbr_jax import run
from pbr_jax.cli.main import main
from pbr_jax.config import Config, override
from pbr_jax.eval.cards import cards
from pbr_jax.experiment.plan import Plan
from pbr_jax.experiment.questions import groups, marks, picture, ranked

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
        "documents": 2, "documents of others": 0, "documents that answer": 1, "added texts": 3, "query": 1,
        "what is searched for": 1,
    }  # fmt: skip
    for own in found.values():
        np.testing.assert_allclose(np.linalg.norm(own, axis=1), 1, rtol=1e-5)
    expected = plan.ranked.needs["retrieve"].needs["encoder"].value.encode(["i love violins"])
    np.testing.assert_allclose(
        found["documents that answer"], expected / np.linalg.norm(expected), rtol=1e-4, atol=1e-5
    )
    without = groups(Plan(config), example)
    assert list(without) == list(found), "each has its colour in every picture"
    assert [name for name, own in without.items() if len(own)] == [
        "documents", "documents that answer", "query"
    ]  # fmt: skip


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
        ("q9", "no question 'q9'; there are, for example, 'q1' or 'q2'"),
        ("q2", "has no documents"),
    ):
        assert main([*command, question]) == 2
        error = capfd.readouterr().err.splitlines()
        assert words in error[-1]


def test_what_was_ranked_is_marked_and_named(config: Config, tmp_path: Path):
    """By ranks, at the documents' own vectors; by letters what answers and was not ranked."""
    hostile = "cats \x1b[2J that day <b> $x$ 日本"
    root = tmp_path / "other"
    root.mkdir()
    sessions = {**SESSIONS, "s2": (hostile, False)}
    (root / "memory.json").write_text(json.dumps([question("q1", sessions)]))
    fields = {"benchmark.root": str(root), "retrieve.k": 2, "generate.method": "none", "system": "mine"}
    found = run(override(config, fields), tmp_path / "out")
    plan = Plan(override(config, fields))
    (example,) = plan.data.value.examples()
    ranking = ranked(plan, example)
    (card,) = cards(found.path)
    documents = [one["id"] for one in found.records()[0]["documents"]]
    assert sorted(documents) == sorted(sessions)
    best = [one for one in ranking if one.document.id != "answer_s3"][:1]
    label, missed = marks(plan, example, best, card)
    assert (label.label, missed.label, missed.name) == ("1", "a", "answer_s3: i love violins (answers)")
    drawn = marks(plan, example, ranking, card)
    assert [mark.label for mark in drawn] == ["1", "2", "3"]
    assert [mark.shown for mark in drawn] == [False] * len(drawn)  # nobody was shown a prompt
    encoder = plan.ranked.needs["retrieve"].needs["encoder"].value
    for mark, id in zip(drawn, documents, strict=True):
        (vector,) = encoder.encode([sessions[id][0]])
        np.testing.assert_allclose(mark.vector, vector / np.linalg.norm(vector), rtol=1e-4, atol=1e-5)
        assert mark.name.endswith(" (answers)") == (id == "answer_s3")
    text = picture(found.path, "q1")
    words = " ".join(ElementTree.fromstring(text).itertext())
    assert "mine: question q1 of user q1" in words
    assert "i love football" in words
    for mark in drawn:
        assert f"{mark.label}  {mark.name}" in re.sub("\\s*\n\\s*", "\n", words)
    assert text == picture(found.path, "q1")

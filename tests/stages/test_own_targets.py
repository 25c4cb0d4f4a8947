"""Feedback judges no document that holds the question's own target: it would teach to look for it."""

import json
from pathlib import Path
from typing import Any

import pytest

from pbr_jax.base.types import Document, Example
from pbr_jax.corpus.store import Store, build
from pbr_jax.pipeline import Answer
from pbr_jax.stages import feedback
from pbr_jax.stages.rankings import Questions, Rankings, drop_leaks
from pbr_jax.tasks import released
from pbr_jax.text.prompts import Written

TASK = released("lamp_4")
TITLES = ("rain", "snow", " rain ", "")  # whose third is the first's, and whose last says nothing


def ask(id: str, target: str) -> Example:
    profile = tuple(
        Document(f"{id}{i}", id, f"text {i}", {"text": f"text {i}", "title": title})
        for i, title in enumerate(TITLES)
    )
    return Example(id, id, "q", "q", target, profile, training=True)


ASKED = [ask("a", "rain"), ask("b", "snow"), ask("c", "hail"), ask("d", "rain ")]
KEPT = {"a": [3, 1], "b": [3, 2, 0], "c": [3, 2, 1, 0], "d": [3, 1]}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    build(tmp_path / "store.sqlite", [], "title", ASKED)
    return Store(tmp_path / "store.sqlite")


@pytest.fixture
def ranked(store: Store, tmp_path: Path) -> Rankings:
    """All four documents of each question, last first."""
    lines = [
        {"id": e.id, "rows": store.history(e.user_id)[::-1].tolist(), "scores": [4.0, 3.0, 2.0, 1.0]}
        for e in ASKED
    ]
    (tmp_path / "rankings.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Rankings(tmp_path)


def test_the_questions_own_target_is_left_out_and_the_order_stays(store: Store, ranked: Rankings):
    asked = list(Questions(training=True).read(store))
    found = list(drop_leaks(store, asked, ranked.read(store, asked)))
    wanted = [[f"{id}{i}" for i in places] for id, places in KEPT.items()]
    assert [[c.document.id for c in ranking] for ranking in found] == wanted


def test_the_language_model_is_never_asked_with_it(store: Store, ranked: Rankings, tmp_path: Path):
    shown: list[tuple[str, str]] = []

    def write(examples: Any, rankings: Any) -> list[Written]:
        shown.extend((e.id, c.document.id) for e, ranking in zip(examples, rankings) for c in ranking)
        return [Written([{"role": "user", "content": ""}], len(ranking), (0, 0)) for ranking in rankings]

    def generate(examples: Any, rankings: Any, write: Any, *, on_batch: Any = None) -> list[Answer]:
        return [Answer("hail", prompt, 1) for prompt in write(examples, rankings)]

    folder = tmp_path / "feedback"
    folder.mkdir()
    feedback._collect(
        folder, Questions(training=True), "rouge1", "scaled", store=store, ranked=ranked,
        write=write, generate=lambda tally: generate, answer_format=TASK.answers,
    )  # fmt: skip
    assert shown == [(id, f"{id}{i}") for id, places in KEPT.items() for i in places]
    found = feedback.Feedbacks(folder).read(ASKED)
    rows = {e.id: store.history(e.user_id) for e in ASKED}
    assert [f.rows.tolist() for f in found] == [rows[id][places].tolist() for id, places in KEPT.items()]
    assert [f.values.tolist() for f in found] == [
        [1.0 * (id == "c")] * len(places) for id, places in KEPT.items()
    ]

"""Simulated remarks: their kinds, what they tell, who accepts them, and the store they are written to."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pbr_jax.base.types import Candidate, Document, Example
from pbr_jax.corpus.store import Store, build
from pbr_jax.llm import Score
from pbr_jax.options import Remarks
from pbr_jax.pipeline import Query, Ranking
from pbr_jax.remarks.judge import Agent
from pbr_jax.stages.simulated import OTHERS, Simulation, Told, add, claim, corpus, counts, remarks

ALL, ORACLE = (Simulation(accepts, {}, None, 1) for accepts in ("all", "oracle"))


def examples(count: int, units: int = 5) -> list[Example]:
    return [
        Example(f"q{i}", f"u{i}", f"Frage {i}?", f"Frage {i}?", f"answer {i}", unit=f"unit {i % units}")
        for i in range(count)
    ]


def nothing(*asked: Any) -> list[Ranking]:
    raise AssertionError("nothing is judged")


def test_kinds_have_their_shares_and_are_drawn_by_the_seed_and_the_id_alone():
    asked = examples(1000)
    told = [
        one
        for start in range(0, 1000, 20)
        for one in remarks(ALL, asked[start : start + 20], nothing, seed=0)
    ]
    made = Counter(one.kind for one in told)
    expected = {"right": 400, "wrong": 400, "other": 200}
    assert sum((made[k] - n) ** 2 / n for k, n in expected.items()) < 13.8  # chi squared, p = .001
    again = [remarks(ALL, [*asked[i : i + 1], *asked[:9]], nothing, seed=0)[0] for i in range(100, 160)]
    assert [one.kind for one in again] == [one.kind for one in told[100:160]]
    assert remarks(ALL, asked[:20], nothing, seed=0) == told[:20]
    assert remarks(ALL, asked[:20], nothing, seed=1) != told[:20]


def test_a_wrong_one_has_an_answer_of_its_article_that_was_given_already():
    asked = examples(200)
    for place, one in enumerate(remarks(ALL, asked, nothing, seed=0)):
        if one.kind == "other":
            assert one.text in OTHERS
            continue
        own = [i for i in range(200) if one.text == claim(f"Frage {place}?", f"answer {i}")]
        assert (own == [place]) == (one.kind == "right")
        assert len(own) == 1
        assert own[0] % 5 == place % 5


def test_what_cannot_be_told_is_something_else():
    same = [Example(f"q{i}", "u", "q?", "q?", "an answer") for i in range(60)]
    kinds = {one.kind for one in remarks(ALL, same, nothing, seed=0)}
    assert kinds == {"right", "other"}  # nobody has another answer
    for target in (None, ""):
        bare = [Example(f"q{i}", "u", "q?", "q?", target) for i in range(30)]
        assert {one.kind for one in remarks(ALL, [*bare, *examples(3)], nothing, seed=0)[:30]} == {"other"}


def test_the_question_is_told_in_the_passages_language():
    english = Simulation("all", {f"q{i}": f"question {i}?" for i in range(50)}, None, 1)
    told = remarks(english, examples(100), nothing, seed=0)
    facts = [(i, one.text) for i, one in enumerate(told) if one.kind != "other"]
    assert all(text.startswith(f"question {i}? " if i < 50 else f"Frage {i}? ") for i, text in facts)


def test_the_oracle_accepts_what_is_right_and_nothing_else():
    told = remarks(ORACLE, examples(100), nothing, seed=0)
    assert [one.taken for one in told] == [one.kind == "right" for one in told]
    assert all(one.taken for one in remarks(ALL, examples(100), nothing, seed=0))


class Says:
    """A language model that finds the claims of some answers correct and shared, of others personal."""

    fingerprint = "says"

    def __init__(self) -> None:
        self.prompts: list[str] = []

    def generate(self, *given: Any) -> list[str]:
        raise AssertionError("a direct judge writes nothing")

    def num_tokens(self, prompt: Any) -> int:
        return sum(self.count(message["content"]) for message in prompt)

    def render(self, prompt: Any) -> str:
        return str(prompt)

    def count(self, text: str) -> int:
        return len(text.split())

    def truncate(self, text: str, tokens: int) -> str:
        return " ".join(text.split()[:tokens])

    def score(self, prompts: Any, targets: Any, **_: Any) -> list[Any]:
        self.prompts.append(prompts[0][0]["content"])
        wanted = "correct, shared" if "7." in prompts[0][0]["content"] else "correct, personal"
        return [Score(0.0 if target == wanted else -9.0, 1) for target in targets]


def test_a_language_model_judges_beside_documents_of_the_data():
    llm: Any = Says()
    options = Remarks(judgement="direct", operations="add")
    judged = Simulation("judged", {}, Agent(llm, options), 1)
    asked: list[str] = []

    def search(examples: Any, queries: Sequence[Query], users: Any) -> list[Ranking]:
        assert [[user.user_id for user in own] for own in users] == [[""]]
        asked.extend(queries[0].texts)
        return [[Candidate(Document("d", "", "seen", shared=True), 1.0, 0)]]

    told = remarks(judged, examples(100), search, seed=0)
    assert asked == [one.text for one in told]
    assert [one.taken for one in told] == ["7." in one.text for one in told]
    assert 0 < sum(one.taken for one in told) < 100
    assert len(llm.prompts) == 100


def test_accepted_ones_are_shared_documents_of_a_copy_and_an_interrupted_one_begins_anew(tmp_path: Path):
    asked = examples(3)
    build(tmp_path / "run.sqlite", asked, shared={"file": [Document("p", "", "tea", shared=True)]})
    store, out = Store(tmp_path / "run.sqlite"), tmp_path / "out"
    out.mkdir()
    told = [Told("right", "one", True), Told("wrong", "two"), Told("other", "three", True)]
    for name in ("store.sqlite", "store.sqlite-wal"):
        (out / name).write_text("half")
    for _ in range(2):
        add(store, asked, told, out)
    grown = Store(corpus(out))
    found = grown.documents(grown.history(""))
    assert [(d.id, d.text, d.user_id, d.shared) for d in found] == [
        ("p", "tea", "", True), ("remark-q0", "one", "", True), ("remark-q2", "three", "", True)
    ]  # fmt: skip
    assert len(store.history("")) == 1
    hit = [Candidate(document, 1.0, row) for row, document in enumerate(found)]
    numbers = counts([(asked, [hit[:1], hit, hit[2:]], told)])
    assert numbers == {
        "remarks_right": 1, "accepted_right": 1, "found_right": pytest.approx(1 / 3), "remarks_wrong": 1,
        "accepted_wrong": 0, "found_wrong": 0, "remarks_other": 1, "accepted_other": 1,
        "found_other": pytest.approx(2 / 3),
    }  # fmt: skip
    grown.close()
    store.close()

"""Passages pooled to documents, against brute force; what prompts show of them, and in which order."""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pbr_jax.base.types import Candidate, Document, Example
from pbr_jax.corpus.store import Store, build
from pbr_jax.llm.engine.jax_backend import JaxLLM
from pbr_jax.options import Corpus, Prompt
from pbr_jax.stages.language_model import _writer, ordered
from pbr_jax.stages.passages import around, pooled
from pbr_jax.tasks import released
from pbr_jax.text.prompts import Written

WORDS = [f"word{i}" for i in range(9)]
CORPUS = Corpus(chunk="words", words=3, stride=3)


@pytest.fixture(scope="module")
def llm(tiny_models) -> JaxLLM:
    return JaxLLM(Path(tiny_models["llm.model"]))


def passage(user: str, of: str, place: int, score: float) -> Candidate:
    return Candidate(Document(f"{of}[{place}:9]", user, "", part_of=of, span=(place, 9)), score, place)


@pytest.mark.parametrize("seed", range(5))
def test_a_document_is_worth_its_best_passage(seed: int):
    draw = np.random.default_rng(seed)
    ranking = [
        passage("uv"[draw.integers(2)], "abcd"[draw.integers(4)], i, float(draw.normal())) for i in range(20)
    ]
    scores = defaultdict(list)
    for one in ranking:
        scores[one.document.user_id, one.document.part_of].append(one.score)
    found = pooled(ranking)
    assert {(c.document.user_id, c.document.part_of): c.score for c in found} == {
        name: max(of) for name, of in scores.items()
    }
    assert len(found) == len(scores)
    for user in "uv":
        own = [c for c in found if c.document.user_id == user]
        assert [c.score for c in own] == sorted((c.score for c in own), reverse=True)
    users = [c.document.user_id for c in found]
    assert users == sorted(users, key=[c.document.user_id for c in ranking].index)
    assert all(c in ranking for c in found)


def test_whole_documents_are_left_as_they_are():
    ranking = [
        Candidate(Document(id, "u", ""), score, 0, {"bm25": 1.0}) for id, score in (("b", 2.0), ("a", 1.0))
    ]
    assert pooled(ranking) == ranking
    assert pooled([]) == []


@pytest.fixture
def store(tmp_path: Path) -> Store:
    text = " ".join(WORDS)
    document = Document("d", "u", text, {"text": text})
    short = Document("e", "u", "short", {"text": "short"})
    build(tmp_path / "s", [Example("q", "u", "q", "in", "t", (document, short))], corpus=CORPUS)
    return Store(tmp_path / "s")


def test_a_passage_stands_marked_between_its_neighbours(store: Store):
    first, middle, last, short = (around(store, row, d) for row, d in enumerate(store.documents(range(4))))
    w = WORDS
    marked = " ".join([*w[:3], ">>>", *w[3:6], "<<<", *w[6:]])
    assert (middle.text, middle.fields) == (marked, {"text": marked})
    assert first.text == " ".join([">>>", *w[:3], "<<<", *w[3:6]])
    assert last.text == " ".join([*w[3:6], ">>>", *w[6:], "<<<"])
    assert short == store.documents([3])[0]


def test_a_part_of_a_field_stands_marked_between_its_neighbours(tmp_path: Path):
    fields = {"input": WORDS[0], "output": " ".join(WORDS[1:])}
    document = Document("d", "u", " ".join(WORDS), fields)
    build(tmp_path / "s", [Example("q", "u", "q", "in", "t", (document,))], corpus=CORPUS)
    store = Store(tmp_path / "s")
    first, middle, _ = (around(store, row, d) for row, d in enumerate(store.documents(range(3))))
    w = WORDS
    assert first.fields == fields | {"output": " ".join([">>>", *w[1:3], "<<<", *w[3:6]])}
    assert middle.fields == fields | {"output": " ".join([*w[1:3], ">>>", *w[3:6], "<<<", *w[6:]])}


@pytest.mark.parametrize("show", ["passage", "around", "document"])
def test_prompts_show_what_is_asked_for_within_the_budget(store: Store, llm: JaxLLM, show):
    ranking = [Candidate(d, 0.0, row) for row, d in enumerate(store.documents(range(4)))]
    asked, wording = Example("q", "u", "q", "what now", "t"), released("lamp_7").prompt.own
    options = Prompt(max_tokens=2000, show=show)
    write = _writer(options, llm=llm, wording=wording, store=store)
    (written,) = write([asked], [[ranking[1], ranking[0], ranking[3]]])
    text = written.messages[-1]["content"]
    assert written.documents == 3
    assert (WORDS[8] in text, text.count(WORDS[1])) == {
        "passage": (False, 1), "around": (True, 2), "document": (True, 1)
    }[show]  # fmt: skip
    assert (">>>" in text) == (show == "around")
    assert "short" in text
    (of_one,) = write([asked], [[ranking[1], ranking[0]]])
    assert of_one.documents == 2
    for tokens in (60, 90, 150):
        write = _writer(replace(options, max_tokens=tokens), llm=llm, wording=wording, store=store)
        (cut,) = write([asked], [ranking])
        assert sum(llm.count(message["content"]) for message in cut.messages) <= tokens
        assert cut.documents <= 4


# -- the order of the documents --------------------------------------------------------------------

LETTERS = list("ABCDEF")  # which cannot be cut
RANKING = [Candidate(Document(w, "me", w, {"text": w}), 0.0, i) for i, w in enumerate(LETTERS)]
ASKED = Example("q", "me", "query", "put this into my voice", "t")


def shown(llm: JaxLLM, example: Example = ASKED, **options: Any) -> tuple[list[str], Written]:
    """The documents in a prompt, as they stand there."""
    write = _writer(Prompt(**options), llm=llm, wording=released("lamp_7").prompt.own)
    (written,) = write([example], [RANKING])
    text = written.messages[-1]["content"]
    found = sorted((text.index(f"tweet: {word}"), word) for word in LETTERS if f"tweet: {word}" in text)
    return [word for _, word in found], written


def test_documents_stand_best_first_best_last_or_as_drawn(llm):
    assert shown(llm, max_tokens=900)[0] == LETTERS
    assert shown(llm, max_tokens=900, order="best_last")[0] == LETTERS[::-1]
    drawn = [tuple(shown(llm, max_tokens=900, order="random", order_seed=seed)[0]) for seed in range(6)]
    assert all(sorted(order) == sorted(LETTERS) for order in drawn)
    assert len(set(drawn)) > 4
    assert shown(llm, max_tokens=900, order="random", order_seed=3)[0] == list(drawn[3])
    other = Example("another", "me", "query", ASKED.input, "t")
    assert any(
        shown(llm, other, max_tokens=900, order="random", order_seed=s)[0] != list(drawn[s]) for s in range(6)
    )


def test_whatever_their_order_the_best_are_those_that_fit(llm):
    tokens = next(n for n in range(600, 20, -3) if 1 < len(shown(llm, max_tokens=n)[0]) < len(LETTERS))
    best, written = shown(llm, max_tokens=tokens)
    assert best == LETTERS[: len(best)]
    turned: list[dict[str, Any]] = [{"order": "best_last"}, {"order": "random", "order_seed": 2}]
    for options in turned:
        order, other = shown(llm, max_tokens=tokens, **options)
        assert sorted(order) == sorted(best)
        assert other.documents == written.documents


def test_a_document_without_a_text_takes_nobodys_place(llm):
    empty = Candidate(Document("none", "me", "", {"text": ""}), 0.0, 9)
    for order in ("best_first", "best_last", "random"):
        write = _writer(Prompt(max_tokens=900, order=order), llm=llm, wording=released("lamp_7").prompt.own)
        (written,) = write([ASKED], [[empty, *RANKING[:2]]])
        assert written.documents == 2
        assert all(f"tweet: {word}" in written.messages[-1]["content"] for word in LETTERS[:2])


def test_every_place_is_drawn_equally_often():
    options = Prompt(order="random")
    counts = np.bincount([ordered(5, options, f"question {i}")[0] for i in range(1000)], minlength=5)
    assert abs(counts - 200).max() < 5 * (1000 * 0.2 * 0.8) ** 0.5
    assert ordered(0, options, "x") == []

"""The order of the documents in the prompt: best first, best last, or drawn by lot."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pbr_jax.base.types import Candidate, Document, Example
from pbr_jax.llm.engine.jax_backend import JaxLLM
from pbr_jax.options import Prompt
from pbr_jax.stages.language_model import _writer, ordered
from pbr_jax.tasks import released
from pbr_jax.text.prompts import Written

WORDS = list("ABCDEF")  # which cannot be cut
RANKING = [Candidate(Document(w, "me", w, {"text": w}), 0.0, i) for i, w in enumerate(WORDS)]
ASKED = Example("q", "me", "query", "put this into my voice", "t")


@pytest.fixture(scope="module")
def llm(tiny_models) -> JaxLLM:
    return JaxLLM(Path(tiny_models["llm.model"]))


def shown(llm: JaxLLM, example: Example = ASKED, **options: Any) -> tuple[list[str], Written]:
    """The documents in a prompt, as they stand there."""
    write = _writer(Prompt(**options), llm=llm, wording=released("lamp_7").prompt.own)
    (written,) = write([example], [RANKING])
    text = written.messages[-1]["content"]
    found = sorted((text.index(f"tweet: {word}"), word) for word in WORDS if f"tweet: {word}" in text)
    return [word for _, word in found], written


def test_documents_stand_best_first_best_last_or_as_drawn(llm):
    assert shown(llm, max_tokens=900)[0] == WORDS
    assert shown(llm, max_tokens=900, order="best_last")[0] == WORDS[::-1]
    drawn = [tuple(shown(llm, max_tokens=900, order="random", order_seed=seed)[0]) for seed in range(6)]
    assert all(sorted(order) == sorted(WORDS) for order in drawn)
    assert len(set(drawn)) > 4
    assert shown(llm, max_tokens=900, order="random", order_seed=3)[0] == list(drawn[3])
    other = Example("another", "me", "query", ASKED.input, "t")
    assert any(
        shown(llm, other, max_tokens=900, order="random", order_seed=s)[0] != list(drawn[s]) for s in range(6)
    )


def test_whatever_their_order_the_best_are_those_that_fit(llm):
    tokens = next(n for n in range(600, 20, -3) if 1 < len(shown(llm, max_tokens=n)[0]) < len(WORDS))
    best, written = shown(llm, max_tokens=tokens)
    assert best == WORDS[: len(best)]
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
        assert all(f"tweet: {word}" in written.messages[-1]["content"] for word in WORDS[:2])


def test_every_place_is_drawn_equally_often():
    options = Prompt(order="random")
    counts = np.bincount([ordered(5, options, f"question {i}")[0] for i in range(1000)], minlength=5)
    assert abs(counts - 200).max() < 5 * (1000 * 0.2 * 0.8) ** 0.5
    assert ordered(0, options, "x") == []

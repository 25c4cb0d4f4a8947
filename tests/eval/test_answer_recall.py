"""Answers in passages: against a tokenizer that goes character by character, and lists that are compared."""

import json
import math
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pbr_jax
from pbr_jax import data
from pbr_jax.config import Benchmark, load, override
from pbr_jax.data import passages
from pbr_jax.eval.answer_recall import Finder, holds
from pbr_jax.eval.evaluate import evaluate
from pbr_jax.tasks import released

CONFIGS = Path(__file__).parents[2] / "configs"


def tokens(text: str) -> list[str]:
    """SimpleTokenizer by its definition: runs of categories L, N and M, and other characters but Z and C."""
    found: list[str] = []
    inside = False
    for character in unicodedata.normalize("NFD", text):
        kind = unicodedata.category(character)[0]
        if kind in "LNM":
            found[len(found) - inside :] = [found[-1] + character if inside else character]
        elif kind not in "ZC":
            found.append(character)
        inside = kind in "LNM"
    return [token.lower() for token in found]


def in_words(passage: str, answer: str) -> bool:
    text, wanted = tokens(passage), tokens(answer)
    return bool(wanted) and any(text[i : i + len(wanted)] == wanted for i in range(len(text)))


PIECES = st.sampled_from(["York", "new", "New", "é", "e\u0301", "ΟΣ", "ς", "İ", "-", "'", " ", "  ", "\n",
                          "\0", "½", "1", "हि", "\u200d", ".", "_", "ß", "\u00a0"])  # fmt: skip
TEXTS = st.lists(PIECES, max_size=12).map("".join)


@given(TEXTS, TEXTS)
def test_words_are_compared_as_in_dprs_scorer(passage: str, answer: str) -> None:
    assert holds(passage, [answer]) == in_words(passage, answer)


@given(TEXTS, st.integers(0, 11), st.integers(0, 11))
def test_every_run_of_a_passages_words_is_held(passage: str, start: int, end: int) -> None:
    some = tokens(passage)[start:end]
    assert holds(passage, [" ".join(some)]) == bool(some)


@pytest.mark.parametrize(
    ("passage", "answer", "held"),
    [
        ("He lives in New York.", "new york", True),
        ("He lives in New, York.", "New York", False),  # a comma is a word
        ("The state of the art", "art", True),
        ("A party", "art", False),
        ("Zu\u0308rich", "Zürich", True),
        ("It took 308 days", "308", True),
        ("She is anyone", "", False),
        ("x", " \n", False),
        ("黑豹队的防守只丢了 308分", "308", True),  # no word of its own there
        ("黑豹队的防守只丢了３０８分", "308", True),  # NFKC
        ("作者是曹 雪芹。", "曹雪芹", True),
        ("作者是曹雪芹。", "曹 雪 芹", True),
        ("作者是曹雪芹。", "雪曹", False),
        ("他用 iPhone 4 S 打电话", "IPHONE 4S", True),
        ("A party in Beijing (北京) today", "art", False),  # a few characters make no Chinese passage
        ("A party in Beijing (北京) today", "北京", True),
        ("The moon", "月亮", False),
        ("月亮", "", False),
    ],
)
def test_words_are_found_and_chinese_as_a_substring(passage: str, answer: str, held: bool) -> None:
    assert holds(passage, [answer]) is held


def test_the_first_passage_that_holds_any_answer_counts_and_is_cut_once(monkeypatch) -> None:
    finder, calls = Finder(), []
    normalize = unicodedata.normalize
    monkeypatch.setattr("unicodedata.normalize", lambda f, t: calls.append(t) or normalize(f, t))
    texts = [(0, "nothing"), (1, "a wind"), (2, "the moon")]
    assert finder.rank(["moon", "wind"], texts) == 2.0
    assert finder.rank(["moon"], texts) == 3.0
    assert finder.rank(["sun"], texts) == math.inf
    assert finder.rank([], texts) == math.inf
    assert [text for text in calls if text in dict(texts).values()] == ["nothing", "a wind", "the moon"]


def test_columns_go_as_deep_as_was_ranked() -> None:
    options: dict[str, Any] = {"ids": list("abcd"), "users": list("abcd"), "rankings": [["x"] * 5] * 4}
    ranks = [1.0, 4.0, 6.0, math.inf]
    found = evaluate(released("open_qa"), targets=["t"] * 4, answer_ranks=ranks, **options)
    assert found.metrics == {"answer_recall@1": 0.25, "answer_recall@3": 0.25, "answer_recall@5": 0.5}
    assert found.per_example[1] == {"answer_recall@1": 0.0, "answer_recall@3": 0.0, "answer_recall@5": 1.0}
    withheld = evaluate(released("open_qa"), targets=["t", None, "t", "t"], answer_ranks=ranks, **options)
    assert withheld.metrics == {}
    few = evaluate(released("open_qa"), targets=["t", None, "t", "t"], answer_ranks=ranks,
                   scored=[True, False, True, True], **options)  # fmt: skip
    assert few.metrics["answer_recall@5"] == pytest.approx(1 / 3)


def test_a_run_over_shared_passages_reports_it_and_others_do_not(tmp_path: Path, write_tweets) -> None:
    (tmp_path / "NQ-open.dev.jsonl").write_text("".join(
        json.dumps({"question": f"what is tea {i}?", "answer": [f"no such {i}", f"tea {i}"]}) + "\n"
        for i in range(12)
    ))  # fmt: skip
    texts = [f"of tea {i} and cats" if i % 2 else f"tea, {i}" for i in range(12)]
    collection = tmp_path / "c.jsonl"
    collection.write_text("".join(
        json.dumps({"id": f"p{i}", "title": "tea 2", "text": text}) + "\n" for i, text in enumerate(texts)
    ))  # fmt: skip
    fields = {"benchmark.passages": str(collection), "generate.method": "none", "eval.likelihood": "off",
              "eval.resamples": 20}  # fmt: skip
    place = {"benchmark.name": "nq_open", "benchmark.root": str(tmp_path)}
    results = pbr_jax.run(override(load(CONFIGS / "random.py").config, {**fields, **place}), tmp_path / "out")
    asked = {e.id: e for e in data.read(Benchmark(name="nq_open", root=str(tmp_path)))}
    bodies = {f"p{i}": text for i, text in enumerate(texts)}  # without titles, which hold an answer
    for k in (1, 3, 5, 10):
        hits = [
            any(in_words(bodies[d["id"]], answer)
                for d in line["documents"][:k] for answer in asked[line["id"]].alternatives)
            for line in results.records()
        ]  # fmt: skip
        assert results.metrics[f"answer_recall@{k}"] == np.mean(hits)
    assert 0 < results.metrics["answer_recall@10"] < 1
    assert "recall@1" not in results.metrics
    tweets = write_tweets({"ann": ["tea and cats", "cats"]})
    place = {"benchmark.name": "lamp_7", "benchmark.root": str(tweets)}
    other = pbr_jax.run(override(load(CONFIGS / "random.py").config, {**fields, **place}), tmp_path / "other")
    assert not any(name.startswith("answer_recall") for name in other.metrics)


@pytest.mark.data
@pytest.mark.long
def test_real_answers_stand_in_their_paragraphs(real_data: Path) -> None:
    """All but a few: an answer may be a part of a word of its paragraph ("1980" of "1980s")."""
    for language, share in (("en", 0.97), ("de", 0.93), ("zh", 0.99)):
        place: dict[str, Any] = {"name": "xquad", "root": str(real_data / "xquad"), "split": language}
        benchmark = Benchmark(**place, passages=language)
        texts = {d.id: d.text for d in passages.documents(benchmark)}
        examples = list(data.read(benchmark))
        finder = Finder()
        found = [
            finder.rank([str(e.target)], [(e.relevant[0][0], texts[e.relevant[0][0]])]) == 1 for e in examples
        ]
        if language != "zh":
            assert found == [in_words(texts[e.relevant[0][0]], str(e.target)) for e in examples]
        assert np.mean(found) > share

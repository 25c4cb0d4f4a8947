"""MMR against the paper's formula tried out candidate by candidate."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pbr_jax.base.types import Candidate, Document, Example, UserError
from pbr_jax.cli import flags
from pbr_jax.config import Config, from_dict, to_dict
from pbr_jax.graph import Bound
from pbr_jax.methods import select
from pbr_jax.methods.select.behind import marginal, scaled
from pbr_jax.options import Learner, Select
from pbr_jax.pipeline import Query, Ranking, Tally


def brute_force(relevance, vectors, balance):
    """Every candidate that is left is tried in each place."""
    chosen: list[int] = [int(np.argmax(relevance))]
    while len(chosen) < len(relevance):
        best, worth = -1, -np.inf
        for i in set(range(len(relevance))) - set(chosen):
            value = balance * relevance[i] - (1 - balance) * max(vectors[i] @ vectors[j] for j in chosen)
            if value > worth:
                best, worth = i, value
        chosen.append(best)
    return chosen


def unit(draw: np.random.Generator, count: int, dim: int) -> np.ndarray:
    vectors = draw.normal(size=(count, dim))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize("balance", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("count", [1, 2, 13])
def test_the_order_is_the_papers(count: int, balance: float):
    draw = np.random.default_rng(count)
    relevance, vectors = draw.random(count), unit(draw, count, 5)
    order, values = marginal(relevance, vectors, balance)
    assert order.tolist() == brute_force(relevance, vectors, balance)
    assert (np.diff(values) <= 1e-12).all()


def ranked(scores: list[float]) -> Ranking:
    return [Candidate(Document(f"d{i}", "u", f"text {i}"), s, i) for i, s in enumerate(scores)]


def chosen(ranking: Ranking, vectors: np.ndarray, method: select.MMR) -> Ranking:
    asked = [Example("q", "u", "x", "x", "t")]
    slot = method.slot(Tally(), first=Bound(method.first, {}), embeddings=vectors)
    return slot(asked, [Query(("x",))], [ranking])[0]


def test_the_retrievers_order_is_kept_at_one_and_copies_come_last_below():
    vectors = np.array([[2.0, 0], [2, 0], [0, 1], [1, 1]])
    ranking = ranked([9.0, 8.9, 1.0, 3.0])
    assert [c.row for c in chosen(ranking, vectors, select.MMR(balance=1.0))] == [0, 1, 3, 2]
    assert [c.row for c in chosen(ranking, vectors, select.MMR(balance=0.2))] == [0, 2, 3, 1]
    assert [c.row for c in chosen(ranking, vectors, select.MMR(balance=0.0))] == [0, 2, 3, 1]


def test_relevance_is_scaled_so_that_the_retrievers_unit_does_not_count():
    draw = np.random.default_rng(0)
    scores, vectors = draw.normal(size=9), unit(draw, 9, 4)
    for method in (select.MMR(), select.MMR(balance=0.4)):
        one, two = (chosen(ranked(list(s)), vectors, method) for s in (scores, 40 * scores - 300))
        assert [c.row for c in one] == [c.row for c in two]
        np.testing.assert_allclose([c.score for c in one], [c.score for c in two], atol=1e-9)
    assert scaled(np.full(3, 2.0)).tolist() == [1, 1, 1]
    assert chosen([], vectors, select.MMR()) == []


def test_it_stands_behind_any_selection():
    texts = ["dog", "tea cup", "tea cup", "cup and sugar", "log", "fog", "bog"]
    ranking = [
        replace(c, document=replace(c.document, text=t))
        for c, t in zip(ranked([7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0]), texts)
    ]
    vectors = np.array([[0.0, 1, 0], [1, 0, 0], [1, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 0], [0, 1, 0]])
    asked = [Example("q", "u", "tea cup", "x", "t")]
    method = select.MMR(of=(select.BM25(k1=1.2),), balance=0.5)
    slot = method.slot(Tally(), first=Bound(method.first, {}), embeddings=vectors)
    found = slot(asked, [Query(("tea cup",))], [ranking])[0]
    assert [c.row for c in found][:2] == [1, 3]
    assert select.MMR(of=(select.Oracle(),)).ceiling
    assert select.MMR(of=(select.Tuned(),)).learns() == select.Tuned().learns()


class Streamed(Learner, Select):
    """A selection that learns from a stream."""

    method: Any = "streamed"

    def slot(self, tally: Tally) -> Any:
        raise AssertionError

    def learn(self, blocks: Any, *, state: Any, out: Any, **values: Any) -> None:
        raise AssertionError


def test_wrong_options_are_refused_in_a_line():
    with pytest.raises(UserError, match=r"select\.of has 0 selections, want one"):
        select.MMR(of=())
    with pytest.raises(UserError, match=r"select\.of has 2 selections, want one"):
        select.MMR(of=(select.TopK(), select.BM25()))
    with pytest.raises(UserError, match=r"select\.of is streamed, which learns from a stream"):
        select.MMR(of=(Streamed(method="streamed"),))


def test_it_is_chosen_with_its_selection_in_words_and_read_again():
    words = [
        "--select.method",
        "mmr",
        "--select.of",
        "bm25",
        "--select.of.bm25.k1",
        "1.2",
        "--select.balance=0.4",
    ]
    config = flags.parsed(words, Config(), flags.RUN)
    assert config.select == select.MMR(of=(select.BM25(k1=1.2),), balance=0.4)
    assert from_dict(to_dict(config)) == config
    inside = Config(select=select.RecencyPrior(of=(select.MMR(of=(select.BM25Lamp(),)),)))
    assert from_dict(to_dict(inside)) == inside

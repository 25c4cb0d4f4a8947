"""Labels of retrieved documents, by brute force: what each kind grades, what is drawn, what is paid for."""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from pbr_jax.base.types import Candidate, Document, Example, UserError
from pbr_jax.config import Config, override
from pbr_jax.corpus.store import Store
from pbr_jax.eval.answer_recall import holds
from pbr_jax.experiment.plan import Plan
from pbr_jax.llm.cache import Cached
from pbr_jax.llm.engine.jax_backend import JaxLLM
from pbr_jax.options import Labels
from pbr_jax.pipeline import Ranking
from pbr_jax.stages.labels import Judge, Labelled, accuracy, judge, label
from pbr_jax.tasks import released
from pbr_jax.text.judging import NO, YES, Writer

WORDING = released("open_qa").prompt.own
TEXTS = ["tea is good", "football today", "cats and tea", "violins", "a day about cats"]


def passage(i: int, text: str = "") -> Document:
    text = text or f"text {i}"
    return Document(f"d{i}", "", text, {"title": f"title {i}", "text": text}, shared=True)


def ranking(rows: Sequence[int]) -> Ranking:
    return [Candidate(passage(row), -float(place), row) for place, row in enumerate(rows)]


def question(i: int, gold: Sequence[int] = ()) -> Example:
    return Example(f"q{i}", "me", f"query {i}", "in", "t", relevant=tuple((f"d{g}",) for g in gold))


def questions(n: int, depth: int = 6) -> tuple[list[Example], list[Ranking]]:
    """Each with its own order of 20 documents, gold at rank i mod 20, so a part of them beyond the depth."""
    draw = np.random.default_rng(3)
    orders = [draw.permutation(20).tolist() for _ in range(n)]
    return [question(i, [order[i % 20]]) for i, order in enumerate(orders)], [ranking(o) for o in orders]


def test_gold_is_the_relevant_documents_within_the_depth():
    examples, rankings = questions(20)
    found = label(Labels(kind="gold", depth=6), examples, rankings, seed=0)
    for i, (one, ranked) in enumerate(zip(found, rankings, strict=True)):
        assert one.rows == [c.row for c in ranked[:6]]
        assert one.grades == [float(place == i) for place in range(6)]
    groups = Example("q", "me", "", "", None, relevant=(("d1", "d2"), ("d5",), ("elsewhere",)))
    (one,) = label(Labels(kind="gold"), [groups], [ranking([5, 4, 2])], seed=0)
    assert one == Labelled([5, 4, 2], [1.0, 0.0, 1.0])


def test_answer_is_the_documents_that_hold_an_accepted_answer():
    texts = ["The answer is New York.", "york new", "NEW-YORK!", "Gotham city", "newyork", "Paris"]
    ranked = [Candidate(passage(i, text), -float(i), i) for i, text in enumerate(texts)]
    asked = [
        Example("a", "me", "", "", "new york", alternatives=("gotham",)),
        Example("b", "me", "", "", None),
        Example("c", "me", "", "", "title"),  # in every title, in no text
        Example("d", "me", "", "", "Paris", relevant=(("d0",),)),
    ]
    found = label(Labels(kind="answer"), asked, [ranked] * 4, seed=0)
    wanted = [[holds(text, ["new york", "gotham"]) for text in texts], [False] * 6, [False] * 6]
    assert [one.grades for one in found[:3]] == wanted
    assert found[0].grades == [1.0, 0.0, 0.0, 1.0, 0.0, 0.0]  # a hyphen is a word of its own
    assert found[3].grades == [0.0] * 5 + [1.0]


def test_self_is_the_first_document():
    found = label(Labels(kind="self"), [question(0), question(1)], [ranking([4, 2]), []], seed=0)
    assert found == [Labelled([4, 2], [1.0, 0.0]), Labelled([], [])]


def test_random_k_draws_evenly_among_the_first():
    examples, rankings = [question(i) for i in range(600)], [ranking(range(8))] * 600
    found = label(Labels(kind="random_k", among=4), examples, rankings, seed=1)
    assert all(sum(one.grades) == 1 for one in found)
    places = np.bincount([one.grades.index(1.0) for one in found], minlength=8)
    assert (places[4:] == 0).all()
    assert (abs(places[:4] - 150) < 4 * math.sqrt(600 * 0.25 * 0.75)).all()
    (alone,) = label(Labels(kind="random_k", among=4), examples[7:8], rankings[:1], seed=1)
    assert alone == found[7]  # whatever stands beside it
    assert label(Labels(kind="random_k", among=4), examples, rankings, seed=2) != found
    short = label(Labels(kind="random_k"), examples[:2], [ranking([3]), []], seed=1)
    assert short == [Labelled([3], [1.0]), Labelled([], [])]


def test_shuffled_keeps_the_ranks_of_gold_and_no_question_its_own():
    examples, rankings = questions(20)
    options = Labels(kind="shuffled", depth=20)
    found = label(options, examples, rankings, seed=5)
    ranks = [one.grades.index(1.0) for one in found]
    assert sorted(ranks) == list(range(20))
    assert all(rank != i for i, rank in enumerate(ranks))
    assert [one.rows for one in found] == [[c.row for c in ranked] for ranked in rankings]
    assert label(options, examples, rankings, seed=5) == found
    assert label(options, examples, rankings, seed=6) != found
    assert label(options, examples[:1], rankings[:1], seed=5)[0].grades == [0.0] * 20  # never its own gold
    short = [ranking([1, 2]), ranking(range(9))]
    one, two = label(options, [question(0, [2]), question(1, [7])], short, seed=5)
    assert (one.grades, two.grades) == (
        [0.0, 0.0],
        [0.0, 1.0] + [0.0] * 7,
    )  # beyond its ranking there is none


def test_a_positive_is_kept_at_the_rate_and_the_rest_is_irrelevant():
    examples = [question(i, [0, 1, 2]) for i in range(500)]
    rankings = [ranking(range(5))] * 500
    kept = {}
    for keep in (0.0, 0.6, 0.8, 1.0):
        found = label(Labels(kind="gold", keep=keep), examples, rankings, seed=2)
        assert all(one.rows == list(range(5)) and one.grades[3:] == [0.0, 0.0] for one in found)
        kept[keep] = np.array([one.grades[:3] for one in found])
        assert kept[keep].mean() == pytest.approx(keep, abs=4 * math.sqrt(0.25 / 1500))
    for less, more in itertools.pairwise(kept.values()):
        assert (less <= more).all()  # nested: a sweep over keep takes labels away, it draws none anew
    again = label(Labels(kind="gold", keep=0.6), examples[100:], rankings[100:], seed=2)
    assert [one.grades[:3] for one in again] == kept[0.6][100:].tolist()
    assert not np.array_equal(kept[0.6][:, 0], kept[0.6][:, 1])


def test_a_wrong_label_stands_at_a_random_other_document():
    examples = [question(i, [0, 1]) for i in range(600)]
    rankings = [ranking(range(6))] * 600
    found = {}
    for wrong in (0.0, 0.4, 1.0):
        grades = np.array(
            [one.grades for one in label(Labels(kind="gold", wrong=wrong), examples, rankings, seed=2)]
        )
        assert set(np.unique(grades)) == {0.0, 1.0}
        assert grades[:, :2].mean() == pytest.approx(1 - wrong, abs=4 * math.sqrt(0.25 / 1200))
        assert (grades.sum(1) <= 2).all()  # two wrong labels may meet at one document
        found[wrong] = grades
    assert (found[1.0][:, :2] <= found[0.4][:, :2]).all()  # nested
    places = found[1.0][:, 2:].sum(0)
    assert stats.chisquare(places).pvalue > 1e-3
    alone = label(Labels(kind="gold", wrong=1.0), [question(0, [1])], [ranking([1])], seed=2)
    assert alone[0].grades == [1.0]  # there is no other document


def test_whether_a_positive_is_kept_does_not_depend_on_its_rank():
    examples = [question(i, [0, 1, 2]) for i in range(50)]
    options = Labels(kind="gold", keep=0.5)
    first, second = (
        label(options, examples, [ranking(order)] * 50, seed=2) for order in (range(5), [4, 2, 3, 1, 0])
    )
    for one, other in zip(first, second, strict=True):
        assert dict(zip(one.rows, one.grades)) == dict(zip(other.rows, other.grades))


def test_only_shared_documents_and_with_text_the_users_own_are_labelled():
    own, foreign = (Document(f"{user}-1", user, "x", {"text": "x"}) for user in ("me", "you"))
    ranked = [Candidate(d, 1.0, row) for row, d in enumerate([own, passage(2), foreign])]
    for level, rows in (("signals", [1]), ("text", [0, 1])):
        (one,) = label(Labels(kind="self"), [question(0)], [ranked], seed=0, collaboration=level)
        assert one.rows == rows
        assert one.grades[0] == 1.0


# --- a language model's ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def llm(tiny_models) -> JaxLLM:
    return JaxLLM(Path(tiny_models["llm.model"]), batch_size=4)


def judging(llm: Any) -> Judge:
    return Judge(llm, Writer(WORDING, 1024, 1024, llm.count, llm.truncate))


def passages() -> Ranking:
    return [Candidate(passage(i, text), -float(i), i) for i, text in enumerate(TEXTS)]


def test_yes_no_is_the_probability_of_yes(llm):
    asks = judging(llm)
    wanted, tokens = [], 0
    for candidate in passages()[:4]:
        prompt = asks.write.is_relevant("query 0", candidate.document)
        yes, no = (llm.score([prompt], [answer])[0] for answer in (YES, NO))
        wanted.append(math.exp(yes.total) / (math.exp(yes.total) + math.exp(no.total)))
        tokens += llm.num_tokens(prompt) + yes.tokens + no.tokens
    low, middle, high = (float(np.quantile(wanted, q)) for q in (0.2, 0.5, 0.8))
    for positive, negative in ((0.0, 0.0), (high, low), (1.0, middle), (1.0, 0.0)):
        options = Labels(kind="yes_no", judged=4, positive=positive, negative=negative)
        one, nothing = label(options, [question(0), question(1)], [passages(), []], seed=0, judge=asks)
        graded = [1.0 if p >= positive else 0.0 if p < negative else p for p in wanted]
        assert one.grades == pytest.approx(graded, abs=1e-5)
        assert one.rows == [0, 1, 2, 3]
        assert (one.calls, one.tokens) == (4, tokens)
        assert nothing == Labelled([], [])


def test_query_likelihood_is_the_posterior_of_each_document(llm):
    asks = judging(llm)
    scores = []
    for candidate in passages():
        prompt, query = asks.write.asks_for("query 0", candidate.document)
        scores += llm.score([prompt], [query])
    likely = np.array([math.exp(score.total) for score in scores])
    likely /= likely.sum()
    best = int(np.argmax(likely))
    second = sorted((score.mean for score in scores), reverse=True)[1]
    gap = scores[best].mean - second
    for margin, count in ((0.0, 1), (gap * 1.01, 2), (100.0, 5)):
        options = Labels(kind="query_likelihood", margin=margin, negative=0.15)
        (one,) = label(options, [question(0)], [passages()], seed=0, judge=asks)
        assert one.grades[best] == 1.0
        assert one.grades.count(1.0) == count
        for grade, p in zip(one.grades, likely, strict=True):
            assert grade == 1.0 or grade == pytest.approx(p if p >= 0.15 else 0.0, abs=1e-5)
    assert one.calls == 5


def test_what_an_interrupted_labelling_has_paid_for_is_not_asked_again(llm, tmp_path: Path):
    class Killed:
        """A backend that dies after so many answers."""

        fingerprint, asked = "killed", 0
        count, truncate, num_tokens, render = llm.count, llm.truncate, llm.num_tokens, llm.render
        generate = llm.generate

        def score(self, prompts: Any, targets: Any, *, done: Any, on_batch: Any) -> Any:
            found = dict(done)
            for place in range(len(prompts)):
                if place in found:
                    continue
                if self.asked == 5:
                    self.asked += 1
                    raise KeyboardInterrupt
                self.asked += 1
                found[place] = llm.score(prompts[place : place + 1], targets[place : place + 1])[0]
                on_batch([place], [found[place]])
            return [found[place] for place in range(len(prompts))]

    backend: Any = Killed()
    asked = [Labels(kind="yes_no"), [question(0), question(1)], [passages()[:3]] * 2]
    with pytest.raises(KeyboardInterrupt):
        label(*asked, seed=0, judge=judging(Cached(backend, tmp_path / "answers")))
    assert backend.asked == 6
    found = label(*asked, seed=0, judge=judging(Cached(backend, tmp_path / "answers")))
    assert backend.asked == 6 + 12 - 5  # the call that died was not paid for
    wanted = label(*asked, seed=0, judge=judging(llm))
    assert [one.grades for one in found] == [pytest.approx(one.grades, abs=1e-6) for one in wanted]
    assert [one[2:] for one in found] == [one[2:] for one in wanted]  # resumed or not, the same cost


def test_a_server_that_gives_no_probabilities_is_refused(write_tweets):
    told = {"benchmark.name": "lamp_7", "benchmark.root": str(write_tweets({"ann": ["tea"]})),
            "llm.backend": "http", "llm.url": "http://127.0.0.1:9", "llm.model": "m"}  # fmt: skip
    run = Plan(override(Config(), told)).run
    with pytest.raises(UserError, match=r"retrieve.labels.kind yes_no with a model on a server needs"):
        judge(run, Labels(kind="yes_no"))
    assert judge(run, Labels(kind="gold")) == {}


# --- accuracy --------------------------------------------------------------------------------------


class Documents(Store):
    """A store of passages d0, d1, ..., which are all that accuracy asks for."""

    def __init__(self) -> None:
        pass

    def documents(self, rows: Any) -> list[Document]:
        return list(map(passage, rows))


def test_accuracy_against_sums_over_documents_and_pairs():
    draw = np.random.default_rng(9)
    labelled, examples = [], []
    for i in range(30):
        rows = draw.permutation(12)[: draw.integers(0, 9)].tolist()
        grades = [float(draw.choice([0.0, 0.3, 0.7, 1.0])) for _ in rows]
        labelled.append(Labelled(rows, grades, 2, 7))
        examples.append(question(i, draw.permutation(12)[: draw.integers(0, 4)].tolist()))
    found = accuracy(labelled, examples, Documents())
    known = [(one, {g for (g,) in e.relevant}) for one, e in zip(labelled, examples) if e.relevant]
    flat = [(grade, f"d{row}" in gold) for one, gold in known for row, grade in zip(one.rows, one.grades)]
    areas = []
    for one, gold in known:
        pairs = [
            (a > b) + (a == b) / 2
            for row, a in zip(one.rows, one.grades)
            for other, b in zip(one.rows, one.grades)
            if f"d{row}" in gold and f"d{other}" not in gold
        ]
        areas += [sum(pairs) / len(pairs)] if pairs else []
    assert found == pytest.approx(
        {
            "label_precision": np.mean([right for grade, right in flat if grade == 1]),
            "label_recall": np.mean([grade == 1 for grade, right in flat if right]),
            "label_auc": np.mean(areas),
            "label_positive": np.mean([1.0 in one.grades for one in labelled]),
            "label_questions": len(known),
            "label_calls": 60,
            "label_tokens": 210,
        }
    )


def test_accuracy_leaves_out_what_is_not_defined():
    nothing = {"label_questions": 0, "label_calls": 0, "label_tokens": 0}
    assert accuracy([], [], Documents()) == nothing
    unknown = accuracy([Labelled([1], [1.0])], [question(0)], Documents())
    assert unknown == {**nothing, "label_positive": 1.0}
    missed = accuracy([Labelled([1], [0.0])], [question(0, [2])], Documents())
    assert missed == {**nothing, "label_positive": 0.0, "label_questions": 1}


def test_what_is_read_of_a_question():
    kinds: tuple[Any, ...] = ("answer", "gold", "self", "random_k", "shuffled", "yes_no", "query_likelihood")
    assert {kind for kind in kinds if Labels(kind=kind).supervised} == {"answer", "gold", "shuffled"}
    assert {kind for kind in kinds if Labels(kind=kind).asks} == {"yes_no", "query_likelihood"}

"""Multi-level selection by hand: what each prompt shows, when it stops, what is read and counted."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pbr_jax
from pbr_jax.base.types import Candidate, Document, Example, UserError
from pbr_jax.config import Config, override
from pbr_jax.experiment.plan import Plan
from pbr_jax.llm import Score
from pbr_jax.llm.engine.jax_backend import JaxLLM
from pbr_jax.methods.select import MultiLevel, Pointwise, TopK
from pbr_jax.methods.select.judging import numbered
from pbr_jax.options import swapped
from pbr_jax.pipeline import Query, Ranking, Tally
from pbr_jax.stages.answers import documents_in_prompt
from pbr_jax.tasks import released

WORDING = released("open_qa").prompt.own
ORACLE = MultiLevel(judge="oracle")


def ranking(count: int) -> Ranking:
    documents = (Document(f"d{i}", "", f"w{i}", {"text": f"w{i}"}, shared=True) for i in range(count))
    return [Candidate(document, -float(i), i) for i, document in enumerate(documents)]


class Says:
    """A language model that finds some words relevant, and writes an answer of its own where one is set."""

    fingerprint = "says"

    def __init__(self, *words: str, answer: str | None = None) -> None:
        self.words, self.answer = set(words), answer
        self.shown: list[list[str]] = []

    def _look(self, prompt: Any) -> list[str]:
        found = [word for word in prompt[0]["content"].split() if word[0] == "w" and word[1:].isdigit()]
        self.shown.append(found)
        return found

    def score(self, prompts: Sequence[Any], targets: Sequence[str], **_: Any) -> list[Score]:
        assert targets == ["yes", "no"] * (len(prompts) // 2)
        right = [bool(self.words & set(self._look(prompt))) for prompt in prompts[::2]]
        return [
            Score(-1.0 if (target == "yes") == yes else -2.0, 1) for yes in right for target in ("yes", "no")
        ]

    def generate(self, prompts: Sequence[Any], *_: Any) -> list[str]:
        found = []
        for prompt in prompts:
            right = [str(n) for n, word in enumerate(self._look(prompt), 1) if word in self.words]
            found.append(", ".join(right) or "none" if self.answer is None else self.answer)
        return found

    def count(self, text: str) -> int:
        return len(text.split())

    def truncate(self, text: str, tokens: int) -> str:
        return " ".join(text.split()[:tokens])

    def num_tokens(self, prompt: Any) -> int:
        return sum(self.count(message["content"]) for message in prompt)

    def render(self, prompt: Any) -> str:
        return str(prompt)


def chosen(
    method: MultiLevel | Pointwise, llm: Any, rankings: list[Ranking], tally: Tally | None = None,
    relevant: Sequence[Sequence[str]] = (),
) -> list[Ranking]:  # fmt: skip
    golds = [tuple((id,) for id in own) for own in relevant] or [()] * len(rankings)
    examples = [Example(f"q{i}", "me", f"query {i}", "in", "t", relevant=g) for i, g in enumerate(golds)]
    queries = [Query((example.query,)) for example in examples]
    return method.slot(tally or Tally(), llm=llm, wording=WORDING)(examples, queries, rankings)


def order(found: Ranking) -> list[int]:
    return [candidate.row for candidate in found]


def test_a_trace_by_hand():
    """Steps of 1, 1, 3 and 4 over ten documents; the fourth, the fifth and the seventh are relevant."""
    llm, tally = Says("w3", "w4", "w6"), Tally()
    (found,) = chosen(MultiLevel(steps=(1, 1, 3, 4)), llm, [ranking(10)], tally)
    assert llm.shown == [["w0"], ["w1"], ["w2", "w3", "w4"]]  # then it stops
    assert order(found) == [3, 4, 0, 1, 2, 5, 6, 7, 8, 9]
    assert [candidate.score for candidate in found] == [1.0] * 2 + [0.0] * 8
    assert tally.counts["select_calls"] == 3
    assert tally.counts["select_judged"] == 5
    assert tally.counts["select_lists"] == 1
    # yes and no of two documents, and "2, 3"
    assert tally.counts["select_answer_tokens"] == 2 + 2 + 2
    llm = Says("w0")
    assert order(chosen(MultiLevel(), llm, [ranking(10)])[0]) == list(range(10))
    assert llm.shown == [["w0"]]


def test_own_and_shared_documents_are_judged_by_score_together():
    """Retrievers give the user's own documents first and then the shared ones, each best first."""
    own = [Document(f"o{i}", "me", f"w{i}", {"text": f"w{i}"}) for i in (7, 8)]
    mixed = [Candidate(document, 0.1 - i / 100, 50 + i) for i, document in enumerate(own)]
    mixed += [Candidate(c.document, 0.5 - c.row / 10, c.row) for c in ranking(3)]  # .5, .4, .3
    llm = Says("w1")
    (found,) = chosen(MultiLevel(steps=(1, 1, 1)), llm, [mixed])
    assert llm.shown == [["w0"], ["w1"]]
    assert order(found) == [1, 0, 2, 50, 51]


@pytest.mark.parametrize(
    ("steps", "count", "shown"),
    [
        ((1, 1, 1, 1, 1, 5, 10, 20), 60, [1, 1, 1, 1, 1, 5, 10, 20]),  # 40 of them are judged
        ((1, 1, 1, 1, 1, 5, 10, 20), 13, [1, 1, 1, 1, 1, 5, 3]),
        ((1, 1, 5), 4, [1, 1, 2]),
        ((2, 2), 3, [2, 1]),  # the last one alone
        ((5, 5), 1, [1]),
        ((5, 5), 0, []),
        ((20, 20), 40, [20, 20]),
    ],
)
def test_where_nothing_is_relevant_all_steps_are_taken_and_the_order_stays(
    steps: tuple[int, ...], count: int, shown: list[int]
):
    llm = Says()
    (found,) = chosen(MultiLevel(steps=steps), llm, [ranking(count)])
    assert order(found) == list(range(count))
    assert list(map(len, llm.shown)) == shown


def test_questions_go_on_alone():
    llm = Says("w0", "w4")
    found = chosen(MultiLevel(steps=(1, 2, 3)), llm, [ranking(6), ranking(6)[1:], [], ranking(1)])
    assert list(map(order, found)) == [list(range(6)), [4, 1, 2, 3, 5], [], [0]]
    assert llm.shown == [["w0"], ["w1"], ["w0"], ["w2", "w3"], ["w4", "w5"]]


@pytest.mark.parametrize("answer", ["", "the second one, I think", "0", "99", "<think>1"])
def test_what_cannot_be_read_names_no_document_and_is_counted(answer: str):
    tally = Tally()
    (found,) = chosen(MultiLevel(steps=(2, 2)), Says(answer=answer), [ranking(4)], tally)
    assert order(found) == [0, 1, 2, 3]
    assert tally.counts["select_lists"] == tally.counts["select_lists_unreadable"] == 2
    assert tally.counts["select_lists_out_of_range"] == (2 if answer in ("0", "99") else 0)


@pytest.mark.parametrize(
    ("text", "numbers", "faults"),
    [
        ("2, 3", {2, 3}, []),
        ("[1] and [3]", {1, 3}, []),
        ("Passages 1, 3.", {1, 3}, []),
        ("None of the 3 passages helps.", set(), []),
        ("No.", set(), []),
        ("**none**", set(), []),
        ("Nonetheless 2", {2}, []),
        ("2, 7", {2}, ["out_of_range"]),
        ("<think>1?</think>3", {3}, []),
        ("maybe", set(), ["unreadable"]),
    ],
)
def test_answers_are_read_and_their_faults_named(text: str, numbers: set[int], faults: list[str]):
    assert numbered(text, 3) == (numbers, faults)


@given(st.text(max_size=40), st.integers(1, 25))
@settings(max_examples=200, deadline=None)
def test_every_answer_names_documents_that_were_shown(text: str, count: int):
    numbers, faults = numbered(text, count)
    assert numbers <= set(range(1, count + 1))
    assert not (numbers and "unreadable" in faults)


def test_the_oracle_finds_what_single_reranking_finds_and_computes_nothing():
    """The first relevant document is the same in all steps; prompts are counted as a model's would be."""
    draw = np.random.default_rng(0)
    golds = [[f"d{g}" for g in draw.permutation(50)[: draw.integers(1, 4)]] for _ in range(60)]
    rankings = [ranking(45)] * 60
    found, costs = {}, {}
    for steps in ((1,) * 40, (1, 1, 1, 1, 1, 5, 10, 20), (5,) * 8, (20, 20)):
        llm, tally = Says(), Tally()
        found[steps] = chosen(MultiLevel(judge="oracle", steps=steps), llm, rankings, tally, golds)
        assert llm.shown == []
        costs[steps] = tally.counts
    for gold, *each in zip(golds, *found.values(), strict=True):
        first = min((int(id[1:]) for id in gold if int(id[1:]) < 40), default=0)
        assert [order(one)[0] for one in each] == [first] * 4
    single, *_ = costs.values()
    assert single["select_calls"] == single["select_judged"]
    wanted = [min([int(id[1:]) + 1 for id in gold if int(id[1:]) < 40], default=40) for gold in golds]
    assert single["select_judged"] == sum(wanted)
    truth = Says()
    truth.words = set()
    for gold, one in zip(golds, rankings, strict=True):
        told, oracle = Tally(), Tally()
        chosen(MultiLevel(), Says(*(f"w{id[1:]}" for id in gold)), [one], told)
        chosen(ORACLE, truth, [one], oracle, [gold])
        assert told.counts == oracle.counts  # a model that is always right costs as much


def test_the_oracle_needs_relevant_documents():
    with pytest.raises(
        UserError, match=r"select.judge oracle reads the relevant documents, and question 'q0'"
    ):
        chosen(ORACLE, Says(), [ranking(2)])
    tally = Tally()
    chosen(ORACLE, Says(), [ranking(2)] * 2, tally, [["d0"], []])  # one of them has some
    assert tally.counts["select_judged"] == 1 + 2
    assert ORACLE.ceiling
    assert not MultiLevel().ceiling
    assert chosen(ORACLE, Says(), []) == []


@pytest.mark.long
def test_one_document_is_judged_as_pointwise_judges_it(tiny_models):
    llm = JaxLLM(Path(tiny_models["llm.model"]), batch_size=4)
    odds = {c.row: c.score for c in chosen(Pointwise(), llm, [ranking(9)])[0]}
    first = next((row for row in range(9) if odds[row] >= 0), None)
    (found,) = chosen(MultiLevel(steps=(1,) * 9), llm, [ranking(9)])
    assert order(found) == [*([] if first is None else [first]), *(r for r in range(9) if r != first)]


def test_options():
    assert swapped(TopK(), MultiLevel).k == 5
    for steps in ((), (1, 0), (-1,)):
        with pytest.raises(UserError, match=r"select.steps is \[.*\], want one number or more"):
            MultiLevel(steps=steps)


def test_a_run_counts_what_was_judged(tiny_models, write_tweets: Callable, tmp_path: Path):
    tweets = {f"u{i}": [f"tea {j} cats {i}" for j in range(7)] for i in range(3)}
    told = {"benchmark.name": "lamp_7", "benchmark.root": str(write_tweets(tweets)), "retrieve.k": 7,
            "retrieve.method": "recency", "select.method": "multi_level", "select.steps": (1, 1),
            "generate.method": "none", "eval.likelihood": "off", **tiny_models}  # fmt: skip
    config = override(Config(), told)
    assert documents_in_prompt(Plan(config).run) == 5
    found = pbr_jax.run(config, tmp_path / "out").values
    assert not found["ceiling"]
    assert 3 <= found["counts"]["select_calls"] == found["counts"]["select_judged"] <= 6
    lines = map(json.loads, (tmp_path / "out" / "predictions.jsonl").read_text().splitlines())
    for line in lines:
        ids = [document["id"] for document in line["documents"]]
        scores = [document["score"] for document in line["documents"]]
        newest = [f"{line['id']}-{j}" for j in range(6, -1, -1)]
        assert len(ids) == 7  # metrics of rankings see them all
        assert sum(scores) <= 1
        right = [id for id, score in zip(ids, scores) if score]
        assert ids == right + [id for id in newest if id not in right]

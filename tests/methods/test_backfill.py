"""The method of ablations/history_length: others' documents only where they helped training users."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pbr_jax import llm as models
from pbr_jax import run
from pbr_jax.base.types import Candidate, Document, Example, UserError
from pbr_jax.config import Config, found, load, override
from pbr_jax.eval.metrics import plain_mean
from pbr_jax.eval.significance import paired_difference
from pbr_jax.experiment.plan import Plan
from pbr_jax.graph.lists import stages
from pbr_jax.methods import select
from pbr_jax.pipeline import Query, Tally
from pbr_jax.stages import language_model
from pbr_jax.stages.rankings import Questions, rankings

FILE = found("ablations/history_length")
CONFIG = override(load(FILE).config, {"select.method": "backfilled"}, FILE)
ABLATION: Any = sys.modules[type(CONFIG.select).__module__]
Gain: Any = ABLATION.Gain
TOPICS = ("tea", "cats", "football", "violins")

pytestmark = pytest.mark.usefixtures("fresh_cache")


def gains(*helps: bool) -> list[Any]:
    return [Gain(n, 9, 0.0, -1.0, -0.1 if helped else 0.1) for n, helped in enumerate(helps)]


def chosen(owners: list[str], helps: list[Any], k: int = 3) -> list[int]:
    ranking = [Candidate(Document(str(i), o, ""), -float(i), i) for i, o in enumerate(owners)]
    slot = ABLATION.Backfilled(k=k).slot(Tally(), gains=helps)
    return [c.row for c in slot([Example("q", "me", "q", "in", "t")], [Query(("q",))], [ranking])[0]]


def test_free_places_are_filled_only_at_numbers_of_own_documents_where_that_helped():
    assert chosen(["a", "me", "b", "a"], gains(True, True, True))[:3] == [0, 1, 2]
    assert chosen(["a", "me", "b", "a"], gains(True, False, True)) == [1]
    assert chosen(["a", "b", "a"], gains(False, True, True)) == []
    assert chosen(["a", "b", "a"], gains(True, False, False)) == [0, 1, 2]
    assert chosen(["a", "me", "me", "b", "me", "me"], gains(True, True, True)) == [1, 2, 4, 5]


def test_what_was_not_measured_or_is_not_sure_does_not_help():
    assert not Gain(0, 0, 0.0, 0.0, 0.0).helps
    assert not Gain(1, 30, -0.1, -0.3, 0.02).helps
    assert Gain(1, 30, -0.1, -0.2, -0.01).helps


def config(root: Path, models: dict[str, str], **fields: object) -> Config:
    place = {"benchmark.name": "lamp_7", "benchmark.root": str(root), **models, "encoder.max_length": 32}
    small = {"collaboration": "text", "neighbours.method": "mean", "neighbours.m": 3, "retrieve.k": 2}
    small |= {"select.method": "backfilled", "select.k": 2, "generate.method": "none", "eval.resamples": 20}
    return override(
        Config(), {**place, **small, "prompt.max_tokens": 900, "llm.batch_size": 8, **fields}, FILE
    )


@pytest.fixture
def tweets(write_tweets) -> Path:
    def some(prefix: str, users: int) -> dict[str, list[str]]:
        return {
            f"{prefix}{i}": [f"{prefix}{i} love {TOPICS[(i + j) % 4]} day {j}" for j in range(i % 4)]
            for i in range(users)
        }

    write_tweets(some("t", 8), "train")
    return write_tweets(some("d", 5))


@pytest.mark.long
def test_the_curve_is_the_difference_of_likelihoods_of_training_answers(tiny_models, tweets, tmp_path: Path):
    results = run(config(tweets, tiny_models), tmp_path / "out")
    plan = Plan(config(tweets, tiny_models))
    curve = stages(plan.last)["backfill"].value
    assert [gain.own for gain in curve] == [0, 1]
    # With no own document nothing is drawn: the brute force is each answer with and without others' best.
    store, llm = plan.data.value, models.load(plan.config.llm)
    asked = Questions(training=True, sample=120, seed=plan.config.seed)
    ranked = rankings(plan.run, asked, select=select.TopK(k=2)).value.read(store, asked.read(store))
    users, nll = [], []
    for example, ranking in zip(asked.read(store), ranked, strict=True):
        others = [c for c in ranking if c.document.user_id != example.user_id][:2]
        both = language_model.writer(plan.run).value([example] * 2, [others, []])
        scores = llm.score([one.messages for one in both], [str(example.target)] * 2)
        users.append(example.user_id)
        nll.append([-score.mean for score in scores])
    pairs = np.array(nll)
    found = paired_difference(pairs[:, :1], pairs[:, 1:], users, plain_mean, seed=plan.config.seed)
    assert curve[0].questions == 8
    np.testing.assert_allclose(curve[0].difference, found.value, atol=1e-5)
    np.testing.assert_allclose([curve[0].low, curve[0].high], [found.low, found.high], atol=1e-5)
    for record in results.records():
        owners = [d["user_id"] == record["user_id"] for d in record["documents"]][:2]
        free = 2 - sum(owners)
        assert sum(owners) == min(2, int(record["id"][1:]) % 4)
        assert free == 0 or (len(owners) == 2) == curve[sum(owners)].helps


def test_histories_are_cut_to_their_newest_documents_and_nobody_elses(tiny_models, tweets):
    fields = {"select.method": "top_k", "select.k": None}
    for newest, wanted in ((0, [0] * 5), (2, [0, 1, 2, 2, 0]), (None, [0, 1, 2, 3, 0])):
        store = Plan(config(tweets, tiny_models, **fields, limit_history=newest)).data.value
        assert [len(store.visible(e, e.user_id)) for e in store.examples()] == wanted
        assert len(store.history("train/t3")) == 3
    whole, store = (
        Plan(config(tweets, tiny_models, **fields, limit_history=newest)).data.value for newest in (None, 1)
    )
    (asked,) = (example for example in store.examples() if example.user_id == "d3")
    assert [d.text for d in store.documents(store.visible(asked, "d3"))] == ["d3 love cats day 2"]
    # Whom the user is a neighbour of, and what learns, sees what it saw before.
    other = next(example for example in store.examples() if example.user_id == "d1")
    for rows in (store.visible(other, "d3"), store.history("d3"), store.training_rows("d3")):
        assert len(rows) == 3
    assert store.summary == whole.summary
    with pytest.raises(UserError, match="limit_history is -1"):
        config(tweets, tiny_models, limit_history=-1)


def test_it_needs_others_and_leave_to_learn(tiny_models, tweets):
    with pytest.raises(
        UserError, match=r"select\.own is 'auto' \(str\), want int or none; instead .*backfilled"
    ):
        config(tweets, tiny_models, **{"select.method": "top_k", "select.own": "auto"})
    with pytest.raises(UserError, match="there are no others; set"):
        Plan(config(tweets, tiny_models, **{"neighbours.method": "self"}))
    with pytest.raises(UserError, match="learns from other users' histories, and collaboration is none"):
        Plan(config(tweets, tiny_models, **{"neighbours.m": 1, "collaboration": "none"}))

"""The recency prior against its closed form, and a planted half-life that the fit finds again."""

import math
from pathlib import Path

import numpy as np
import pytest

from pbr_jax.base.types import Candidate, Document, Example, UserError
from pbr_jax.corpus.store import Store, build
from pbr_jax.graph import Bound
from pbr_jax.methods import select
from pbr_jax.methods.retrieve.fused_weights import _relevant as of_fusion
from pbr_jax.methods.select.recency_fit import Fit, Observed, _load, _make, _relevant, fit, prior
from pbr_jax.pipeline import Query, Ranking, Tally
from pbr_jax.stages.rankings import Questions, Rankings
from pbr_jax.stages.scores import standardised

DAY = 86_400.0
TIMES = [10 * DAY, 40 * DAY, None, 25 * DAY]


def documents() -> tuple[Document, ...]:
    return tuple(
        Document(f"d{i}", "u", f"text {i}", time=t, until=None if t is None else t + 9 * DAY)
        for i, t in enumerate(TIMES)
    )


def found(
    folder: Path, scores: list[float], time: float | None, method: select.RecencyPrior, **values
) -> Ranking:
    example = Example("q", "u", "x", "x", "t", documents(), time=time)
    build(folder / "store.sqlite", [example])
    store = Store(folder / "store.sqlite")
    ranking = [Candidate(d, s, i) for i, (d, s) in enumerate(zip(example.profile, scores, strict=True))]
    slot = method.slot(Tally(), first=Bound(method.first, {}), store=store, **values)
    return slot([example], [Query(("x",))], [ranking])[0]


def expected(scores: list[float], moment: float, half_life: float, weight: float) -> dict[int, float]:
    z = (np.array(scores) - np.mean(scores)) / np.std(scores)
    dated = {i: 2 ** (-max(moment - t, 0) / DAY / half_life) for i, t in enumerate(TIMES) if t is not None}
    mean = sum(dated.values()) / len(dated)
    return {i: z[i] + weight * dated.get(i, mean) for i in range(len(TIMES))}


@pytest.mark.parametrize(
    ("time", "moment"), [(45 * DAY, 45 * DAY), (None, 40 * DAY), (math.inf, 40 * DAY), (30 * DAY, 30 * DAY)]
)
def test_scores_are_the_closed_form(tmp_path: Path, time: float | None, moment: float):
    """Ages count from the question, else from the newest document; later documents have the age 0."""
    scores = [3.0, 1.0, 2.0, 2.5]
    ranking = found(tmp_path, scores, time, select.RecencyPrior(half_life=7.5, weight=2.0))
    wanted = expected(scores, moment, 7.5, 2.0)
    assert [c.row for c in ranking] == sorted(wanted, key=lambda i: -wanted[i])
    np.testing.assert_allclose([c.score for c in ranking], [wanted[c.row] for c in ranking], rtol=1e-9)


def test_without_weight_the_order_is_the_selections_and_equal_scores_are_newest_first(tmp_path: Path):
    ranking = found(tmp_path, [1.0, 2.0, 4.0, 3.0], 50 * DAY, select.RecencyPrior(weight=0.0))
    assert [c.row for c in ranking] == [2, 3, 1, 0]
    (tmp_path / "equal").mkdir()
    ranking = found(tmp_path / "equal", [1.0] * 4, 50 * DAY, select.RecencyPrior(half_life=20.0))
    assert [c.row for c in ranking if c.row != 2] == [1, 3, 0]


def test_what_was_learned_is_used(tmp_path: Path):
    learned = Fit(5.0, 3.0, 0.1, 0.2, 7)
    method = select.RecencyPrior(half_life="learned", weight=9.0)
    scores = [3.0, 1.0, 2.0, 2.5]
    ranking = found(tmp_path, scores, 45 * DAY, method, fit=learned)
    wanted = expected(scores, 45 * DAY, 5.0, 3.0)
    np.testing.assert_allclose([c.score for c in ranking], [wanted[c.row] for c in ranking], rtol=1e-9)
    assert method.learns() == "needed"
    assert select.RecencyPrior().learns() == "unused"


def test_undated_documents_have_the_mean_prior():
    half = prior(np.array([0.0, 10.0, np.nan]), 10.0)
    np.testing.assert_allclose(half, [1, 0.5, 0.75])
    assert prior(np.full(2, np.nan), 10.0).tolist() == [0, 0]
    two = prior(np.array([0.0, np.nan, 5.0, 10.0, np.nan, np.nan]), 5.0, [2, 3, 1])
    np.testing.assert_allclose(two, [1, 1, 0.5, 0.25, 0.375, 0])


@pytest.mark.parametrize(("half_life", "weight"), [(3.0, 1.5), (60.0, 3.0)])
def test_a_planted_half_life_is_found_again(half_life: float, weight: float):
    """Each question's document is drawn by the softmax that the fit supposes."""
    draw, observed = np.random.default_rng(5), []
    for _ in range(800):
        count = int(draw.integers(4, 15))
        scores = standardised(draw.normal(size=count))
        age = draw.uniform(0, 4 * half_life, count)
        logits = 1.5 * (scores + weight * 2 ** (-age / half_life))
        share = np.exp(logits - logits.max())
        observed.append(Observed(scores, age, np.eye(count)[draw.choice(count, p=share / share.sum())]))
    got = fit(observed)
    assert got.half_life == pytest.approx(half_life, rel=0.3)
    assert got.weight == pytest.approx(weight, rel=0.2)
    assert got.loss < got.plain


def test_where_age_says_nothing_the_weight_is_small():
    draw, observed = np.random.default_rng(1), []
    for _ in range(1000):
        scores = standardised(draw.normal(size=8))
        share = np.exp(scores) / np.exp(scores).sum()
        observed.append(Observed(scores, draw.uniform(0, 100, 8), np.eye(8)[draw.choice(8, p=share)]))
    got = fit(observed)
    assert got.weight * np.ptp(prior(np.arange(100.0), got.half_life)) < 0.4
    assert got.plain - got.loss < 0.005


def test_the_loss_is_the_mean_cross_entropy_at_the_fit():
    draw = np.random.default_rng(2)
    observed = [
        Observed(standardised(draw.normal(size=n)), draw.uniform(0, 9, n), np.full(n, 1 / n))
        for n in (1, 3, 6)
    ]
    got = fit(observed)
    assert got.plain == pytest.approx(np.mean(np.log([1, 3, 6])), rel=1e-4)
    assert got.loss <= got.plain + 1e-9


def test_wrong_options_are_refused():
    with pytest.raises(UserError, match=r"select\.half_life is 0\.0, want at least"):
        select.RecencyPrior(half_life=0.0)
    with pytest.raises(UserError, match=r"select\.weight is -1"):
        select.RecencyPrior(weight=-1.0)


def test_a_half_life_planted_in_a_data_set_is_learned_from_its_relevant_documents(tmp_path: Path):
    """As the stage learns it: training questions with dates, their rankings on disk, an undated document."""
    draw, examples, rankings = np.random.default_rng(8), [], []
    for q in range(600):
        scores, age = draw.normal(size=9), draw.uniform(0, 80, 9)
        logits = standardised(scores) + 4 * 2 ** (-age / 20)
        chosen = draw.choice(9, p=np.exp(logits) / np.exp(logits).sum())
        own = tuple(
            Document(f"d{i}", f"u{q}", f"text {i}", time=None if i == 8 else (1000 - a) * DAY)
            for i, a in enumerate(age)
        )
        relevant = ((own[chosen].id,),)
        examples.append(Example(f"q{q}", f"u{q}", "x", "x", "t", own, time=1000 * DAY, relevant=relevant))
        rankings.append((f"q{q}", {"rows": [9 * q + i for i in range(9)], "scores": scores.tolist()}))
    build(tmp_path / "store.sqlite", examples)
    store = Store(tmp_path / "store.sqlite")
    Rankings.keep(tmp_path, iter(rankings))
    _make(tmp_path, Questions(), 0.0, store=store, ranked=Rankings(tmp_path))
    got = _load(tmp_path)
    assert got.questions == 600
    assert got.half_life == pytest.approx(20, rel=0.35)
    assert got.weight == pytest.approx(4, rel=0.35)
    empty = tmp_path / "empty"
    empty.mkdir()
    Rankings.keep(empty, iter(()))
    with pytest.raises(UserError, match="no training question says which documents it wants"):
        _make(tmp_path, Questions(stop=0), 0.0, store=store, ranked=Rankings(empty))


@pytest.mark.parametrize("relevant", [_relevant, lambda *asked: of_fusion(0, *asked)[1]])
def test_a_passage_is_relevant_where_its_document_is(relevant):
    parts = [Document(f"{of}[{i}:9]", "u", "", part_of=of, span=(i, 9)) for of in "ab" for i in (0, 3)]
    ranking = [Candidate(part, 0.0, row) for row, part in enumerate(parts)]
    asked = Example("q", "u", "x", "x", "t", relevant=(("b",),))
    np.testing.assert_array_equal(relevant(asked, ranking), [0, 0, 0.5, 0.5])

"""The recency prior against its closed form, and a planted half-life that the fit finds again."""

import math
from pathlib import Path

import numpy as np
import pytest

from pbr_jax.base.types import Candidate, Document, Example
from pbr_jax.corpus.store import Store, build
from pbr_jax.graph import Bound
from pbr_jax.methods import select
from pbr_jax.methods.select.behind import prior
from pbr_jax.pipeline import Query, Ranking, Tally

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


def test_undated_documents_have_the_mean_prior():
    half = prior(np.array([0.0, 10.0, np.nan]), 10.0)
    np.testing.assert_allclose(half, [1, 0.5, 0.75])
    assert prior(np.full(2, np.nan), 10.0).tolist() == [0, 0]
    assert prior(np.zeros(0), 5.0).tolist() == []

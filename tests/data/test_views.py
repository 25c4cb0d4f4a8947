"""Views of histories: what each kind keeps, and how often each is drawn."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbr_jax.base.types import UserError
from pbr_jax.data import views
from pbr_jax.data.views import Rates


def only(kind: str, rate: float) -> Rates:
    return Rates(**{name: rate if name == kind else None for name in Rates._fields})


@given(st.integers(0, 40), st.floats(0.01, 1), st.integers(0, 2**32))
def test_each_kind_keeps_what_it_says(length, rate, seed):
    size = int(length * rate)
    for kind in Rates._fields:
        found = views.view(length, only(kind, rate), np.random.default_rng(seed))
        assert len(found.places) == len(found.hidden)
        if length < 2:
            assert found.places.tolist() == list(range(length))
            assert not found.hidden.any()
        elif kind == "crop":
            assert len(found.places) == max(1, size)
            assert (np.diff(found.places) == 1).all()
            assert not found.hidden.any()
        elif kind == "mask":
            assert found.places.tolist() == list(range(length))
            assert found.hidden.sum() == size
        else:
            moved = np.flatnonzero(found.places != np.arange(length))
            assert sorted(found.places.tolist()) == list(range(length))
            assert len(moved) == 0 or moved[-1] - moved[0] < size
            assert not found.hidden.any()


def test_kinds_and_places_are_drawn_evenly():
    generator = np.random.default_rng(0)
    found = [views.view(10, Rates(), generator) for _ in range(6000)]
    crops = [v.places[0] for v in found if len(v.places) == 7]
    assert 1850 < len(crops) < 2150  # a third, within four standard deviations
    assert 1850 < sum(v.hidden.any() for v in found) < 2150
    assert all(400 < count < 600 for count in np.bincount(crops, minlength=4).tolist())
    hidden = np.sum([v.hidden for v in found if len(v.hidden) == 10], axis=0)
    assert all(500 < count < 700 for count in hidden.tolist())


def test_padding_keeps_the_latest_documents():
    histories = [np.array([5, 6, 7]), np.array([], int), np.array([9])]
    drawn = [views.View(np.array([1, 0]), np.array([False, True])), None, None]
    found = views.padded(histories, drawn, 2)
    assert found.rows.tolist() == [[7, 6], [0, 0], [9, 0]]
    assert found.mask.tolist() == [[True, True], [False, False], [True, False]]
    assert found.hidden.tolist() == [[False, True], [False, False], [False, False]]


@pytest.mark.parametrize(
    ("rates", "said"), [(Rates(None, None, None), "no kind of view"), (Rates(crop=0.0), "crop is 0.0")]
)
def test_rates_that_make_no_sense(rates, said):
    with pytest.raises(UserError, match=said):
        views.check(rates)

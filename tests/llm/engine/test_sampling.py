"""Sampling against the distribution it is to follow."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pbr_jax.llm.engine import sampling
from pbr_jax.llm.protocol import Sampling


def draws(logits, count, temperature=1.0, top_p=1.0):
    rows = np.broadcast_to(np.float32(logits), (count, len(logits)))
    choice, chances = sampling.arrays(frozenset(), Sampling(1, temperature, top_p, seed=7))
    choose = jax.jit(sampling.choose, static_argnames="choice")
    names, step = np.arange(count, dtype=np.uint32), np.full(count, 3, np.int32)
    chosen = choose(rows, step, names, chances, choice=choice)
    return np.bincount(np.asarray(chosen), minlength=len(logits))


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_sampled_frequencies_follow_the_distribution(temperature):
    logits, count = np.array([0.3, -1.0, 2.0, 0.0, 1.1]), 20_000
    probabilities = np.exp(logits / temperature) / np.exp(logits / temperature).sum()
    observed = draws(logits, count, temperature)
    statistic = ((observed - count * probabilities) ** 2 / (count * probabilities)).sum()
    assert statistic < 23.5  # chi-square with 4 degrees of freedom: exceeded once in 10,000


@pytest.mark.parametrize(("top_p", "kept"), [(0.39, [2]), (0.41, [2, 4]), (0.69, [2, 4]), (0.71, [0, 2, 4])])
def test_top_p_keeps_the_smallest_set_with_that_mass(top_p, kept):
    probabilities, count = np.array([0.2, 0.06, 0.4, 0.04, 0.3]), 20_000
    observed = draws(np.log(probabilities), count, top_p=top_p)
    assert np.flatnonzero(observed).tolist() == kept
    share = probabilities[kept] / probabilities[kept].sum()
    statistic = ((observed[kept] - count * share) ** 2 / (count * share)).sum()
    assert statistic < 19  # chi-square with at most 2 degrees of freedom: exceeded once in 10,000


# Subnormal numbers are 0 to XLA, and so as probable as 0.
@pytest.mark.long
@given(
    st.lists(st.floats(-80, 80, width=32, allow_subnormal=False), min_size=9, max_size=9),
    st.floats(0.01, 0.999),
)
@settings(max_examples=200, deadline=None)
def test_the_nucleus_is_what_sorting_gives(logits, top_p):
    """And all tokens that are as probable as the last of it."""
    row = np.asarray(logits, np.float32)
    kept = np.asarray(sampling.nucleus(jnp.asarray(row)[None], jnp.float32(top_p)))[0]
    p = np.exp(row.astype(np.float64) - row.max())
    p /= p.sum()
    order = np.argsort(-row, kind="stable")
    reached = np.cumsum(p[order])
    last = int(np.argmax(reached >= top_p - 1e-5)), int(np.argmax(reached >= min(top_p + 1e-5, reached[-1])))
    sets = [set(np.flatnonzero(row >= row[order[place]])) for place in last]
    assert sets[0] <= set(np.flatnonzero(kept)) <= sets[1]

"""Batches of rows; what is read is tested through the backend."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbr_jax.llm import reading


@given(st.lists(st.integers(1, 150), max_size=40), st.integers(1, 8))
def test_batches_hold_every_row_in_order_within_their_limits(lengths, rows):
    batches = list(reading._fill(range(len(lengths)), lengths, 100, rows))
    assert [member for batch in batches for member in batch] == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) <= rows
        assert sum(lengths[member] for member in batch) <= 100 or len(batch) == 1


def test_batches_are_alike():
    """Eleven rows of 20 tokens: three batches, not two full ones and a rest."""
    batches = list(reading._fill(range(11), [20] * 11, 100, 64))
    assert [len(batch) for batch in batches] == [4, 4, 3]


@pytest.mark.parametrize("floor", [1, 16, 64])
def test_buckets_hold_their_counts_and_are_few(floor):
    for buckets, most in ((reading.size, 1.5), (reading.bucket, 1.25)):
        found = [buckets(count, floor) for count in range(1, 4097)]
        assert all(value >= count for count, value in enumerate(found, start=1))
        assert all(v <= count * most or v - count < floor for count, v in enumerate(found, start=1))
        assert len(set(found)) <= 8 * 13
    assert reading.size(0) == 0

"""Batches of rows; what is read is tested through the backend."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pbr_jax.llm import reading


def agreed(paths: list[np.ndarray]) -> int:
    """How many entries lists begin with alike, the slow way."""
    columns = enumerate(zip(*map(list, paths)))
    return next((i for i, column in columns if len(set(column)) > 1), min(map(len, paths)))


@given(
    st.lists(st.tuples(st.integers(1, 150), st.lists(st.integers(0, 2), max_size=6)), max_size=40),
    st.integers(1, 8),
    st.integers(1, 400),
)
def test_batches_hold_every_row_in_order_within_their_limits(nodes, rows, slots):
    lengths, paths = [length for length, _ in nodes], [np.array(path, np.int32) for _, path in nodes]
    batches = list(reading._fill(range(len(nodes)), lengths, paths, 100, rows, slots))
    assert [member for batch in batches for member in batch] == list(range(len(nodes)))
    for batch in batches:
        assert len(batch) <= rows
        assert sum(lengths[member] for member in batch) <= 100 or len(batch) == 1
        own = [paths[member] for member in batch]
        assert reading._common(own) == agreed(own)
        wide = max(lengths[member] for member in batch) + max(map(len, own)) - agreed(own)
        assert len(batch) * wide <= slots or len(batch) == 1


@pytest.mark.parametrize("floor", [1, 16, 64])
def test_buckets_hold_their_counts_and_are_few(floor):
    for buckets, most in ((reading.size, 1.5), (reading.bucket, 1.25)):
        found = [buckets(count, floor) for count in range(1, 4097)]
        assert all(value >= count for count, value in enumerate(found, start=1))
        assert all(v <= count * most or v - count < floor for count, v in enumerate(found, start=1))
        assert len(set(found)) <= 8 * 13
    assert reading.size(0) == 0

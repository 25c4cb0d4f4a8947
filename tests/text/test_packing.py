"""Packing: every text once, whole, in a row that holds it, and little left empty."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pbr_jax.text.packing import PLACES, fill, multiple, pack, power_of_two, row_sizes

SIZES = [64, 128, 256]


@given(st.lists(st.integers(0, 256), max_size=60))
def test_every_text_stands_once_in_a_row_that_holds_it(lengths: list[int]) -> None:
    seen = []
    for size, rows in pack(lengths, SIZES):
        assert size in SIZES
        for row in rows:
            assert sum(lengths[text] for text in row) <= size
            assert 1 <= len(row) <= size // PLACES
            assert len(set(row)) == len(row)
            seen += row
    assert sorted(seen) == [text for text, length in enumerate(lengths) if length]


def test_texts_fill_the_smallest_gap() -> None:
    # 200 leaves 56, 100 leaves 28: 28 fits the second exactly, 50 the first, 64 opens its own row.
    packed = dict(pack([100, 28, 200, 50, 64], SIZES))
    assert packed == {256: [[2, 3]], 128: [[0, 1]], 64: [[4]]}


def test_mixed_lengths_leave_little_empty() -> None:
    lengths = np.random.default_rng(0).lognormal(4.2, 0.7, 2000).clip(5, 256).astype(int).tolist()
    used = sum(size * len(rows) for size, rows in pack(lengths, SIZES))
    assert sum(lengths) / used > 0.95
    longest_of_32 = sum(32 * max(lengths[i : i + 32]) for i in range(0, 2000, 32))  # batches as they come
    assert used < 0.6 * longest_of_32


def test_row_sizes() -> None:
    assert row_sizes(16) == [128]
    assert row_sizes(128) == [128]
    assert row_sizes(256) == [128, 256]
    assert row_sizes(300) == [128, 256, 384]
    assert row_sizes(512) == [128, 256, 512]


def test_rounding() -> None:
    assert [power_of_two(n) for n in (0, 1, 2, 3, 8, 9)] == [1, 1, 2, 4, 8, 16]
    assert [multiple(n, 8) for n in (1, 8, 9)] == [8, 8, 16]


def test_fill() -> None:
    tokens = [[7, 8], [], [1, 2, 3], [9]]
    batch = fill([[2, 0], [3]], tokens, (3, 6))
    assert batch.ids.tolist() == [[1, 2, 3, 7, 8, 0], [9, 0, 0, 0, 0, 0], [0] * 6]
    assert batch.segments.tolist() == [[1, 1, 1, 2, 2, 0], [1, 0, 0, 0, 0, 0], [0] * 6]
    assert batch.positions.tolist() == [[0, 1, 2, 0, 1, 0], [0] * 6, [0] * 6]
    assert (batch.texts.tolist(), batch.rows.tolist(), batch.places.tolist()) == (
        [2, 0, 3],
        [0, 0, 1],
        [0, 1, 0],
    )

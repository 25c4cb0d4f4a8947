"""Padding: few lengths, little of them empty."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from pbr_jax.text.padding import multiple, power_of_two, row_sizes


def test_row_sizes() -> None:
    assert row_sizes(9) == [16]
    assert row_sizes(128) == [16, 32, 48, 64, 96, 128]
    assert row_sizes(300) == [16, 32, 48, 64, 96, 128, 192, 256, 304]


@given(st.integers(1, 2048))
def test_a_row_holds_the_longest_text_and_is_a_third_empty_at_most(longest: int) -> None:
    sizes = row_sizes(longest)
    assert sizes[-2:-1] < [longest] <= sizes[-1:]
    assert all(b - a <= 16 or b <= 1.5 * a for a, b in itertools.pairwise(sizes))
    assert all(size % 16 == 0 for size in sizes)


def test_rounding() -> None:
    assert [power_of_two(n) for n in (0, 1, 2, 3, 8, 9)] == [1, 1, 2, 4, 8, 16]
    assert [multiple(n, 8) for n in (1, 8, 9)] == [8, 8, 16]

"""Packing: texts of any length into rows of few fixed sizes, several texts a row.

Padding is what makes encoding slow. A text opens a row of the smallest size that holds it, or fills
a gap that another left; few sizes mean few compiled programs.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

SMALLEST_ROW = 128  # tokens; shorter rows save little attention and leave more of last batches empty
PLACES = 4  # a row of L tokens holds at most L / PLACES texts
_BATCH_TOKENS = {"cpu": 2048}  # of a padded batch; elsewhere:
_MANY_TOKENS = 65_536
_PLACES = 16  # a padded row has a multiple of it


def row_sizes(max_length: int) -> list[int]:
    """Tokens of the rows that texts of up to `max_length` tokens are packed into, ascending."""
    sizes = [SMALLEST_ROW]
    while sizes[-1] < max_length:
        sizes.append(min(2 * sizes[-1], multiple(max_length, SMALLEST_ROW)))
    return sizes


def multiple(n: int, of: int) -> int:
    """The smallest multiple of `of` that is at least `n`."""
    return -(-n // of) * of


def power_of_two(n: int) -> int:
    return 1 << (max(n, 1) - 1).bit_length()


def pack(lengths: Sequence[int], sizes: Sequence[int]) -> list[tuple[int, list[list[int]]]]:
    """Best-fit decreasing bin packing of texts into rows.

    Longest first, a text goes into the smallest gap that holds it, else it opens a row of the smallest
    size that does. Texts without tokens are left out.

    Args:
      lengths: tokens of each text, at most `sizes[-1]`.
      sizes: tokens of the rows, ascending.

    Returns:
      For each size in use, its rows; a row lists the numbers of its texts.
    """
    opened: dict[int, list[list[int]]] = {size: [] for size in sizes}
    gaps: dict[int, list[tuple[int, list[int]]]] = {}  # free tokens -> rows with that gap, and their size
    free: list[int] = []  # the gaps that exist, ascending
    for text in sorted((i for i, n in enumerate(lengths) if n), key=lambda i: -lengths[i]):
        length = lengths[text]
        place = bisect_left(free, length)
        if place < len(free):
            gap = free[place]
            size, row = gaps[gap].pop()
            if not gaps[gap]:
                del gaps[gap], free[place]
        else:
            gap = size = sizes[bisect_left(sizes, length)]
            row = []
            opened[size].append(row)
        row.append(text)
        if len(row) < size // PLACES and gap > length:
            if gap - length not in gaps:
                insort(free, gap - length)
            gaps.setdefault(gap - length, []).append((size, row))
    return [(size, rows) for size, rows in opened.items() if rows]


def padded_batches(
    lengths: Sequence[int], platform: str, *, widest: int, narrowest: int = 1, devices: int = 1
) -> Iterator[tuple[np.ndarray, tuple[int, int]]]:
    """Texts of like length together, longest first, for what is padded and not packed.

    Args:
      lengths: tokens of each text.
      platform: that computes; a CPU likes small batches.
      widest, narrowest: no row has more or fewer places.
      devices: that a batch's rows are spread over evenly.

    Yields:
      The texts' numbers, and rows and places of their batch: few shapes, so that few programs are compiled.
    """
    tokens = _BATCH_TOKENS.get(platform, _MANY_TOKENS)
    order = np.argsort(lengths, kind="stable")
    end = len(order)
    while end > 0:
        width = min(max(narrowest, multiple(lengths[order[end - 1]], _PLACES)), widest)
        height = multiple(min(power_of_two(end), max(1, tokens // width)), devices)
        yield order[max(0, end - height) : end], (height, width)
        end -= height


class Batch(NamedTuple):
    """Packed rows, and where each text's embedding will stand: `vectors[rows, places]`."""

    ids: np.ndarray  # [b t], 0 on padding
    segments: np.ndarray  # [b t], 1, 2, ... for the texts of a row, 0 on padding
    positions: np.ndarray  # [b t], from 0 in each text
    texts: np.ndarray  # [n], numbers of the texts
    rows: np.ndarray  # [n]
    places: np.ndarray  # [n]


def fill(rows: Sequence[Sequence[int]], tokens: Sequence[Sequence[int]], shape: tuple[int, int]) -> Batch:
    """The batch of some packed rows; rows beyond those given are padding."""
    ids, segments, positions = (np.zeros(shape, np.int32) for _ in range(3))
    where = []
    for row, texts in enumerate(rows):
        start = 0
        for place, text in enumerate(texts):
            end = start + len(tokens[text])
            ids[row, start:end] = tokens[text]
            segments[row, start:end] = place + 1
            positions[row, start:end] = np.arange(end - start)
            where.append((text, row, place))
            start = end
    return Batch(ids, segments, positions, *np.array(where, int).reshape(-1, 3).T)

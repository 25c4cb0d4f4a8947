"""Texts, and (query, document) pairs, as padded rows of few lengths, so that few programs are compiled."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

_BATCH_TOKENS = {"cpu": 2048}  # of a padded batch; elsewhere:
_MANY_TOKENS = 65_536
_PLACES = 16  # a padded row has a multiple of it


def row_sizes(max_length: int) -> list[int]:
    """Tokens of the rows that texts of up to `max_length` tokens are padded to, ascending."""
    sizes = [_PLACES]
    while sizes[-1] < max_length:
        step = max(_PLACES, power_of_two(sizes[-1] + 1) // 4)  # at most a third is padding
        sizes.append(min(sizes[-1] + step, multiple(max_length, _PLACES)))
    return sizes


def multiple(n: int, of: int) -> int:
    """The smallest multiple of `of` that is at least `n`."""
    return -(-n // of) * of


def power_of_two(n: int) -> int:
    return 1 << (max(n, 1) - 1).bit_length()


def padded_batches(
    lengths: Sequence[int], platform: str, *, widest: int, narrowest: int = 1, devices: int = 1
) -> Iterator[tuple[np.ndarray, tuple[int, int]]]:
    """Texts of like length together, longest first, each batch as wide as its longest.

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


def padded(
    rows: Sequence[Any], shape: tuple[int, ...], dtype: Any = np.int32
) -> tuple[np.ndarray, np.ndarray]:
    """Rows as one array of a shape [n t ...], with zeros on the right; and where there is something, bool
    [n t]."""
    values, mask = np.zeros(shape, dtype), np.zeros(shape[:2], bool)
    for place, row in enumerate(rows):
        values[place, : len(row)], mask[place, : len(row)] = row, True
    return values, mask


class Pairs(NamedTuple):
    """Tokens of (query, document) pairs, padded on the right."""

    ids: np.ndarray  # int32 [b t]
    mask: np.ndarray  # bool [b t]
    types: np.ndarray | None  # int32 [b t]; None for a body with one type


def pair_arrays(tokens: Sequence[tuple[list[int], list[int]]], width: int, types: bool) -> Pairs:
    """Tokenized pairs as arrays of a width."""
    shape = len(tokens), width
    ids, mask = padded([ids for ids, _ in tokens], shape)
    return Pairs(ids, mask, padded([kinds for _, kinds in tokens], shape)[0] if types else None)

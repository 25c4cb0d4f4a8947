"""(query, document) pairs as arrays: what cross-encoders read."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Pairs(NamedTuple):
    """Tokens of (query, document) pairs, padded on the right."""

    ids: np.ndarray  # int32 [b t]
    mask: np.ndarray  # bool [b t]
    types: np.ndarray | None  # int32 [b t]; None for a body with one type


def pair_arrays(tokens: Sequence[tuple[list[int], list[int]]], width: int, types: bool) -> Pairs:
    """Tokenized pairs as arrays of a width."""
    arrays = np.zeros((2, len(tokens), width), np.int32)
    mask = np.zeros((len(tokens), width), bool)
    for row, (ids, kinds) in enumerate(tokens):
        arrays[0, row, : len(ids)], arrays[1, row, : len(ids)] = ids, kinds
        mask[row, : len(ids)] = True
    return Pairs(arrays[0], mask, arrays[1] if types else None)

"""Random views of a user's history, for contrastive learning without labels.

Shi et al., "Retrieval Augmented Generation with Collaborative Filtering for Personalized Text
Generation" (CFRAG), https://arxiv.org/abs/2504.05731, 2025, section 4.1.2.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pbr_jax.base.types import UserError


class Rates(NamedTuple):
    """The share of a history that each kind of view keeps or changes. None: no views of this kind."""

    crop: float | None = 0.7  # kept, in one piece
    mask: float | None = 0.3  # hidden
    reorder: float | None = 0.3  # shuffled, in one piece

    @property
    def kinds(self) -> list[str]:
        return [name for name, rate in self._asdict().items() if rate is not None]


class View(NamedTuple):
    """Indices into the history in the order of the view, and which of them are masked."""

    places: np.ndarray  # int [n]
    hidden: np.ndarray  # bool [n]


def view(length: int, rates: Rates, generator: np.random.Generator) -> View:
    """Draws one view of a history of `length` documents. Its kind is drawn uniformly.

    Numbers of documents are rounded down. So the history is unchanged if it has a single document, or if a
    mask or a reordering would affect less than one document. A crop keeps at least one document.
    """
    places, hidden = np.arange(length), np.zeros(length, bool)
    kind = rates.kinds[generator.integers(len(rates.kinds))]
    if length < 2:
        return View(places, hidden)
    size = int(length * getattr(rates, kind))
    if kind == "crop":
        size = max(size, 1)
        start = generator.integers(length - size + 1)
        return View(places[start : start + size], hidden[:size])
    if kind == "mask":
        hidden[generator.permutation(length)[:size]] = True
        return View(places, hidden)
    start = generator.integers(length - size + 1)
    places[start : start + size] = generator.permutation(places[start : start + size])
    return View(places, hidden)


def check(rates: Rates) -> None:
    """Raises UserError unless there is at least one kind of view, and all shares are in (0, 1]."""
    if not rates.kinds:
        raise UserError("no kind of view is left; give at least one of crop, mask and reorder a share")
    for name, rate in rates._asdict().items():
        if rate is not None and not 0 < rate <= 1:
            raise UserError(f"{name} is {rate}, want a share above 0 and at most 1, or none")


class Histories(NamedTuple):
    """Histories as rows of an embedding matrix, padded on the right, with their masks."""

    rows: np.ndarray  # int [b n]; 0 where there is no document
    mask: np.ndarray  # bool [b n], True on documents
    hidden: np.ndarray  # bool [b n]


def padded(histories: Sequence[np.ndarray], views: Sequence[View | None], width: int) -> Histories:
    """Pads histories (rows, oldest first) to `width`, or keeps the latest documents. View None: all."""
    rows = np.zeros((len(histories), width), np.int64)
    mask, hidden = np.zeros(rows.shape, bool), np.zeros(rows.shape, bool)
    for place, (history, seen) in enumerate(zip(histories, views, strict=True)):
        latest = history[-width:]
        if seen is not None:
            hidden[place, : len(seen.places)] = seen.hidden
            latest = latest[seen.places]
        rows[place, : len(latest)] = latest
        mask[place, : len(latest)] = True
    return Histories(rows, mask, hidden)

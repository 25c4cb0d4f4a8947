"""Gains over the reference by how many documents the user had when asking."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from pbr_jax.eval.cards import gains
from pbr_jax.eval.metrics import plain_mean
from pbr_jax.eval.page.comparison import Comparison
from pbr_jax.eval.significance import Column, Difference, estimates
from pbr_jax.eval.values import confidence_of

_GROUPS = 4  # of about one size
_LEAST = 10  # questions of a group


class Group(NamedTuple):
    """Questions of users with `low` to `high` documents, and each row's gain there by its label."""

    low: int
    high: int
    questions: int
    clusters: int
    gains: dict[str, Difference]


def by_history(found: Comparison) -> list[Group]:
    """Groups of questions by the length of the user's history, each with the rows' gains in the main measure.

    Empty where histories are not recorded or are all of one length, and where fewer than two groups have ten
    questions. Rows of several seeds are shown by their first.
    """
    reference = found.section.reference.first
    records = reference.records or {}
    lengths = {id: one.history for id, one in records.items() if one.history is not None}
    edges = _edges(list(lengths.values()))
    rows = {gain.row.label: gains(gain.row.first, reference, found.measure) for gain in found.main}
    groups = []
    for low, high in pairwise(edges):
        ids = sorted(id for id, length in lengths.items() if low <= length < high)
        if len(ids) >= _LEAST:
            members = [lengths[id] for id in ids]
            clusters = {records[id].cluster for id in ids}
            there = {label: gain for label, own in rows.items() if (gain := _gain(found, own, ids))}
            groups.append(Group(min(members), max(members), len(ids), len(clusters), there))
    return groups if len(groups) > 1 else []


def _edges(lengths: Sequence[int]) -> list[float]:
    """Ascending ends of groups, each but the last outside of its own group."""
    if not lengths:
        return []
    quantiles = np.quantile(lengths, np.linspace(0, 1, _GROUPS + 1)[1:-1], method="higher")
    return [float(edge) for edge in np.unique([min(lengths), *quantiles, max(lengths) + 1])]


def _gain(found: Comparison, own: dict[str, float], ids: Sequence[str]) -> Difference | None:
    """The mean gain over these questions, where the row has one of all of them."""
    if any(id not in own for id in ids):
        return None
    records = found.section.reference.first.records or {}
    column = Column(plain_mean, [np.array([[own[id]] for id in ids])])
    clusters = [records[id].cluster for id in ids]
    return estimates([column], clusters, confidence=confidence_of(found.section.reference.first))[0]

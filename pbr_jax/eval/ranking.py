"""Ranking metrics, with groups of interchangeable relevant documents.

The ground truth has one group of documents for each fact that the answer needs, and every document of a group
contains this fact. If each group has a single document, these are the usual metrics.

>>> ranking_metric("ndcg@3", ["x", "a", "y"], [["a"]])  # 1 / log2(3)
0.6309297535714575
>>> ranking_metric("ndcg_longmemeval@3", ["x", "a", "y"], [["a"]])  # rank 2 is not discounted
1.0
"""

import math
from collections.abc import Callable, Sequence
from itertools import product

from pbr_jax.base.types import UserError
from pbr_jax.tasks.scoring import MOST_COMBINATIONS

Groups = Sequence[Sequence[str]]


def ranking_metric(name: str, ranking: Sequence[str], groups: Groups) -> float:
    """The metric with this name, such as `recall@5`, of one ranking (document ids, best first). In [0, 1].

    A document that occurs twice counts at its first rank only. Raises UserError if no document is relevant,
    since the metric is then undefined.
    """
    family, k = parse(name)
    return _FAMILIES[family](list(dict.fromkeys(ranking)), groups, k)


def is_ranking_metric(name: str) -> bool:
    """Whether the name is that of a ranking metric, such as `recall@5`."""
    return "@" in name


def parse(name: str) -> tuple[str, int]:
    """`"recall@5" -> ("recall", 5)`."""
    family, _, k = name.partition("@")
    if family not in _FAMILIES or not k.isdecimal() or int(k) < 1:
        raise UserError(
            f"no ranking metric is named {name!r}; there are {', '.join(_FAMILIES)}, each with @k"
        )
    return family, int(k)


def combinations(groups: Groups) -> set[frozenset[str]]:
    """All sets with one document of each group.

    They are enumerated even for disjoint groups, since benchmarks have at most eight. Raises UserError if
    there are more than 10,000.
    """
    if not groups or not all(groups):
        raise UserError(
            "the ground truth has no relevant document or an empty group; mark the question unscored"
        )
    count = math.prod(len(group) for group in groups)
    if count > MOST_COMBINATIONS:
        raise UserError(
            f"the ground truth has {count} combinations of alternative documents, at most "
            f"{MOST_COMBINATIONS} can be scored; merge alternatives or split the question"
        )
    return {frozenset(choice) for choice in product(*groups)}


def recall(ranking: Sequence[str], groups: Groups, k: int) -> float:
    """Share of the needed documents in the top k, for the best choice of alternatives."""
    top = set(ranking[:k])
    return max(len(top & chosen) / len(chosen) for chosen in combinations(groups))


def recall_any(ranking: Sequence[str], groups: Groups, k: int) -> float:
    """1.0 if the top k contain a relevant document, otherwise 0.0."""
    return float(any(top_hit for top_hit in _groups_hit(ranking, groups, k)))


def recall_all(ranking: Sequence[str], groups: Groups, k: int) -> float:
    """1.0 if the top k contain a document of every group, otherwise 0.0."""
    return float(all(_groups_hit(ranking, groups, k)))


def ndcg(ranking: Sequence[str], groups: Groups, k: int) -> float:
    """Binary NDCG with the weight 1 / log2(i + 1) at rank i, from 1, for the best choice of alternatives.

    The choice may differ from that of recall, as in PersonaBench's scorer.

    Järvelin and Kekäläinen, "Cumulated gain-based evaluation of IR techniques",
    https://doi.org/10.1145/582415.582418, 2002.
    """
    return _ndcg(ranking, groups, k, lambda rank: 1 / math.log2(rank + 1))


def ndcg_longmemeval(ranking: Sequence[str], groups: Groups, k: int) -> float:
    """NDCG as in LongMemEval's scorer: the weight is 1 at rank 1, and 1 / log2(i) at rank i >= 2.

    So rank 2 is not discounted, and values are higher than those of `ndcg`.
    """
    return _ndcg(ranking, groups, k, lambda rank: 1.0 if rank == 1 else 1 / math.log2(rank))


def _groups_hit(ranking: Sequence[str], groups: Groups, k: int) -> list[bool]:
    combinations(groups)  # the same checks of the ground truth as everywhere
    top = set(ranking[:k])
    return [not top.isdisjoint(group) for group in groups]


def _ndcg(ranking: Sequence[str], groups: Groups, k: int, weight: Callable[[int], float]) -> float:
    gains = {document: weight(rank) for rank, document in enumerate(ranking[:k], 1)}

    def value(chosen: frozenset[str]) -> float:
        ideal = math.fsum(weight(rank) for rank in range(1, min(len(chosen), k) + 1))
        return math.fsum(gains.get(document, 0.0) for document in chosen) / ideal

    return max(map(value, combinations(groups)))


_FAMILIES: dict[str, Callable[[Sequence[str], Groups, int], float]] = {
    "recall": recall,
    "ndcg": ndcg,
    "recall_any": recall_any,
    "recall_all": recall_all,
    "ndcg_longmemeval": ndcg_longmemeval,
}

"""Candidates in the order of new scores: what most selections share, and the share of the own history."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pbr_jax.options import Select
from pbr_jax.pipeline import Examples, Query, Ranking, SelectSlot
from pbr_jax.types import UserError

Score = Callable[[Examples, Sequence[Query], Sequence[Ranking]], list[np.ndarray]]
"""New scores [r] of each example's candidates."""


@dataclass(frozen=True, kw_only=True)
class ByScore(Select):
    """The base of selections that score each candidate; `by_score` makes their callable."""

    own: int | None = None  # of the k from the own history, the rest from others' (CFRAG Figure 7)

    def check(self) -> None:
        super().check()
        self.at_least("own", 0)
        if self.own is not None and (self.k is None or self.own > self.k):
            raise UserError(f"select.own is {self.own} and select.k {self.k}, want own at most k")


def by_score(options: ByScore, score: Score) -> SelectSlot:
    """All candidates, best first; equal scores keep the retriever's order."""
    own, k = options.own, options.k

    def select(examples: Examples, queries: Sequence[Query], rankings: Sequence[Ranking]) -> list[Ranking]:
        chosen = []
        scores = score(examples, queries, rankings)
        for example, ranking, values in zip(examples, rankings, scores, strict=True):
            best = [
                dataclasses.replace(ranking[i], score=float(values[i]))
                for i in np.argsort(-values, kind="stable")
            ]
            if own is not None and k is not None:
                best = _divided(best, example.user_id, own, k)
            chosen.append(best)
        return chosen

    return select


def _divided(ranking: Ranking, user: str, own: int, k: int) -> Ranking:
    """The same candidates, `own` of the first `k` from the user's own history where there are as many.

    What one side lacks the other fills. The first k and the rest are each by score.
    """
    mine = [i for i, c in enumerate(ranking) if c.document.user_id == user]
    others = [i for i, c in enumerate(ranking) if c.document.user_id != user]
    first = [*mine[:own], *others[: k - own]]
    first += [*others[k - own :], *mine[own:]][: k - len(first)] if len(first) < k else []
    kept = set(first)
    return [ranking[i] for i in sorted(kept)] + [c for i, c in enumerate(ranking) if i not in kept]

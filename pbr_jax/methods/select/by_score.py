"""Candidates in the order of new scores: what most selections share, and the share of the own history."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pbr_jax.base.types import UserError
from pbr_jax.graph import Node, builds_nodes
from pbr_jax.methods.select import backfill as backfill
from pbr_jax.methods.select.backfill import Curve
from pbr_jax.options import Select, TrainingSplit
from pbr_jax.pipeline import Examples, Query, Ranking, SelectSlot
from pbr_jax.stages.run import Run

ScoreFn = Callable[[Examples, Sequence[Query], Sequence[Ranking]], list[np.ndarray]]
"""New scores [r] of each example's candidates."""


@dataclass(frozen=True, kw_only=True)
class ByScore(Select):
    """The base of selections that score each candidate; `by_score` makes their callable."""

    # number of the k documents that come from the user's own history; the others come from other users (CFRAG
    # Figure 7). auto: own documents first, then other users' in the remaining positions if that raised the
    # likelihood of training users' answers. None: by score alone
    own: int | Literal["auto"] | None = None

    def check(self) -> None:
        super().check()
        if self.own == "auto":
            if self.k is None:
                raise UserError("select.own is auto and select.k none; say how many places the prompt has")
            return
        self.at_least("own", 0)
        if self.own is not None and (self.k is None or self.own > self.k):
            raise UserError(f"select.own is {self.own} and select.k {self.k}, want own at most k")

    def learns(self) -> TrainingSplit:
        return "needed" if self.own == "auto" else super().learns()

    @builds_nodes
    def sharing(self, run: Run) -> Mapping[str, Node]:
        """What `by_score` needs beside scores: `backfill_gains`, where `own` is auto."""
        if self.own != "auto":
            return {}
        return {"backfill_gains": backfill.curve(run, dataclasses.replace(self, own=None), self.k)}


def best_first(rankings: Sequence[Ranking]) -> list[Ranking]:
    """Candidates by the retriever's score, whosever they are; retrievers give each user's in turn."""
    return [sorted(ranking, key=lambda candidate: -candidate.score) for ranking in rankings]


def by_score(options: ByScore, score: ScoreFn, backfill_gains: Curve | None = None) -> SelectSlot:
    """All candidates, best first; equal scores keep the retriever's order.

    With `own` auto, others' are left out where they do not help (`backfill_gains`) or are not needed.
    """
    own, k = options.own, options.k

    def select(examples: Examples, queries: Sequence[Query], rankings: Sequence[Ranking]) -> list[Ranking]:
        chosen = []
        scores = score(examples, queries, rankings)
        for example, ranking, values in zip(examples, rankings, scores, strict=True):
            best = [
                dataclasses.replace(ranking[i], score=float(values[i]))
                for i in np.argsort(-values, kind="stable")
            ]
            if own == "auto" and k is not None:
                best = _filled(best, example.user_id, k, backfill_gains or [])
            elif isinstance(own, int) and k is not None:
                best = _divided(best, example.user_id, own, k)
            chosen.append(best)
        return chosen

    return select


def _filled(ranking: Ranking, user: str, k: int, backfill_gains: Curve) -> Ranking:
    """The own candidates, and with them as many others' as have free places of the k, where those help."""
    own = [c for c in ranking if c.document.user_id == user]
    if len(own) >= k or not backfill_gains[len(own)].helps:
        return own
    return _divided(ranking, user, k, k)


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

"""Slot 4: the ordered documents that enter the prompt."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from pbr_jax.config import Config
from pbr_jax.pipeline.pipeline import Examples, Query, Ranking, Resources, Select
from pbr_jax.text.bm25 import BM25

Score = Callable[[Examples, Sequence[Query], Sequence[Ranking]], list[np.ndarray]]
"""New scores [r] of each example's candidates."""


def top_k(config: Config, resources: Resources) -> Select:
    """Candidates by the retriever's score, best first; equal scores keep its order."""

    def score(examples: Examples, queries: Sequence[Query], rankings: Sequence[Ranking]) -> list[np.ndarray]:
        return [np.array([candidate.score for candidate in ranking]) for ranking in rankings]

    return _by_score(config, score)


def bm25(config: Config, resources: Resources) -> Select:
    """BM25 with statistics of the example's candidates (CFRAG Figure 6)."""

    def score(examples: Examples, queries: Sequence[Query], rankings: Sequence[Ranking]) -> list[np.ndarray]:
        o = config.retrieve
        found = []
        for query, ranking in zip(queries, rankings, strict=True):
            texts = [candidate.document.text for candidate in ranking]
            index = BM25(texts, k1=o.k1, b=o.b, epsilon=o.epsilon, tokenizer=o.tokenizer)
            found.append(index.scores(" ".join(query.texts)))
        return found

    return _by_score(config, score)


def cross_encoder(config: Config, resources: Resources) -> Select:
    """A cross-encoder's score of query and document: tuned (CFRAG Eq. 10), or as pretrained."""
    reranker = resources.reranker
    if reranker is None:
        raise ValueError("reranking needs a cross-encoder; none was given")

    def score(examples: Examples, queries: Sequence[Query], rankings: Sequence[Ranking]) -> list[np.ndarray]:
        pairs = [
            [(" ".join(query.texts), candidate.document.text) for candidate in ranking]
            for query, ranking in zip(queries, rankings, strict=True)
        ]
        return reranker.scores(examples, pairs)

    return _by_score(config, score)


def _by_score(config: Config, score: Score) -> Select:
    own, k = config.select.own, config.select.k

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


METHODS = {"top_k": top_k, "bm25": bm25, "cross_encoder": cross_encoder, "tuned": cross_encoder}

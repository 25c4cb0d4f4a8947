"""Slot 4: the ordered documents that enter the prompt."""

from collections.abc import Sequence

from pbr_jax.config import Config
from pbr_jax.pipeline.pipeline import Examples, Query, Ranking, Resources, Select


def top_k(config: Config, resources: Resources) -> Select:
    """Candidates by score, best first; equal scores keep the retriever's order."""

    def select(examples: Examples, queries: Sequence[Query], rankings: Sequence[Ranking]) -> list[Ranking]:
        return [sorted(ranking, key=lambda candidate: -candidate.score) for ranking in rankings]

    return select


METHODS = {"top_k": top_k}

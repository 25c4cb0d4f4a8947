"""Candidates by how probable the language model finds the query after them.

Sachan et al., "Improving Passage Retrieval with Zero-Shot Question Generation" (UPR), 2022,
https://arxiv.org/abs/2204.07496, Eq. 3: the mean of log p over the query's tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pbr_jax.graph import Node, builds_nodes
from pbr_jax.llm import LLM
from pbr_jax.methods.select.backfill import Curve
from pbr_jax.methods.select.by_score import by_score
from pbr_jax.methods.select.judging import Judging, text_of
from pbr_jax.pipeline import Examples, Query, Ranking, SelectSlot, Tally
from pbr_jax.stages.run import Run
from pbr_jax.tasks import Wording


@dataclass(frozen=True, kw_only=True)
class QueryLikelihood(Judging):
    """Candidates by log p(query | candidate), in nats per token."""

    method: Literal["query_likelihood"] = "query_likelihood"

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        self.model(run).check_scoring("select.method query_likelihood")
        return super().needs(run)

    def slot(
        self, tally: Tally, *, llm: LLM, wording: Wording, backfill_gains: Curve | None = None
    ) -> SelectSlot:
        judge = self.reward_fn(llm, wording, tally)

        def score(
            examples: Examples, queries: Sequence[Query], rankings: Sequence[Ranking]
        ) -> list[np.ndarray]:
            pairs = [
                judge.write.asks_for(text_of(query), candidate.document)
                for query, ranking in zip(queries, rankings, strict=True)
                for candidate in ranking
            ]
            ids = [example.id for example, ranking in zip(examples, rankings, strict=True) for _ in ranking]
            with judge.asking(ids):
                scores = llm.score([prompt for prompt, _ in pairs], [query for _, query in pairs])
            judge.counted([prompt for prompt, _ in pairs], sum(score.tokens for score in scores))
            found = iter(scores)
            return [np.array([next(found).mean for _ in ranking]) for ranking in rankings]

        return by_score(self, score, backfill_gains)

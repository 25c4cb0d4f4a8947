"""Candidates by whether the language model says that they help, each judged alone.

The answer is scored, not decoded, so it is graded: Nogueira et al., "Document Ranking with a Pretrained
Sequence-to-Sequence Model" (MonoT5), 2020, https://arxiv.org/abs/2003.06713, with a frozen model.
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
from pbr_jax.text.judging import NO, YES


@dataclass(frozen=True, kw_only=True)
class Pointwise(Judging):
    """Candidates by log p(yes) - log p(no), in nats, when the language model is asked whether each is
    relevant to the query."""

    method: Literal["pointwise"] = "pointwise"

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        self.model(run).check_scoring("select.method pointwise")
        return super().needs(run)

    def slot(
        self, tally: Tally, *, llm: LLM, wording: Wording, backfill_gains: Curve | None = None
    ) -> SelectSlot:
        judge = self.reward_fn(llm, wording, tally)

        def score(
            examples: Examples, queries: Sequence[Query], rankings: Sequence[Ranking]
        ) -> list[np.ndarray]:
            prompts = [
                judge.write.is_relevant(text_of(query), candidate.document)
                for query, ranking in zip(queries, rankings, strict=True)
                for candidate in ranking
            ]
            owners = [
                example.id for example, ranking in zip(examples, rankings, strict=True) for _ in ranking
            ]
            with judge.asking(owner for owner in owners for _ in (YES, NO)):
                scores = llm.score([p for p in prompts for _ in (YES, NO)], [YES, NO] * len(prompts))
            judge.counted(prompts, sum(score.tokens for score in scores))
            odds = iter(yes.total - no.total for yes, no in zip(scores[::2], scores[1::2], strict=True))
            return [np.array([next(odds) for _ in ranking]) for ranking in rankings]

        return by_score(self, score, backfill_gains)

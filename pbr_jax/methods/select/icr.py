"""Candidates by how much the query's tokens attend to them, with nothing generated.

Chen et al., "Attention in Large Language Models Yields Efficient Zero-Shot Re-Rankers" (in-context
re-ranking), 2024, https://arxiv.org/abs/2410.02642: the attention of the query's tokens to each token of each
candidate, summed over all layers and heads, less that of a query that asks for nothing; tokens of which far
less is left than of the others of their candidate do not count. Two prompts, which share all but their end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pbr_jax.graph import Node, builds_nodes
from pbr_jax.llm.protocol import TokenLevel, Watch
from pbr_jax.methods.select.backfill import Curve
from pbr_jax.methods.select.by_score import by_score
from pbr_jax.methods.select.judging import Judging, text_of
from pbr_jax.pipeline import Examples, Query, Ranking, SelectSlot, Tally
from pbr_jax.stages import language_model
from pbr_jax.stages.run import Run
from pbr_jax.tasks import Wording


@dataclass(frozen=True, kw_only=True)
class ICR(Judging):
    """In-context re-ranking. All candidates are in one prompt, and attention to their tokens gives their
    scores."""

    method: Literal["icr"] = "icr"
    # tokens whose attention counts. query: those of the query; rest: all tokens after the candidates, nearly
    # as in the released code
    asking: Literal["query", "rest"] = "query"
    # position of the retriever's best candidate in the prompt. last: as in the released code
    best: Literal["last", "first"] = "last"
    calibrated: bool = True  # whether the attention of a content-free query is subtracted

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        language_model.check_tokens(self.model(run), "select.method icr")
        return super().needs(run)

    def slot(
        self, tally: Tally, *, llm: TokenLevel, wording: Wording, backfill_gains: Curve | None = None
    ) -> SelectSlot:
        judge = self.reward_fn(llm, wording, tally)

        def watches(query: str, ranking: Ranking) -> list[Watch]:
            documents = [candidate.document for candidate in ranking]
            found = []
            for blank in (False, True)[: self._prompts]:
                messages, spans, where = judge.write.looked_at(query, documents, blank)
                if self.asking == "rest":
                    where = (spans[-1][1], where[1])
                found.append(Watch(messages, tuple(spans), where, self.asking == "rest"))
            return found

        def score(
            examples: Examples, queries: Sequence[Query], rankings: Sequence[Ranking]
        ) -> list[np.ndarray]:
            turned = [ranking[::-1] if self.best == "last" else ranking for ranking in rankings]
            # Where nothing is asked nothing attends, and the retriever's order stays.
            many = [i for i, ranking in enumerate(turned) if len(ranking) > 1 and text_of(queries[i])]
            asked = [watch for i in many for watch in watches(text_of(queries[i]), turned[i])]
            with judge.asking(examples[i].id for i in many for _ in range(self._prompts)):
                found = iter(llm.attention(asked))
            judge.counted([watch.messages for watch in asked])
            scores = [np.zeros(len(ranking)) for ranking in turned]
            for i in many:
                scores[i] = calibrated(*(next(found) for _ in range(self._prompts)))
            return [values[::-1] if self.best == "last" else values for values in scores]

        return by_score(self, score, backfill_gains)

    @property
    def _prompts(self) -> int:
        return 2 if self.calibrated else 1


def calibrated(
    asked: Sequence[Sequence[float]], nothing: Sequence[Sequence[float]] | None = None
) -> np.ndarray:
    """The score of each candidate from the attention to its tokens, with the query and with none.

    Of the differences those below their mean less two standard deviations are left out.
    """
    if nothing is None:
        return np.array([sum(row) for row in asked])
    scores = []
    for row, bias in zip(asked, nothing, strict=True):
        left = np.subtract(row, bias)
        if len(left) > 1:
            left = left[left >= left.mean() - 2 * left.std(ddof=1)]
        scores.append(left.sum())
    return np.array(scores)

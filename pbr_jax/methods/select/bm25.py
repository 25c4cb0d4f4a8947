"""BM25 with statistics of the example's candidates (CFRAG Figure 6)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from pbr_jax.graph import Node
from pbr_jax.methods.select.backfill import Curve
from pbr_jax.methods.select.by_score import ByScore, by_score
from pbr_jax.parts.run import Run
from pbr_jax.pipeline import Examples, Query, Ranking, SelectSlot, Tally
from pbr_jax.text import bm25


@dataclass(frozen=True, kw_only=True)
class BM25(ByScore):
    """The words of the query, weighed by how rare they are among the candidates."""

    method: Literal["bm25"] = "bm25"
    k1: float = 1.5  # term saturation (rank_bm25's default, as in LaMP)
    b: float = 0.75  # length normalisation
    epsilon: float = 0.25  # floor of negative idf, as a share of the mean idf
    tokenizer: Literal["whitespace", "words"] = "whitespace"  # words: lower-case, no punctuation

    def check(self) -> None:
        super().check()
        self.at_least("k1", 0)
        self.between("b", 0, 1)
        self.at_least("epsilon", 0)

    def needs(self, run: Run) -> Mapping[str, Node]:
        return self.sharing(run)

    def slot(self, tally: Tally, *, backfill_gains: Curve | None = None) -> SelectSlot:
        def score(
            examples: Examples, queries: Sequence[Query], rankings: Sequence[Ranking]
        ) -> list[np.ndarray]:
            found = []
            for query, ranking in zip(queries, rankings, strict=True):
                texts = [candidate.document.text for candidate in ranking]
                index = bm25.BM25(texts, k1=self.k1, b=self.b, epsilon=self.epsilon, tokenizer=self.tokenizer)
                found.append(index.scores(" ".join(query.texts)))
            return found

        return by_score(self, score, backfill_gains)

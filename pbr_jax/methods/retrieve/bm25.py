"""BM25 with statistics of what is searched: one profile, as LaMP builds it, or those of several users."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from pbr_jax.corpus.store import Store
from pbr_jax.graph import Node
from pbr_jax.methods.retrieve.scored import scored_together
from pbr_jax.options import Retrieve
from pbr_jax.parts.run import Run
from pbr_jax.pipeline import Query, RetrieveSlot, Tally
from pbr_jax.text import bm25
from pbr_jax.types import Example


@dataclass(frozen=True, kw_only=True)
class BM25(Retrieve):
    """The words of the query, weighed by how rare they are among the documents of all users searched.

    One index holds them all, so that scores of different users compare; each user still gives the best `k`.
    """

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
        return {"store": run.data}

    def slot(self, tally: Tally, *, store: Store) -> RetrieveSlot:
        @lru_cache(maxsize=1)  # questions that see the same documents, such as shared ones, share an index
        def index(rows: tuple[bytes, ...]) -> bm25.BM25:
            texts = [text for own in rows for _, text in store.texts(np.frombuffer(own, np.int64))]
            return bm25.BM25(texts, k1=self.k1, b=self.b, epsilon=self.epsilon, tokenizer=self.tokenizer)

        def score(example: Example, query: Query, rows: list[np.ndarray]) -> list[np.ndarray]:
            scores = index(tuple(own.tobytes() for own in rows)).scores(" ".join(query.texts))
            return np.split(scores, np.cumsum([len(own) for own in rows])[:-1])

        return scored_together(store, self.k, score)

"""BM25 with statistics of what is searched: one profile, as LaMP builds it, or those of several users."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

import numpy as np

from pbr_jax.base.types import Example
from pbr_jax.corpus.store import Store
from pbr_jax.graph import Node, builds_nodes
from pbr_jax.methods.retrieve.scored import of_documents, scored_together
from pbr_jax.options import Retrieve, added
from pbr_jax.pipeline import Query, RetrieveSlot, Tally
from pbr_jax.stages.okapi import Analysed, Okapi
from pbr_jax.stages.run import Run
from pbr_jax.text import bm25


@dataclass(frozen=True, kw_only=True)
class BM25(Analysed, Retrieve):
    """BM25. A word's weight depends on its frequency in the documents of all searched users.

    One index holds the documents of all these users, so that their scores are comparable. Each user still
    contributes the best `k`.
    """

    method: Literal["bm25"] = "bm25"
    # texts that BM25 scores. passages: each passage (corpus.chunk); documents: each passage gets the score of
    # its whole document, which is more likely to contain all words of a question
    over: Literal["passages", "documents"] = field(default="passages", metadata=added("passages"))

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        self.check_analyser()
        return {"store": run.data}

    def slot(self, tally: Tally, *, store: Store) -> RetrieveSlot:
        return by_terms(self, store, self.k, whole=self.over == "documents")


@dataclass(frozen=True, kw_only=True)
class BM25Lamp(Okapi, Retrieve):
    """BM25 as in LaMP's code, for comparison with published numbers. Texts are split at white space, and
    case and punctuation are kept, so "Tea," does not match "tea"."""

    method: Literal["bm25_lamp"] = "bm25_lamp"

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        return {"store": run.data}

    def slot(self, tally: Tally, *, store: Store) -> RetrieveSlot:
        return by_terms(self, store, self.k)


def by_terms(options: Okapi, store: Store, k: int, *, whole: bool = False) -> RetrieveSlot:
    """The `k` best of each user by BM25 over the documents of all users who are searched.

    `whole`: passages have the scores of their documents.
    """

    @lru_cache(maxsize=1)  # questions that see the same documents, such as shared ones, share an index
    def index(rows: tuple[bytes, ...]) -> bm25.BM25:
        every = np.frombuffer(b"".join(rows), np.int64)
        documents = store.wholes(every) if whole else ()
        return options.index([d.text for d in documents] or [text for _, text in store.texts(every)])

    def score(example: Example, query: Query, rows: list[np.ndarray]) -> list[np.ndarray]:
        scores = index(tuple(own.tobytes() for own in rows)).scores(" ".join(query.texts))
        return np.split(scores, np.cumsum([len(own) for own in rows])[:-1])

    return scored_together(store, k, of_documents(store, score) if whole else score)

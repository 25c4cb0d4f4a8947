"""Dense search in users' histories and in shared documents, for retrievers and expansions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from pbr_jax.base.types import SPEAKERS, Candidate, Example
from pbr_jax.corpus.search import InScope, Search, holds_users
from pbr_jax.corpus.store import Store
from pbr_jax.graph import Bound, tell
from pbr_jax.index import Matrix
from pbr_jax.llm import usage
from pbr_jax.options import Retrieve, added
from pbr_jax.pipeline import Examples, Queries, Query, Ranking, RetrieveSlot, Searched, Tally, refuse_foreign
from pbr_jax.text.encode import TextEncoder
from pbr_jax.text.lengths import count_cut
from pbr_jax.text.speakers import Names, speakers, without


@dataclass(frozen=True, kw_only=True)
class Searching(Retrieve):
    """What all retrievers that search by vectors share."""

    # names in a question of those who speak in the user's documents (their field `speakers`). keep: as they
    # are; out: deleted; i: "I" and "my" in their place, as speakers say it themselves
    names: Names = field(default="keep", metadata=added("keep"))


Personalize = Callable[[Examples, np.ndarray], np.ndarray]
"""Maps query vectors [e d] to personalized ones."""


class Scored(NamedTuple):
    """The rows that a retriever found for a question, int64 [r], and their scores [r]."""

    rows: np.ndarray
    scores: np.ndarray

    @classmethod
    def of_users(cls, found: Sequence[tuple[np.ndarray, np.ndarray]]) -> "Scored":
        """The rows and scores of several users, one after the other."""
        columns = zip(*found, strict=True) if found else [[np.zeros(0, np.int64)], [np.zeros(0)]]
        return cls(*map(np.concatenate, columns))


@dataclass(frozen=True)
class Scorer:
    """A retriever as a callable of the slot. A sum of several asks for `scored`, which reads no document."""

    store: Store
    scored: Callable[[Examples, Queries, Searched], list[Scored]]

    def __call__(self, examples: Examples, queries: Queries, neighbours: Searched) -> list[Ranking]:
        return [candidates(self.store, *one) for one in self.scored(examples, queries, neighbours)]


def scored(
    retrieve: RetrieveSlot, examples: Examples, queries: Queries, neighbours: Searched
) -> list[Scored]:
    """What any retriever finds, by rows."""
    if isinstance(retrieve, Scorer):
        return retrieve.scored(examples, queries, neighbours)
    found = retrieve(examples, queries, neighbours)
    return [Scored(np.array([c.row for c in one], int), np.array([c.score for c in one])) for one in found]


def search(
    store: Store,
    encoder: TextEncoder,
    embeddings: Matrix,
    k: int,
    personalize: Personalize | None = None,
    shared: Search | None = None,
    least_own: float | None = None,
    names: Names = "keep",
) -> RetrieveSlot:
    """Builds a retriever of the documents nearest to the query, among those visible to the question.

    Args:
      store: the run's store (`run.data` in `needs`).
      encoder: encodes the queries (`vectors.encoder`). Vectors from `expand` are used unchanged.
      embeddings: the document vectors (`vectors.documents`).
      k: the number of documents from each searched user.
      personalize: `personalize(examples, queries [e d])` returns changed query vectors [e d].
      shared: the search in shared documents (`vectors.shared`). None: exhaustive search.
      least_own: excludes users' documents whose inner product with the query is below this value.
      names: what is searched for in place of the names of speakers.

    Returns:
      The callable of the slot, which maps examples, queries and neighbours to a ranking per example.
    """
    own = shared if shared is not None and holds_users(shared) else InScope(embeddings)
    nameless = without_names(store, names)

    def score(examples: Examples, queries: Queries, neighbours: Searched) -> list[Scored]:
        vectors = query_vectors(encoder, nameless(examples, queries))
        if personalize is not None:
            vectors = personalize(examples, vectors)
        wanted = [
            (q, user, store.visible(example, user.user_id))
            for q, (example, users) in enumerate(zip(examples, neighbours, strict=True))
            for user in users
        ]
        of_users: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in examples]
        found = {}
        for index, is_shared in ((own, False), (shared or own, True)):
            places = [i for i, (_, user, _) in enumerate(wanted) if (user.user_id == "") == is_shared]
            if places:
                scopes = [wanted[i][2] for i in places]
                depth = max(1, min(k, max(map(len, scopes))))  # there is room for k, found or not
                hits = index.search(vectors[[wanted[i][0] for i in places]], depth, scopes)
                found |= dict(zip(places, zip(*hits)))
        for i, (q, user, _) in enumerate(wanted):
            rows, scores = found[i]
            there = rows >= 0
            if least_own is not None and user.user_id:
                there &= scores >= least_own
            of_users[q].append((rows[there], scores[there] * user.weight))
        return [*map(Scored.of_users, of_users)]

    return Scorer(store, score)


def gated(retrieve: RetrieveSlot, collaboration: str) -> RetrieveSlot:
    """A retriever whose rankings pass the privacy check of `System.rank` (`pipeline.refuse_foreign`)."""

    def checked(examples: Examples, queries: Queries, neighbours: Searched) -> list[Ranking]:
        rankings = retrieve(examples, queries, neighbours)
        refuse_foreign(examples, rankings, collaboration)
        return rankings

    return checked


def expanded(examples: Examples, expand: Bound | None) -> list[Query]:
    """The queries of examples, which `expand` makes if there is one."""
    return [Query((example.query,)) for example in examples] if expand is None else expand(Tally())(examples)


def without_names(store: Store, names: Names) -> Callable[[Examples, Queries], Queries]:
    """What edits the queries of examples: the names of those who speak in the documents that an example sees
    of its own user. Vectors from `expand` stay as they are."""

    @lru_cache(maxsize=1)
    def note() -> None:
        tell(
            "retrieve",
            f"documents without the field {SPEAKERS} name nobody: retrieve.names {names} changes no question "
            "about them",
        )

    @lru_cache(maxsize=64)
    def known(rows: bytes) -> tuple[str, ...]:
        found = speakers(document.fields for document in store.documents(np.frombuffer(rows, np.int64)))
        if rows and not found:
            note()
        return found

    def edited(example: Example, query: Query) -> Query:
        there = known(store.visible(example, example.user_id).tobytes())
        return query._replace(texts=tuple(without(text, there, names) for text in query.texts))

    if names == "keep":
        return lambda examples, queries: queries
    return lambda examples, queries: [*map(edited, examples, queries)]


def query_vectors(encoder: TextEncoder, queries: Queries) -> np.ndarray:
    """Query vectors [q d]: the vector of the expansion if there is one, otherwise that of the text."""
    texts = [" ".join(q.texts) for q in queries if q.vector is None]
    if cut := count_cut(encoder.tokenizer, ((encoder.prefix("query") + text,) for text in texts)):
        usage.count({"cut_queries": cut})
    encoded = iter(encoder.encode(texts, role="query"))
    return np.stack([next(encoded) if query.vector is None else query.vector for query in queries])


def candidates(store: Store, rows: np.ndarray, scores: np.ndarray) -> Ranking:
    """The documents in these rows, int64 [r], with their scores [r], as a ranking in this order."""
    documents = store.documents(rows)
    return [Candidate(d, float(s), int(row)) for d, s, row in zip(documents, scores, rows, strict=True)]

"""Passages that were found, pooled to their documents: a document is worth what its best passages are."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from pbr_jax.base.types import Candidate, Document, UserError
from pbr_jax.corpus.store import Store
from pbr_jax.graph import Bound, Node, Slot, builds_nodes
from pbr_jax.options import Learner, Retrieve
from pbr_jax.pipeline import Examples, Queries, Ranking, RetrieveSlot, Searched, Tally
from pbr_jax.stages.run import Run
from pbr_jax.text.passages import Span, place_of, within


def pooled(ranking: Ranking) -> Ranking:
    """One candidate for each document: its best passage (MaxP: Dai, Callan, SIGIR 2019).

    Documents stand by user, in the order in which users come, and there by score; equal ones stay in order.
    """
    found: dict[str, dict[str, Candidate]] = {}
    for candidate in ranking:
        of_user = found.setdefault(candidate.document.user_id, {})
        best = of_user.setdefault(candidate.document.whole, candidate)
        if candidate.score > best.score:
            of_user[candidate.document.whole] = candidate
    return [one for of_user in found.values() for one in sorted(of_user.values(), key=lambda c: -c.score)]


@dataclass(frozen=True, kw_only=True)
class Pooled(Retrieve):
    """Another retriever, whose passages are pooled to `k` documents of each user.

    It is asked for `k` times as many passages as the longest document has: so many hold the best passages of
    `k` documents.
    """

    method: Literal["pooled"] = "pooled"
    of: Retrieve

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        return {"store": run.data, "of": Slot(self.of, run)}

    def slot(self, tally: Tally, *, store: Store, of: Bound) -> RetrieveSlot:
        deep = replace(of.method, k=self.k * store.most_passages)  # type: ignore[call-arg]
        inner = replace(of, method=deep)(tally)

        def retrieve(examples: Examples, queries: Queries, neighbours: Searched) -> list[Ranking]:
            return [self._best(ranking) for ranking in inner(examples, queries, neighbours)]

        return retrieve

    def _best(self, ranking: Ranking) -> Ranking:
        held: dict[str, int] = {}
        best: Ranking = []
        for candidate in pooled(ranking):
            user = candidate.document.user_id
            held[user] = held.get(user, 0) + 1
            best += [candidate] if held[user] <= self.k else []
        return best


@builds_nodes
def retriever(run: Run, retrieve: Retrieve) -> Retrieve:
    """The retriever of a run: over passages one that pools them, as `corpus.pool` says.

    Raises UserError for a learner that cannot pool, because its state is of the retriever itself.
    """
    corpus = run.config.corpus
    if not corpus.active or corpus.pool == "none" or retrieve.pools:
        return retrieve
    if isinstance(retrieve, Learner):
        raise UserError(
            f"retrieve.method is {retrieve.method}, which learns and pools no passages, and corpus.pool is "
            f"{corpus.pool}; set corpus.pool none, so that it ranks passages by themselves"
        )
    return Pooled(of=retrieve, k=retrieve.k)


def around(store: Store, row: int, document: Document) -> Document:
    """A passage with the one before and the one after it, between which it is marked; a whole document as it
    is."""
    if not document.part_of:
        return document
    (whole,), spans = store.wholes([row]), store.spans(row)
    (start, stop), at = document.span, spans.index(document.span)
    before = spans[max(at - 1, 0)][0], start
    after = stop, spans[min(at + 1, len(spans) - 1)][1]

    def marked(place: Span) -> str:
        first, own, last = (within(whole.text, span, place) for span in (before, document.span, after))
        return " ".join(filter(None, [first, ">>>", own, "<<<", last]))

    def field(name: str, value: str) -> str:
        if value == whole.fields[name]:
            return value
        return text if (place := place_of(whole, name)) is None else marked(place)

    text = marked((0, len(whole.text)))
    return replace(document, text=text, fields={name: field(name, v) for name, v in document.fields.items()})

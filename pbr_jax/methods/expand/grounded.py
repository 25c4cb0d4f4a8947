"""Expansions that a language model writes and the user's own history corrects. Sources are in `wording`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import numpy as np

from pbr_jax.corpus.store import Store
from pbr_jax.index.base import Matrix, unit
from pbr_jax.llm import LLM
from pbr_jax.methods.expand import parsing, wording
from pbr_jax.methods.expand.llm_expand import (
    History,
    HistoryExpand,
    Model,
    Reply,
    averaged,
    encoded,
    with_vectors,
)
from pbr_jax.pipeline import Examples, ExpandSlot, Query, Ranking, Tally
from pbr_jax.text.encode import TextEncoder


@dataclass(frozen=True, kw_only=True)
class _Grounded(HistoryExpand):
    def slot(
        self, tally: Tally, *, store: Store, llm: LLM, encoder: TextEncoder, embeddings: Matrix
    ) -> ExpandSlot:
        return self.expansion(
            Model(llm, tally, self.max_new_tokens), History(store, encoder, embeddings, tally)
        )

    def expansion(self, model: Model, history: History) -> ExpandSlot:
        """The slot, from what is asked and what is looked at."""
        raise TypeError("subclasses say how they expand")

    def shown(self, model: Model, template: str, query: str, ranking: Ranking) -> str:
        """A prompt with documents in it."""
        documents = [candidate.document for candidate in ranking]
        texts = wording.shown(documents, self.history_tokens, model.llm)
        return template.format(query=query, documents=wording.numbered(texts))


@dataclass(frozen=True, kw_only=True)
class Mill(_Grounded):
    """Sub-queries with generated passages, and retrieved documents. Of each, those that agree best with the
    others are kept (MILL).

    The score of a passage is its similarity to the `k1` documents retrieved for the query; the score of a
    document is its similarity to the passages. The better half of each is kept. An answer that is not a list
    counts as one passage.
    """

    method: Literal["mill"] = "mill"
    m: int = 5  # number of sub-queries

    def check(self) -> None:
        super().check()
        self.at_least("m", 1)

    def expansion(self, model: Model, history: History) -> ExpandSlot:
        def expand(examples: Examples) -> list[Query]:
            queries = [example.query for example in examples]
            prompts = [wording.MILL.format(query=query, m=self.m) for query in queries]
            replies = model.ask(prompts)
            answers = model.counted("passages", examples, [_texts(reply) for reply in replies])
            passages = [(answer or [])[: self.m] for answer in answers]
            rankings = history.look(examples, _plain(examples), self.k1)
            written = _vectors_of(history.encoder, passages)
            parts = [
                _agreeing(of_query, vectors, ranking, history.embeddings)
                for of_query, vectors, ranking in zip(passages, written, rankings, strict=True)
            ]
            return averaged(history.encoder, queries, parts)

        return expand


def _texts(reply: Reply) -> list[str] | None:
    """The items of a list, or the whole text."""
    whole = parsing.passage(reply.text)
    return None if whole is None else parsing.strings(reply.text, cut=reply.cut) or [whole]


def _vectors_of(encoder: TextEncoder, texts: Sequence[Sequence[str]]) -> list[np.ndarray]:
    """Unit vectors [n d] of each list of texts."""
    flat = encoded(encoder, [text for of_query in texts for text in of_query], "document")
    return np.split(unit(flat), np.cumsum([len(of_query) for of_query in texts])[:-1])


def _agreeing(passages: list[str], written: np.ndarray, ranking: Ranking, embeddings: Matrix) -> list[str]:
    """The better half of passages and of documents; all passages where no document was found."""
    if not passages or not ranking:
        return passages
    documents = [candidate.document.text for candidate in ranking]
    agreement = written @ unit(embeddings[[candidate.row for candidate in ranking]]).T
    return [*_better_half(passages, agreement.sum(1)), *_better_half(documents, agreement.sum(0))]


@dataclass(frozen=True, kw_only=True)
class ThinkQE(_Grounded):
    """Passages written in rounds. Each round reads documents retrieved with the passages so far (ThinkQE).

    Each document is shown only once. A round adds nothing if it retrieves no new document, or if its answer
    cannot be read.
    """

    method: Literal["thinkqe"] = "thinkqe"
    rounds: int = 3  # number of rounds, each with one retrieval and one passage

    def check(self) -> None:
        super().check()
        self.at_least("rounds", 1)

    def expansion(self, model: Model, history: History) -> ExpandSlot:
        def expand(examples: Examples) -> list[Query]:
            queries = [example.query for example in examples]
            passages: list[list[str]] = [[] for _ in examples]
            shown: list[set[int]] = [set() for _ in examples]
            for _ in range(self.rounds):
                current = averaged(history.encoder, queries, passages)
                rankings = history.look(examples, current, self.k1 * self.rounds)
                new = [[c for c in r if c.row not in s][: self.k1] for r, s in zip(rankings, shown)]
                asking = [place for place, found in enumerate(new) if found]
                prompts = [self.shown(model, wording.THINKQE, queries[p], new[p]) for p in asking]
                answers = [parsing.passage(reply.text) for reply in model.ask(prompts)]
                model.counted("passages", [examples[place] for place in asking], answers)
                for place, answer in zip(asking, answers, strict=True):
                    shown[place] |= {candidate.row for candidate in new[place]}
                    passages[place] += [answer] if answer else []
            return averaged(history.encoder, queries, passages)

        return expand


@dataclass(frozen=True, kw_only=True)
class RaFe(_Grounded):
    """The one of several rewrites whose documents explain the query best, according to the language model.

    RaFe trains a rewriter with the scores of a reranker. Here the feedback instead selects one of the
    rewrites or the query itself. The feedback is the mean log-probability of the query's tokens after the
    `k1` documents that a rewrite retrieves. Ties go to the first, so the query is kept if no document is
    found.
    """

    method: Literal["rafe"] = "rafe"
    m: int = 5  # number of rewrites

    def check(self) -> None:
        super().check()
        self.at_least("m", 1)

    def expansion(self, model: Model, history: History) -> ExpandSlot:
        def expand(examples: Examples) -> list[Query]:
            prompts = [wording.RAFE.format(query=example.query, m=self.m) for example in examples]
            read = [parsing.strings(reply.text, cut=reply.cut) for reply in model.ask(prompts)]
            answers = model.counted("rewrites", examples, read)
            options = [[e.query, *(a or [])[: self.m]] for e, a in zip(examples, answers, strict=True)]
            asking = [example for example, texts in zip(examples, options) for _ in texts]
            flat = [text for texts in options for text in texts]
            scores = iter(self._feedback(model, history.look, asking, flat))
            texts = [of_query[int(np.argmax(list(islice(scores, len(of_query)))))] for of_query in options]
            return with_vectors([(text,) for text in texts], encoded(history.encoder, texts, "query"))

        return expand

    def _feedback(
        self, model: Model, look: Callable[..., list[Ranking]], examples: Examples, texts: Sequence[str]
    ) -> list[float]:
        """log p(query | documents found by text) per token; -inf where nothing is found."""
        rankings = look(examples, [Query((text,)) for text in texts], self.k1)
        found = [place for place, ranking in enumerate(rankings) if ranking]
        prompts = [self.shown(model, wording.FEEDBACK, "", rankings[place]) for place in found]
        answers = model.score(prompts, [examples[place].query for place in found])
        scores = [-np.inf] * len(texts)
        for place, answer in zip(found, answers, strict=True):
            scores[place] = answer.mean
        return scores


def _plain(examples: Examples) -> list[Query]:
    return [Query((example.query,)) for example in examples]


def _better_half(texts: list[str], scores: np.ndarray) -> list[str]:
    """The half (rounded up) of highest score, in the order given."""
    best = np.argsort(-scores, kind="stable")[: (len(texts) + 1) // 2]
    return [texts[place] for place in sorted(best)]

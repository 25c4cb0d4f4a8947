"""Expansions that a language model writes, from the query alone or with the user's own history.

Each prompt requests the same as that of its paper, in our own words, so that small models understand it too.
`{query}` is the user's question, `{documents}` are texts of the user's history, and `{m}` is a number.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar, Literal

import numpy as np

from pbr_jax.corpus.store import Store
from pbr_jax.index.base import Matrix, unit
from pbr_jax.llm import LLM
from pbr_jax.methods.expand import parsing
from pbr_jax.methods.expand.llm_expand import (
    MATERIAL,
    History,
    HistoryExpand,
    LLMExpand,
    Model,
    Reply,
    averaged,
    encoded,
    joined,
    shown,
    with_vectors,
)
from pbr_jax.pipeline import Examples, ExpandSlot, Query, Ranking, Tally
from pbr_jax.text.encode import TextEncoder

# Gao et al., "Precise Zero-Shot Dense Retrieval without Relevance Labels" (HyDE), 2023.
HYDE = """\
Write one short paragraph that could stand in a document and answers the question.

Question: {query}
Paragraph:"""

# Jagerman et al., "Query Expansion by Prompting Large Language Models", 2023 (its form Q2E, zero-shot).
KEYWORDS = """\
Which words and short phrases would a text contain that answers the query? List about ten.

Query: {query}
Keywords:"""

# Zhang et al., "Personalize Before Retrieve", 2025 (PBR), appendix 2: what its row "Query2Term" asks for.
RATIONALE = """\
Answer the question, but before that say what the answer rests on.

Question: {query}"""

# Wang et al., "Query2doc: Query Expansion with Large Language Models", 2023.
QUERY2DOC = """\
Write a passage that a search for the query should find, with the answer in it.

Query: {query}
Passage:"""

# Ma et al., "Query Rewriting in Retrieval-Augmented Large Language Models", 2023.
REWRITE = """\
Turn the question into a query for a search engine: keep what is asked, name what is only implied.
Reply with the query alone, on one line.

Question: {query}
Query:"""

# Wei et al., "Chain-of-Thought Prompting Elicits Reasoning in Large Language Models", 2022.
COT = """\
Answer the question. Reason step by step first.

Question: {query}"""


@dataclass(frozen=True, kw_only=True)
class _Written(LLMExpand):
    """One prompt, texts that are read from its answer, and how they join the query."""

    prompt: ClassVar[str]
    kind: ClassVar[str] = "passages"  # of its answers, where failures are counted

    def asks(self) -> str:
        """The prompt, `{query}` in it."""
        return self.prompt

    def read(self, reply: Reply) -> list[str] | None:
        """The texts of a reply; None where it cannot be read."""
        found = parsing.passage(reply.text)
        return None if found is None else [found]

    def combine(
        self, encoder: TextEncoder | None, queries: Sequence[str], additions: Sequence[Sequence[str]]
    ) -> list[Query]:
        """The queries with these texts added."""
        return joined(encoder, queries, additions)

    def slot(self, tally: Tally, *, llm: LLM, encoder: TextEncoder | None = None) -> ExpandSlot:
        model = Model(llm, tally, self.max_new_tokens)

        def expand(examples: Examples) -> list[Query]:
            queries = [example.query for example in examples]
            replies = model.ask([self.asks().format(query=query) for query in queries])
            answers = model.counted(self.kind, examples, [self.read(reply) for reply in replies])
            return self.combine(encoder, queries, [answer or [] for answer in answers])

        return expand


@dataclass(frozen=True, kw_only=True)
class HyDE(_Written):
    """The language model writes a hypothetical answer. Its vector and the query's are averaged."""

    prompt: ClassVar[str] = HYDE
    method: Literal["hyde"] = "hyde"

    def combine(
        self, encoder: TextEncoder | None, queries: Sequence[str], additions: Sequence[Sequence[str]]
    ) -> list[Query]:
        return averaged(encoder, queries, additions)


@dataclass(frozen=True, kw_only=True)
class Query2Doc(_Written):
    """The language model writes a passage that answers the query. The passage is appended to the query."""

    prompt: ClassVar[str] = QUERY2DOC
    method: Literal["query2doc"] = "query2doc"


@dataclass(frozen=True, kw_only=True)
class Query2Term(_Written):
    """The language model writes keywords of an answer. They are appended to the query.

    The model's text is used unchanged. Of a list, the items are used, without the list's markup.
    """

    kind: ClassVar[str] = "keywords"
    method: Literal["query2term"] = "query2term"
    # keywords: the prompt asks for keywords; rationale: it asks for an answer, as in PBR's row of this name
    form: Literal["keywords", "rationale"] = "keywords"

    def asks(self) -> str:
        return KEYWORDS if self.form == "keywords" else RATIONALE

    def read(self, reply: Reply) -> list[str] | None:
        listed = parsing.strings(reply.text, cut=reply.cut) if self.form == "keywords" else None
        return listed or super().read(reply)


@dataclass(frozen=True, kw_only=True)
class CoT(_Written):
    """The language model writes a step-by-step answer. It is appended to the query."""

    prompt: ClassVar[str] = COT
    kind: ClassVar[str] = "reasoning"
    method: Literal["cot"] = "cot"


@dataclass(frozen=True, kw_only=True)
class Rewrite(_Written):
    """The language model rewrites the query. The rewritten query replaces the user's own words in the
    search."""

    prompt: ClassVar[str] = REWRITE
    kind: ClassVar[str] = "rewrites"
    method: Literal["rewrite"] = "rewrite"

    def read(self, reply: Reply) -> list[str] | None:
        found = parsing.line(reply.text)
        return None if found is None else [found]

    def combine(
        self, encoder: TextEncoder | None, queries: Sequence[str], additions: Sequence[Sequence[str]]
    ) -> list[Query]:
        texts = [(query, *reworded)[-1] for query, reworded in zip(queries, additions)]
        vectors = None if encoder is None else encoded(encoder, texts, "query")
        return with_vectors([(text,) for text in texts], vectors)


# -- with the user's own history --------------------------------------------------------------------

_LIST = 'Reply with a JSON list of {m} strings and nothing else: ["...", "..."]'

# Jia et al., "MILL: Mutual Verification with Large Language Models for Zero-Shot Query Expansion", 2023.
MILL = f"""\
Break the query into {{m}} narrower queries that together answer it. Write each one down, followed by a
short passage that answers it, in one string.
{_LIST}

Query: {{query}}"""

# Lei et al., "ThinkQE: Query Expansion via an Evolving Thinking Process", 2025.
THINKQE = f"""\
These texts were found for a question; most of them do not answer it.
{MATERIAL}

Think about what the question is after. Then write the passage that does answer it, from what you know
as well as from the texts.

Question: {{query}}
Passage:"""

# Mao et al., "RaFe: Ranking Feedback Improves Query Rewriting for RAG", 2024.
RAFE = f"""\
Put the question in {{m}} different ways that a search engine could answer better.
{_LIST}

Question: {{query}}"""

FEEDBACK = f"""\
These texts were found in a user's history.
{MATERIAL}

Which question of the user do they answer? Reply with the question alone.
Question:"""


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

    def showing(self, model: Model, template: str, query: str, ranking: Ranking) -> str:
        """A prompt with documents in it."""
        texts = shown([candidate.document for candidate in ranking], self.history_tokens, model.llm)
        numbered = (f"{number}. {text}" for number, text in enumerate(texts, 1))
        return template.format(query=query, documents="\n\n".join(numbered))


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
            prompts = [MILL.format(query=query, m=self.m) for query in queries]
            replies = model.ask(prompts)
            answers = model.counted("passages", examples, [_texts(reply) for reply in replies])
            passages = [(answer or [])[: self.m] for answer in answers]
            rankings = history.look(examples, [Query((query,)) for query in queries], self.k1)
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
                prompts = [self.showing(model, THINKQE, queries[p], new[p]) for p in asking]
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
            prompts = [RAFE.format(query=example.query, m=self.m) for example in examples]
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
        prompts = [self.showing(model, FEEDBACK, "", rankings[place]) for place in found]
        answers = model.score(prompts, [examples[place].query for place in found])
        scores = [-np.inf] * len(texts)
        for place, answer in zip(found, answers, strict=True):
            scores[place] = answer.mean
        return scores


def _better_half(texts: list[str], scores: np.ndarray) -> list[str]:
    """The half (rounded up) of highest score, in the order given."""
    best = np.argsort(-scores, kind="stable")[: (len(texts) + 1) // 2]
    return [texts[place] for place in sorted(best)]

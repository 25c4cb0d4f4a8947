"""Expansions that a language model writes from the query alone. Sources are named in `wording`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from pbr_jax.llm import LLM
from pbr_jax.methods.expand import parsing, wording
from pbr_jax.methods.expand.llm_expand import LLMExpand, Model, Reply, averaged, encoded, joined, with_vectors
from pbr_jax.pipeline import Examples, ExpandSlot, Query, Tally
from pbr_jax.text.encode import TextEncoder


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

    prompt: ClassVar[str] = wording.HYDE
    method: Literal["hyde"] = "hyde"

    def combine(
        self, encoder: TextEncoder | None, queries: Sequence[str], additions: Sequence[Sequence[str]]
    ) -> list[Query]:
        return averaged(encoder, queries, additions)


@dataclass(frozen=True, kw_only=True)
class Query2Doc(_Written):
    """The language model writes a passage that answers the query. The passage is appended to the query."""

    prompt: ClassVar[str] = wording.QUERY2DOC
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
        return wording.KEYWORDS if self.form == "keywords" else wording.RATIONALE

    def read(self, reply: Reply) -> list[str] | None:
        listed = parsing.strings(reply.text, cut=reply.cut) if self.form == "keywords" else None
        return listed or super().read(reply)


@dataclass(frozen=True, kw_only=True)
class CoT(_Written):
    """The language model writes a step-by-step answer. It is appended to the query."""

    prompt: ClassVar[str] = wording.COT
    kind: ClassVar[str] = "reasoning"
    method: Literal["cot"] = "cot"


@dataclass(frozen=True, kw_only=True)
class Rewrite(_Written):
    """The language model rewrites the query. The rewritten query replaces the user's own words in the
    search."""

    prompt: ClassVar[str] = wording.REWRITE
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

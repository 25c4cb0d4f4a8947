"""One document at a time, chosen anew every few tokens by what was said last.

Ram et al., "In-Context Retrieval-Augmented Language Models" (IC-RALM), 2023,
https://arxiv.org/abs/2302.00083: section 3 (the stride s, the query of the last l tokens) and section 5.1
(the language model reranks by the likelihood of the last tokens of what was said).

The documents are those that select passes on (`select.k` none: all that were retrieved). The first is the one
that stood first; from then on BM25 (of words between white space) over these documents answers the last
tokens of question and answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from pbr_jax.base.types import Example
from pbr_jax.llm import Sampling, Score, TooLong
from pbr_jax.llm.protocol import Mixture, OnBatch, TokenLevel
from pbr_jax.llm.stop_strings import cut, is_settled
from pbr_jax.methods.generate.token_level import TokenLevelGenerate
from pbr_jax.pipeline import Answer, Examples, OnScored, PromptWriter, Ranking, Tally
from pbr_jax.text.bm25 import BM25
from pbr_jax.text.budget import tail
from pbr_jax.text.prompts import Written


@dataclass(frozen=True, kw_only=True)
class IcRalm(TokenLevelGenerate):
    """The document in the prompt is chosen again while the answer is written (IC-RALM)."""

    method: Literal["ic_ralm"] = "ic_ralm"
    stride: int = 5  # number of answer tokens between two choices of the document
    query: int = 32  # number of last tokens of question and answer that form the query
    # likelihood: of the candidates, the document that makes the last tokens of the answer most probable. This
    # applies once the answer has begun
    rerank: Literal["none", "likelihood"] = "none"
    reranked: int = 16  # number of last answer tokens that this likelihood uses

    def check(self) -> None:
        super().check()
        for name in ("stride", "query", "reranked"):
            self.at_least(name, 1)

    def slot(
        self, tally: Tally, *, llm: TokenLevel, max_new_tokens: int, seed: int, stop: tuple[str, ...] = ()
    ) -> "Strides":
        return Strides(self, tally, llm, max_new_tokens, seed, stop)


class Strides(NamedTuple):
    """The slot: answers, and their likelihoods."""

    options: IcRalm
    tally: Tally
    llm: TokenLevel
    max_new_tokens: int
    seed: int
    stop: tuple[str, ...] = ()

    def __call__(
        self,
        examples: Examples,
        rankings: Sequence[Ranking],
        write: PromptWriter,
        *,
        on_batch: OnBatch | None = None,
    ) -> list[Answer]:
        limit = self.max_new_tokens
        answers: list[list[int]] = [[] for _ in examples]
        shown: list[Written | None] = [None] * len(examples)
        live = list(range(len(examples)))
        while live:
            texts = [self.llm.text(answers[i]) for i in live]
            chosen = self._chosen(
                [examples[i] for i in live], [rankings[i] for i in live], texts, write, live
            )
            asked = [Mixture((w.messages,), begun=tuple(answers[i])) for w, i in zip(chosen, live)]
            new = min(self.options.stride, limit - len(answers[live[0]]))
            with self.tally.timed("generate_llm"):
                found = self._extend(asked, new, live)
            self._count([w.messages for w in chosen], sum(map(len, found)))
            for i, written, tokens in zip(live, chosen, found, strict=True):
                answers[i] += tokens
                shown[i] = shown[i] or written
            ended = [i for i in live if len(answers[i]) >= limit or self._is_over(answers[i])]
            if ended and on_batch is not None:
                on_batch(ended, [self._text(answers[i]) for i in ended])
            live = [i for i in live if i not in set(ended)]
        return [
            Answer(self._text(tokens), written, self.llm.num_tokens(written.messages))
            for tokens, written in zip(answers, shown)
            if written is not None
        ]

    def _is_over(self, tokens: Sequence[int]) -> bool:
        return self.llm.ended(tokens) or is_settled(self.llm.text(tokens), self.stop)

    def _text(self, tokens: Sequence[int]) -> str:
        return cut(self.llm.text(tokens), self.stop)

    def _extend(self, asked: Sequence[Mixture], new: int, live: Sequence[int]) -> list[list[int]]:
        o = self.options
        try:
            return self.llm.extend(asked, Sampling(new, o.temperature, o.top_p, seed=self.seed))
        except TooLong as error:
            raise TooLong(live[error.index], error.reason) from error

    def score(
        self,
        examples: Examples,
        rankings: Sequence[Ranking],
        write: PromptWriter,
        *,
        on_batch: OnScored | None = None,
    ) -> list[tuple[Written, Score]]:
        """The log-likelihood of each example's target, every stride of it after the document that was chosen
        before it, with the prompt that the first stride had."""
        targets = [example.target or "" for example in examples]
        first = self._chosen(examples, rankings, [""] * len(examples), write, range(len(examples)))
        one = self._scores(first, targets, range(len(examples)))
        rows, stride = [list(row) for row in one], self.options.stride
        for start in range(stride, max(map(len, rows), default=0), stride):
            live = [i for i, row in enumerate(rows) if len(row) > start]
            begun = [self.llm.beginning(targets[i], start) for i in live]
            chosen = self._chosen(
                [examples[i] for i in live], [rankings[i] for i in live], begun, write, live
            )
            found = self._scores(chosen, [targets[i] for i in live], live)
            for i, row in zip(live, found, strict=True):
                rows[i][start : start + stride] = row[start : start + stride]
        if on_batch is not None:
            on_batch(len(examples))
        return [(written, Score(sum(row), len(row))) for written, row in zip(first, rows, strict=True)]

    def _scores(
        self, written: Sequence[Written], targets: Sequence[str], owners: Sequence[int]
    ) -> list[list[float]]:
        """log p of every token of each target, from the cache where the same document was scored before."""
        try:
            return self.llm.token_scores([prompt.messages for prompt in written], targets)
        except TooLong as error:
            raise TooLong(owners[error.index], error.reason) from error

    def _chosen(
        self, examples: Examples, rankings: Sequence[Ranking], begun: Sequence[str], write: PromptWriter,
        owners: Sequence[int],
    ) -> list[Written]:  # fmt: skip
        """The prompt with the document that is chosen for each answer as far as it has begun; `owners`: the
        places of the examples in the whole call."""
        o, best = self.options, [0] * len(examples)
        some = [i for i, text in enumerate(begun) if text and len(rankings[i]) > 1]
        if o.rerank == "likelihood":
            best = self._most_likely(examples, rankings, begun, some, write, owners)
        else:
            for i in some:
                index = BM25([candidate.document.text for candidate in rankings[i]])
                best[i] = int(np.argmax(index.scores(self._asked(examples[i], begun[i]))))
        return write(examples, [ranking[j : j + 1] for ranking, j in zip(rankings, best, strict=True)])

    def _asked(self, example: Example, begun: str) -> str:
        """The last tokens of question and answer."""
        return tail(f"{example.query} {begun}", self.options.query, self.llm.count)

    def _most_likely(
        self, examples: Examples, rankings: Sequence[Ranking], begun: Sequence[str], some: Sequence[int],
        write: PromptWriter, owners: Sequence[int],
    ) -> list[int]:  # fmt: skip
        """The place of the document after which the last tokens of each answer are most probable."""
        singles = [(i, candidate) for i in some for candidate in rankings[i]]
        written = write([examples[i] for i, _ in singles], [[candidate] for _, candidate in singles])
        with self.tally.timed("generate_llm"):
            rows = iter(
                self._scores(written, [begun[i] for i, _ in singles], [owners[i] for i, _ in singles])
            )
        self._count([prompt.messages for prompt in written], 0)
        best, last = [0] * len(examples), self.options.reranked
        for i in some:
            best[i] = int(np.argmax([sum(next(rows)[-last:]) for _ in rankings[i]]))
        return best

    def _count(self, prompts: Sequence[Any], answered: int) -> None:
        counts = self.tally.counts
        counts["generate_calls"] += len(prompts)
        counts["generate_prompt_tokens"] += sum(map(self.llm.num_tokens, prompts))
        counts["generate_answer_tokens"] += answered

"""Methods that lead the language model token by token: REPLUG and IC-RALM.

REPLUG writes one prompt for each document and mixes the distributions of the next token: Shi et al., "REPLUG:
Retrieval-Augmented Black-Box Language Models", 2024, https://arxiv.org/abs/2301.12652, section 3.2:
p(y | x) = Π_t Σ_d w_d p(y_t | d, x, y_<t), where w is the softmax of the documents' scores.

IC-RALM shows one document at a time, chosen anew every few tokens by what was said last: Ram et al.,
"In-Context Retrieval-Augmented Language Models", 2023, https://arxiv.org/abs/2302.00083: section 3 (the
stride s, the query of the last l tokens) and section 5.1 (the language model reranks by the likelihood of the
last tokens of what was said). The documents are those that select passes on (`select.k` none: all that were
retrieved). The first is the one that stood first; from then on BM25 (of words between white space) over these
documents answers the last tokens of question and answer.
"""

import abc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from pbr_jax.base.types import Example, UserError
from pbr_jax.graph import Node, builds_nodes
from pbr_jax.llm import Sampling, Score, TooLong
from pbr_jax.llm.protocol import Mixture, OnBatch, TokenLevel
from pbr_jax.llm.stop_strings import cut, is_settled
from pbr_jax.options import Generate
from pbr_jax.pipeline import Answer, Examples, OnScored, PromptWriter, Ranking, Tally
from pbr_jax.stages import language_model
from pbr_jax.stages.generator import decoding
from pbr_jax.stages.run import Run
from pbr_jax.text.bm25 import BM25
from pbr_jax.text.budget import tail
from pbr_jax.text.prompts import Written


@dataclass(frozen=True, kw_only=True)
class TokenLevelGenerate(Generate):
    """Base of methods whose answers do not continue a single prompt. They compute their own likelihood."""

    own_likelihood = True

    def check(self) -> None:
        super().check()
        if self.num_beams > 1:
            raise UserError(
                f"generate.num_beams is {self.num_beams}, and generate.method {self.method} does not search "
                "beams; set it to 1"
            )

    @builds_nodes
    def needs(self, run: Run) -> Mapping[str, Node]:
        language_model.check_tokens(run.config.llm, f"generate.method {self.method}")
        return decoding(run, self)

    def slot(
        self, tally: Tally, *, llm: TokenLevel, max_new_tokens: int, seed: int, stop: tuple[str, ...] = ()
    ) -> "_Slot":
        return _Slot(self, tally, llm, max_new_tokens, seed, stop)

    @abc.abstractmethod
    def answers(self, slot: "_Slot", batch: "_Batch", on_batch: OnBatch) -> list[Answer]:
        """The answer to each example of a batch."""

    @abc.abstractmethod
    def scores(self, slot: "_Slot", batch: "_Batch", on_batch: OnScored) -> list[tuple[Written, Score]]:
        """The log-likelihood of each example's target, with what the model was shown."""


class _Batch(NamedTuple):
    """Examples with their documents, and what writes prompts of them."""

    examples: Examples
    rankings: Sequence[Ranking]
    write: PromptWriter


@dataclass(frozen=True)
class _Slot:
    """A slot that answers, and scores answers, token by token."""

    options: TokenLevelGenerate
    tally: Tally
    llm: TokenLevel
    max_new_tokens: int
    seed: int
    stop: tuple[str, ...] = ()

    def __call__(self, *batch: Any, on_batch: OnBatch | None = None) -> list[Answer]:
        return self.options.answers(self, _Batch(*batch), on_batch or (lambda *_: None))

    def score(self, *batch: Any, on_batch: OnScored | None = None) -> list[tuple[Written, Score]]:
        """The log-likelihood of each example's target, with what the model was shown."""
        return self.options.scores(self, _Batch(*batch), on_batch or (lambda _: None))

    def sampling(self, new_tokens: int) -> Sampling:
        """How so many tokens are drawn."""
        return Sampling(new_tokens, self.options.temperature, self.options.top_p, seed=self.seed)

    def text(self, tokens: Sequence[int]) -> str:
        """The text of an answer, up to the first stop string."""
        return cut(self.llm.text(tokens), self.stop)

    def is_over(self, tokens: Sequence[int]) -> bool:
        """Whether an answer ends here."""
        return self.llm.ended(tokens) or is_settled(self.llm.text(tokens), self.stop)

    def token_scores(
        self, written: Sequence[Written], targets: Sequence[str], owners: Sequence[int]
    ) -> list[list[float]]:
        """log p of every token of each target, from the cache where the same document was scored before."""
        with _blaming(owners):
            return self.llm.token_scores([prompt.messages for prompt in written], targets)

    def prompt_tokens(self, prompts: Sequence[Written]) -> int:
        """How many tokens the prompts have."""
        return sum(self.llm.num_tokens(prompt.messages) for prompt in prompts)

    def charge(self, prompts: Sequence[Written], answers: Sequence[Sequence[int]] = ()) -> None:
        """Counts calls, and the tokens that were read and written."""
        self.tally.counts["generate_calls"] += len(prompts)
        self.tally.counts["generate_prompt_tokens"] += self.prompt_tokens(prompts)
        self.tally.counts["generate_answer_tokens"] += sum(map(len, answers))


@contextmanager
def _blaming(owners: Sequence[int]) -> Iterator[None]:
    """Errors of prompts that are too long name the example: `owners` are those of the prompts."""
    try:
        yield
    except TooLong as error:
        raise TooLong(owners[error.index], error.reason) from error


# -- REPLUG ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Replug(TokenLevelGenerate):
    """A mixture of the next-token distributions after one prompt for each document. Without documents it
    is the prompt that has none."""

    method: Literal["replug"] = "replug"
    # weights of the documents. scores: softmax(score / tau) of the scores from select (for dense retrieval,
    # cosines); equal: the same for all
    weights: Literal["scores", "equal"] = "scores"
    tau: float = 0.1  # scores: temperature of that softmax

    def check(self) -> None:
        super().check()
        if not self.tau > 0:
            raise UserError(f"generate.tau is {self.tau}, want a positive number")

    def mixing(self, ranking: Ranking) -> tuple[float, ...]:
        """The weights of a ranking's documents, which add up to 1."""
        if self.weights == "equal" or not ranking:
            return (1 / max(1, len(ranking)),) * max(1, len(ranking))
        scaled = np.array([candidate.score for candidate in ranking]) / self.tau
        shares = np.exp(scaled - scaled.max())
        return tuple((shares / shares.sum()).tolist())

    def answers(self, slot: _Slot, batch: _Batch, on_batch: OnBatch) -> list[Answer]:
        written = _alone(batch)
        mixtures = [
            Mixture(tuple(prompt.messages for prompt in prompts), self.mixing(ranking))
            for prompts, ranking in zip(written, batch.rankings, strict=True)
        ]

        def tell(positions: Sequence[int], rows: Sequence[Sequence[int]]) -> None:
            on_batch(positions, list(map(slot.text, rows)))

        with slot.tally.timed("generate_llm"):
            tokens = slot.llm.extend(mixtures, slot.sampling(slot.max_new_tokens), on_batch=tell)
        slot.charge([prompt for prompts in written for prompt in prompts], tokens)
        return [
            Answer(slot.text(row), _shown(prompts), slot.prompt_tokens(prompts))
            for row, prompts in zip(tokens, written, strict=True)
        ]

    def scores(self, slot: _Slot, batch: _Batch, on_batch: OnScored) -> list[tuple[Written, Score]]:
        written = _alone(batch)
        owners = [i for i, prompts in enumerate(written) for _ in prompts]
        waiting = list(map(len, written))

        def tell(places: Sequence[int], _: Sequence[Sequence[float]]) -> None:
            for place in places:
                waiting[owners[place]] -= 1
            on_batch(sum(not waiting[owner] for owner in {owners[place] for place in places}))

        prompts = [prompt.messages for prompts in written for prompt in prompts]
        with _blaming(owners):
            targets = [batch.examples[i].target or "" for i in owners]
            rest = iter(slot.llm.token_scores(prompts, targets, on_batch=tell))
        return [
            (_shown(prompts), _mixed([next(rest) for _ in prompts], self.mixing(ranking)))
            for prompts, ranking in zip(written, batch.rankings, strict=True)
        ]


def _alone(batch: _Batch) -> list[list[Written]]:
    """A prompt for each document of each example; one without where there are none."""
    singles = [[[candidate] for candidate in ranking] or [[]] for ranking in batch.rankings]
    pairs = [(e, single) for e, of in zip(batch.examples, singles, strict=True) for single in of]
    written = iter(batch.write([example for example, _ in pairs], [single for _, single in pairs]))
    return [[next(written) for _ in of] for of in singles]


def _shown(prompts: Sequence[Written]) -> Written:
    """All prompts as one, for the record: their messages in a row."""
    messages = [message for prompt in prompts for message in prompt.messages]
    return Written(messages, sum(prompt.documents for prompt in prompts), prompts[-1].asked)


def _mixed(rows: Sequence[Sequence[float]], weights: Sequence[float]) -> Score:
    """Σ_t log Σ_d w_d p(y_t | d): from log p of every token under every document."""
    with np.errstate(divide="ignore"):
        each = np.array(rows, np.float64).reshape(len(rows), -1) + np.log(weights)[:, None]
    return Score(float(np.logaddexp.reduce(each, axis=0).sum()), each.shape[1])


# -- IC-RALM ---------------------------------------------------------------------------------------


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

    def answers(self, slot: _Slot, batch: _Batch, on_batch: OnBatch) -> list[Answer]:
        answers: list[list[int]] = [[] for _ in batch.examples]
        shown: dict[int, Written] = {}
        live = list(range(len(answers)))
        choose = _Choice(self, slot, *batch)
        while live:
            chosen = choose(live, [slot.llm.text(answers[i]) for i in live])
            mixtures = [Mixture((w.messages,), begun=tuple(answers[i])) for w, i in zip(chosen, live)]
            new = min(self.stride, slot.max_new_tokens - len(answers[live[0]]))
            with slot.tally.timed("generate_llm"), _blaming(live):
                extended = slot.llm.extend(mixtures, slot.sampling(new))
            slot.charge(chosen, extended)
            for i, written, tokens in zip(live, chosen, extended, strict=True):
                answers[i] += tokens
                shown.setdefault(i, written)
            ended = [i for i in live if len(answers[i]) >= slot.max_new_tokens or slot.is_over(answers[i])]
            if ended:
                on_batch(ended, [slot.text(answers[i]) for i in ended])
            live = [i for i in live if i not in set(ended)]
        return [
            Answer(slot.text(answers[i]), shown[i], slot.prompt_tokens([shown[i]])) for i in sorted(shown)
        ]

    def scores(self, slot: _Slot, batch: _Batch, on_batch: OnScored) -> list[tuple[Written, Score]]:
        """Every stride of a target is scored after the document that was chosen before it. The prompt is that
        of the first stride."""
        targets = [example.target or "" for example in batch.examples]
        everyone, stride = list(range(len(targets))), self.stride
        choose = _Choice(self, slot, *batch)
        first = choose(everyone, [""] * len(targets))
        rows = [list(row) for row in slot.token_scores(first, targets, everyone)]
        for start in range(stride, max(map(len, rows), default=0), stride):
            live = [i for i, row in enumerate(rows) if len(row) > start]
            chosen = choose(live, [slot.llm.beginning(targets[i], start) for i in live])
            scored = slot.token_scores(chosen, [targets[i] for i in live], live)
            for i, row in zip(live, scored, strict=True):
                rows[i][start : start + stride] = row[start : start + stride]
        on_batch(len(targets))
        return [(written, Score(sum(row), len(row))) for written, row in zip(first, rows, strict=True)]


@dataclass(frozen=True)
class _Choice:
    """Chooses a document for each answer as far as it has begun, and writes its prompt."""

    options: IcRalm
    slot: _Slot
    examples: Examples
    rankings: Sequence[Ranking]
    write: PromptWriter

    def __call__(self, live: Sequence[int], begun: Sequence[str]) -> list[Written]:
        """The prompts of these examples, whose answers have begun so."""
        best = dict.fromkeys(live, 0)
        some = {i: text for i, text in zip(live, begun, strict=True) if text and len(self.rankings[i]) > 1}
        if self.options.rerank == "likelihood":
            best |= self._most_likely(some)
        else:
            for i, text in some.items():
                index = BM25([candidate.document.text for candidate in self.rankings[i]])
                best[i] = int(np.argmax(index.scores(self._query(self.examples[i], text))))
        return self.write([self.examples[i] for i in live], [self.rankings[i][best[i] :][:1] for i in live])

    def _query(self, example: Example, begun: str) -> str:
        """The last tokens of question and answer."""
        return tail(f"{example.query} {begun}", self.options.query, self.slot.llm.count)

    def _most_likely(self, begun: Mapping[int, str]) -> dict[int, int]:
        """The place of the document after which the last tokens of each answer are most probable."""
        owners = [i for i in begun for _ in self.rankings[i]]
        singles = [[candidate] for i in begun for candidate in self.rankings[i]]
        written = self.write([self.examples[i] for i in owners], singles)
        with self.slot.tally.timed("generate_llm"):
            rows = iter(self.slot.token_scores(written, [begun[i] for i in owners], owners))
        self.slot.charge(written)
        last = self.options.reranked
        return {i: int(np.argmax([sum(next(rows)[-last:]) for _ in self.rankings[i]])) for i in begun}

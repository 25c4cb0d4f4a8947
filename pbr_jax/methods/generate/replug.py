"""One prompt a document, and the distributions of the next token mixed: REPLUG's ensemble.

Shi et al., "REPLUG: Retrieval-Augmented Black-Box Language Models", 2024, https://arxiv.org/abs/2301.12652,
section 3.2: p(y | x) = Π_t Σ_d w_d p(y_t | d, x, y_<t), where w is the softmax of the documents' scores.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from pbr_jax.base.types import UserError
from pbr_jax.llm import Sampling, Score, TooLong
from pbr_jax.llm.protocol import Mixture, OnBatch, TokenLevel
from pbr_jax.llm.stop_strings import cut
from pbr_jax.methods.generate.token_level import TokenLevelGenerate
from pbr_jax.pipeline import Answer, Examples, OnScored, PromptWriter, Ranking, Tally
from pbr_jax.text.prompts import Written


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

    def slot(
        self, tally: Tally, *, llm: TokenLevel, max_new_tokens: int, seed: int, stop: tuple[str, ...] = ()
    ) -> "Ensemble":
        return Ensemble(self, tally, llm, max_new_tokens, seed, stop)

    def mixing(self, ranking: Ranking) -> tuple[float, ...]:
        """The weights of a ranking's documents, which add up to 1."""
        if self.weights == "equal" or not ranking:
            return (1 / max(1, len(ranking)),) * max(1, len(ranking))
        scaled = np.array([candidate.score for candidate in ranking]) / self.tau
        shares = np.exp(scaled - scaled.max())
        return tuple((shares / shares.sum()).tolist())


class Ensemble(NamedTuple):
    """The slot: answers, and their likelihoods."""

    options: Replug
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
        o, written = self.options, self._written(examples, rankings, write)
        asked = [
            Mixture(tuple(prompt.messages for prompt in prompts), o.mixing(ranking))
            for prompts, ranking in zip(written, rankings, strict=True)
        ]

        def tell(positions: Sequence[int], rows: Sequence[Sequence[int]]) -> None:
            if on_batch is not None:
                on_batch(positions, list(map(self._text, rows)))

        with self.tally.timed("generate_llm"):
            sampling = Sampling(self.max_new_tokens, o.temperature, o.top_p, seed=self.seed)
            tokens = self.llm.extend(asked, sampling, on_batch=tell)
        answers = [
            Answer(self._text(row), _shown(prompts), self._read(prompts))
            for row, prompts in zip(tokens, written, strict=True)
        ]
        counts = self.tally.counts
        counts["generate_calls"] += sum(map(len, written))
        counts["generate_prompt_tokens"] += sum(answer.prompt_tokens for answer in answers)
        counts["generate_answer_tokens"] += sum(map(len, tokens))
        return answers

    def score(
        self,
        examples: Examples,
        rankings: Sequence[Ranking],
        write: PromptWriter,
        *,
        on_batch: OnScored | None = None,
    ) -> list[tuple[Written, Score]]:
        """The mixture's log-likelihood of each example's target, with what the model was shown."""
        written = self._written(examples, rankings, write)
        owners = [i for i, prompts in enumerate(written) for _ in prompts]
        waiting = list(map(len, written))

        def tell(places: Sequence[int], _: Sequence[Sequence[float]]) -> None:
            for place in places:
                waiting[owners[place]] -= 1
            if on_batch is not None:
                on_batch(sum(not waiting[owner] for owner in {owners[place] for place in places}))

        try:
            rows = self.llm.token_scores(
                [prompt.messages for prompts in written for prompt in prompts],
                [examples[i].target or "" for i in owners],
                on_batch=tell,
            )
        except TooLong as error:
            raise TooLong(owners[error.index], error.reason) from error
        found = iter(rows)
        return [
            (_shown(prompts), _mixed([next(found) for _ in prompts], self.options.mixing(ranking)))
            for prompts, ranking in zip(written, rankings, strict=True)
        ]

    def _written(
        self, examples: Examples, rankings: Sequence[Ranking], write: PromptWriter
    ) -> list[list[Written]]:
        """A prompt for each document of each example; one without where there are none."""
        singles = [[[candidate] for candidate in ranking] or [[]] for ranking in rankings]
        flat: Iterator[Written] = iter(
            write(
                [example for example, own in zip(examples, singles, strict=True) for _ in own],
                [single for own in singles for single in own],
            )
        )
        return [[next(flat) for _ in own] for own in singles]

    def _text(self, tokens: Sequence[int]) -> str:
        return cut(self.llm.text(tokens), self.stop)

    def _read(self, prompts: Sequence[Written]) -> int:
        return sum(self.llm.num_tokens(prompt.messages) for prompt in prompts)


def _shown(prompts: Sequence[Written]) -> Written:
    """All prompts as one, for the record: their messages in a row."""
    messages = [message for prompt in prompts for message in prompt.messages]
    return Written(messages, sum(prompt.documents for prompt in prompts), prompts[-1].asked)


def _mixed(rows: Sequence[Sequence[float]], weights: Sequence[float]) -> Score:
    """Σ_t log Σ_d w_d p(y_t | d): from log p of every token under every document."""
    with np.errstate(divide="ignore"):
        each = np.array(rows, np.float64).reshape(len(rows), -1) + np.log(weights)[:, None]
    return Score(float(np.logaddexp.reduce(each, axis=0).sum()), each.shape[1])

"""A decoder-only model in this process, token by token: scores of tokens, mixtures, attention."""

import abc
import functools
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, TypeVar, Unpack

import numpy as np

from pbr_jax.llm.engine import mixtures, prefixes, scoring
from pbr_jax.llm.engine.batching import power
from pbr_jax.llm.engine.local import AnswerBatches, Ids, LocalModel, answer_each, check_context, draw, groups
from pbr_jax.llm.engine.prefill import PrefillEngine
from pbr_jax.llm.engine.sampling import arrays
from pbr_jax.llm.engine.workers import shared_out
from pbr_jax.llm.protocol import Mixture, PerToken, Progress, Prompt, Sampling, TooLong, Watch

T = TypeVar("T")
W = TypeVar("W")


class TokenLevel(LocalModel):
    """What `protocol.TokenLevel` asks for; `JaxLLM` adds whole answers."""

    _engines: functools.cached_property[list[PrefillEngine]]
    """One for each worker."""

    @abc.abstractmethod
    def _decoded(
        self, prompts: Sequence[Ids], names: Sequence[int], wanted: Sequence[bool], sampling: Sampling
    ) -> AnswerBatches[list[int]]:
        """The new tokens of each prompt."""

    @property
    def _engine(self) -> PrefillEngine:
        return self._engines[0]

    def text(self, tokens: Sequence[int]) -> str:
        return self._codec.decode(tokens)

    def beginning(self, target: str, tokens: int) -> str:
        return self._codec.tokenizer.decode(self._codec.encode_target(target)[:tokens])

    def ended(self, tokens: Sequence[int]) -> bool:
        return bool(tokens) and tokens[-1] in self._codec.stops

    # --- how probable each token of an answer is ---------------------------------------------------

    def token_scores(
        self, prompts: Sequence[Prompt], targets: Sequence[str], **progress: Unpack[Progress]
    ) -> list[PerToken]:
        """log p of every token of each target; see `protocol.TokenLevel`. Logits exist at target positions
        only, and equal pairs are computed once."""
        pairs, errors = self._pairs(prompts, targets)
        empty: dict[int, PerToken] = {i: [] for i, (_, second) in enumerate(pairs) if not second}
        progress["done"] = empty | dict(progress.get("done") or {})
        return answer_each(pairs, errors, _wanted_ones(self._scored), progress)

    def _scored(self, pairs: Sequence[tuple[Ids, Ids]]) -> AnswerBatches[PerToken]:
        most = min(self._engine.window, max(32, -(-len(pairs) // len(self._engines))))

        def work(engine: PrefillEngine, places: list[int]) -> Iterator[tuple[int, PerToken]]:
            rows = scoring.log_probabilities(engine, [pairs[place] for place in places])
            self._check_numbers(all(np.isfinite(row).all() for row in rows))
            yield from zip(places, (row.tolist() for row in rows))

        return self._windowed(prefixes.windows([first + second for first, second in pairs], most), work)

    # --- answers that are led token by token -------------------------------------------------------

    def extend(
        self, requests: Sequence[Mixture], sampling: Sampling, **progress: Unpack[Progress]
    ) -> list[list[int]]:
        """Further tokens of each answer; see `protocol.TokenLevel`."""
        new = sampling.max_new_tokens
        rows, errors = [], {}
        for index, mixture in enumerate(requests):
            texts = [prompt + tuple(mixture.begun) for prompt in self._encode(mixture.prompts)]
            fitting, wrong = self._fit(texts, [new] * len(texts), "generate.max_new_tokens")
            rows.append((tuple(fitting), mixture.weights))
            for error in (*wrong.values(), self._torn(index, fitting, new)):
                if error is not None:
                    errors[index] = TooLong(index, error.reason)

        def compute(rows: list[tuple[tuple[Ids, ...], tuple[float, ...]]]) -> AnswerBatches[list[int]]:
            names = [draw(sum(prompts, ()), 0) for prompts, _ in rows]
            single = [place for place, (prompts, _) in enumerate(rows) if len(prompts) == 1]
            several = [place for place, (prompts, _) in enumerate(rows) if len(prompts) != 1]
            prompts = [rows[place][0][0] for place in single]
            own = [names[place] for place in single]
            decoded = self._decoded(prompts, own, [True] * len(single), sampling) if single else ()
            plain = ([(single[place], tokens) for place, tokens in batch] for batch in decoded)
            for batch in chain(plain, self._mixed(rows, several, names, sampling)):
                self._check_numbers(all(token >= 0 for _, tokens in batch for token in tokens))
                yield batch

        return answer_each(rows, errors, _wanted_ones(compute), progress)

    def _torn(self, index: int, prompts: Sequence[Ids], new: int) -> TooLong | None:
        """What is wrong with prompts on both sides of LongRoPE's original context."""
        original = self._engine.original
        lengths = [length for prompt in prompts for length in (len(prompt), len(prompt) + new)]
        if len(prompts) < 2 or original is None or min(lengths) > original or max(lengths) <= original:
            return None
        return TooLong(
            index,
            f"is one of several that are mixed, and they lie on both sides of the {original} tokens from "
            "which on the model reads all positions anew; lower prompt.max_tokens",
        )

    def _mixed(
        self, rows: Sequence[Any], places: Sequence[int], names: Sequence[int], sampling: Sampling
    ) -> AnswerBatches[Any]:
        new, (choice, drawing) = sampling.max_new_tokens, arrays(self._codec.stops, sampling)
        sizes = [rows[place][0] for place in places]
        longest = max((len(prompt) for prompts in sizes for prompt in prompts), default=0)
        height = min(self._batch_size, self._engine.room(longest + new))
        height = power(max(height, *map(len, sizes)), 1) if sizes else 1

        def work(engine: PrefillEngine, batch: list[int]) -> Iterator[tuple[int, list[int]]]:
            some = [places[i] for i in batch]
            long = engine.long(max(len(p) for place in some for p in rows[place][0]) + new)
            for i, tokens in mixtures.decode(
                engine, [rows[place][0] for place in some], [rows[place][1] for place in some],
                [names[place] for place in some], rows=height, new=new, choice=choice, sampling=drawing,
                long=long,
            ):  # fmt: skip
                yield some[i], tokens

        return self._windowed(mixtures.batches(sizes, height), work)

    # --- who attends to what -----------------------------------------------------------------------

    def attention(self, watches: Sequence[Watch], **progress: Unpack[Progress]) -> list[list[PerToken]]:
        """The attention that each token of each span gets; see `protocol.TokenLevel`."""
        requests, errors = [], {}
        for index, watch in enumerate(watches):
            ids, (where, *spans) = self._codec.locate(watch.messages, [watch.query, *watch.spans])
            where = range(where.start, len(ids)) if watch.to_end else where
            self._check_known([tuple(ids)])
            requests.append((tuple(ids), where, tuple(spans)))
            try:
                check_context(index, len(ids), 0, self.context, "", cuts=False)
            except TooLong as error:
                errors[index] = error

        def compute(rows: list[tuple[Ids, range, tuple[range, ...]]]) -> AnswerBatches[list[PerToken]]:
            def work(engine: PrefillEngine, places: list[int]) -> Iterator[tuple[int, list[PerToken]]]:
                for kind in groups([engine.long(len(rows[place][0])) for place in places]):
                    some = [places[i] for i in kind]
                    for i, mass in scoring.masses(engine, [rows[place][:2] for place in some]):
                        self._check_numbers(np.isfinite(mass).all())
                        yield some[i], [mass[span.start : span.stop].tolist() for span in rows[some[i]][2]]

            windows = prefixes.windows([ids for ids, _, _ in rows], scoring.TOGETHER)
            return self._windowed(windows, work)

        return answer_each(requests, errors, _wanted_ones(compute), progress)

    def _windowed(
        self,
        windows: Sequence[W],
        work: Callable[[PrefillEngine, W], Iterator[tuple[int, Any]]],
        engines: Sequence[PrefillEngine] | None = None,
    ) -> AnswerBatches[Any]:
        """What each worker computes: it takes one window after another while there are any. `engines`: the
        workers; None: all."""

        def each(engine: PrefillEngine, taken: Iterator[W]) -> AnswerBatches[Any]:
            return (list(work(engine, window)) for window in taken)

        return shared_out(windows, each, engines or self._engines) if windows else iter(())


def _wanted_ones(
    compute: Callable[[list[Any]], AnswerBatches[T]],
) -> Callable[[list[Any], list[bool]], AnswerBatches[T]]:
    """For `answer_each`, a function that is given the wanted requests alone."""

    def wanted_ones(distinct: list[Any], wanted: list[bool]) -> AnswerBatches[T]:
        places = [place for place, one in enumerate(wanted) if one]
        for batch in compute([distinct[place] for place in places]):
            yield [(places[i], value) for i, value in batch]

    return wanted_ones

"""A decoder-only model in this process, token by token: scores of tokens, mixtures, attention."""

import abc
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from pbr_jax import interrupts
from pbr_jax.llm.abilities import Mixture, OnRows, Row, Watch
from pbr_jax.llm.engine import attention_mass as attending
from pbr_jax.llm.engine import mixtures, prefixes, scoring
from pbr_jax.llm.engine.local import (  # fmt: skip
    Ids,
    LocalModel,
    check_context,
    draw,
    groups,
    not_numbers,
)
from pbr_jax.llm.engine.prefill import PrefillEngine
from pbr_jax.llm.engine.sampling import arrays
from pbr_jax.llm.engine.workers import side_by_side
from pbr_jax.llm.protocol import Prompt, Sampling, TooLong

T = TypeVar("T")
Found = Iterator[list[tuple[int, Any]]]
"""Places of requests and what was found, as they are finished."""


class TokenLevel(LocalModel):
    """What `abilities.TokenLevel` asks for; `JaxLLM` adds whole answers."""

    @property
    @abc.abstractmethod
    def context(self) -> int:
        """Longest prompt plus answer, in tokens."""

    @property
    @abc.abstractmethod
    def _engines(self) -> list[PrefillEngine]:
        """One for each lane."""

    @abc.abstractmethod
    def _decoded(
        self, prompts: Sequence[Ids], names: Sequence[int], wanted: Sequence[bool], sampling: Sampling
    ) -> Found:
        """Places of prompts and their new tokens."""

    @property
    def _reader(self) -> PrefillEngine:
        return self._engines[0]

    def text(self, tokens: Sequence[int]) -> str:
        """The text of an answer's tokens, up to the first stop token."""
        return self._codec.decode(tokens)

    def beginning(self, target: str, tokens: int) -> str:
        """The text of a target's first tokens, as `token_scores` counts them."""
        return self._codec.tokenizer.decode(self._codec.encode_target(target)[:tokens])

    def ended(self, tokens: Sequence[int]) -> bool:
        """Whether an answer's last token ends it."""
        return bool(tokens) and tokens[-1] in self._codec.stops

    # --- how probable each token of an answer is ---------------------------------------------------

    def token_scores(
        self,
        prompts: Sequence[Prompt],
        targets: Sequence[str],
        *,
        done: Mapping[int, Row] | None = None,
        on_batch: OnRows | None = None,
    ) -> list[Row]:
        """log p of every token of each target; see `abilities.TokenScores`. Logits exist at target positions
        only, and equal pairs are computed once."""
        asked = self._encode_pairs(prompts, targets)
        lengths = [len(second) for _, second in asked]
        firsts, late = self._fit([a for a, _ in asked], lengths, self.context, "the target's length")
        every = [(first, second) for first, (_, second) in zip(firsts, asked)]
        empty: dict[int, Row] = {i: [] for i, (_, second) in enumerate(every) if not second}
        return self._each(every, late, empty | dict(done or {}), on_batch, self._scored)

    def _scored(self, pairs: Sequence[tuple[Ids, Ids]]) -> Found:
        most = min(self._reader.window, max(32, -(-len(pairs) // len(self._engines))))

        def work(engine: PrefillEngine, places: list[int]) -> Iterator[tuple[int, Row]]:
            found = scoring.log_probabilities(engine, [pairs[place] for place in places])
            if not all(np.isfinite(row).all() for row in found):
                raise not_numbers(self._path, self._dtype.name)
            yield from zip(places, (row.tolist() for row in found))

        return self._windowed(prefixes.windows([first + second for first, second in pairs], most), work)

    # --- answers that are led token by token -------------------------------------------------------

    def extend(
        self,
        requests: Sequence[Mixture],
        sampling: Sampling,
        *,
        done: Mapping[int, list[int]] | None = None,
        on_batch: OnRows | None = None,
    ) -> list[list[int]]:
        """Further tokens of each answer; see `abilities.TokenLevel`."""
        new = sampling.max_new_tokens
        every, late = [], {}
        for index, mixture in enumerate(requests):
            texts = [prompt + tuple(mixture.begun) for prompt in self._encode(mixture.prompts)]
            fitting, wrong = self._fit(texts, [new] * len(texts), self.context, "generate.max_new_tokens")
            every.append((tuple(fitting), mixture.weights))
            for error in (*wrong.values(), self._torn(index, fitting, new)):
                if error is not None:
                    late[index] = TooLong(index, error.reason)

        def compute(rows: Sequence[tuple[tuple[Ids, ...], tuple[float, ...]]]) -> Found:
            names = [draw(sum(prompts, ()), 0) for prompts, _ in rows]
            alone = [len(prompts) == 1 for prompts, _ in rows]
            single = [place for place, one in enumerate(alone) if one]
            prompts = [rows[place][0][0] for place in single]
            for found in (
                self._decoded(prompts, [names[place] for place in single], [True] * len(single), sampling)
                if single
                else ()
            ):
                yield [(single[place], tokens) for place, tokens in found]
            several = [place for place, one in enumerate(alone) if not one]
            yield from self._mixed(rows, several, names, sampling)

        return self._each(every, late, dict(done or {}), on_batch, compute)

    def _torn(self, index: int, prompts: Sequence[Ids], new: int) -> TooLong | None:
        """What is wrong with prompts on both sides of LongRoPE's original context."""
        original = self._reader.original
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
    ) -> Found:
        """Mixtures, batch by batch."""
        new, (choice, drawing) = sampling.max_new_tokens, arrays(self._codec.stops, sampling)
        sizes = [rows[place][0] for place in places]
        longest = max((len(prompt) for prompts in sizes for prompt in prompts), default=0)
        height = min(self._batch_size, self._reader.room(longest + new))
        height = 1 << (max(height, *map(len, sizes)) - 1).bit_length() if sizes else 1

        def work(engine: PrefillEngine, batch: list[int]) -> Iterator[tuple[int, list[int]]]:
            some = [places[i] for i in batch]
            long = engine.long(max(len(p) for place in some for p in rows[place][0]) + new)
            for i, tokens in mixtures.decode(
                engine, [rows[place][0] for place in some], [rows[place][1] for place in some],
                [names[place] for place in some], rows=height, new=new, choice=choice, sampling=drawing,
                long=long,
            ):  # fmt: skip
                if any(token < 0 for token in tokens):
                    raise not_numbers(self._path, self._dtype.name)
                yield some[i], tokens

        return self._windowed(mixtures.batches(sizes, height), work)

    # --- who attends to what -----------------------------------------------------------------------

    def attention(
        self,
        asked: Sequence[Watch],
        *,
        done: Mapping[int, list[Row]] | None = None,
        on_batch: OnRows | None = None,
    ) -> list[list[Row]]:
        """The attention that each token of each span gets; see `abilities.TokenLevel`."""
        every, late = [], {}
        for index, watch in enumerate(asked):
            ids, (where, *spans) = self._codec.locate(watch.messages, [watch.asked, *watch.spans])
            where = range(where.start, len(ids)) if watch.to_end else where
            self._check_known([tuple(ids)])
            every.append((tuple(ids), where, tuple(spans)))
            try:
                check_context(index, len(ids), 0, self.context, "", cuts=False)
            except TooLong as error:
                late[index] = error

        def compute(rows: Sequence[tuple[Ids, range, tuple[range, ...]]]) -> Found:
            def work(engine: PrefillEngine, places: list[int]) -> Iterator[tuple[int, list[Row]]]:
                for kind in groups([engine.long(len(rows[place][0])) for place in places]):
                    some = [places[i] for i in kind]
                    for i, got in attending.masses(engine, [rows[place][:2] for place in some]):
                        if not np.isfinite(got).all():
                            raise not_numbers(self._path, self._dtype.name)
                        spans = rows[some[i]][2]
                        yield some[i], [got[span.start : span.stop].tolist() for span in spans]

            return self._windowed(prefixes.windows([ids for ids, _, _ in rows], attending.TOGETHER), work)

        return self._each(every, late, dict(done or {}), on_batch, compute)

    # --- requests ----------------------------------------------------------------------------------

    def _each(
        self,
        every: Sequence[Any],
        late: Mapping[int, TooLong],
        found: dict[int, T],
        on_batch: OnRows | None,
        compute: Callable[[Sequence[Any]], Found],
    ) -> list[T]:
        """What is computed for each request that is not `found`; equal ones are computed once."""
        wanted = [
            group for group in groups(every) if group[0] not in late and any(i not in found for i in group)
        ]
        with interrupts.deferred():
            for some in compute([every[group[0]] for group in wanted]) if wanted else ():
                new = [(i, value) for place, value in some for i in wanted[place]]
                found.update(new)
                if on_batch is not None:
                    on_batch(*map(list, zip(*new)))
                interrupts.check()
        if unanswered := [late[index] for index in late if index not in found]:
            raise unanswered[0]
        return [found[index] for index in range(len(every))]

    def _windowed(
        self,
        windows: Sequence[list[int]],
        work: Callable[[PrefillEngine, list[int]], Iterator[tuple[int, Any]]],
    ) -> Found:
        """What each lane finds: it takes one window after another while there are any."""
        waiting = deque(windows)

        def lane(engine: PrefillEngine) -> Found:
            while True:
                try:
                    window = waiting.popleft()
                except IndexError:
                    return
                yield list(work(engine, window))

        return side_by_side([lane(engine) for engine in self._engines]) if windows else iter(())

"""T5 in this process: batched generation, beam search, scoring.

Prompts are sorted by length and cut into batches; a batch is padded on the right to a bucket, so that few
shapes are compiled.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from pbr_jax import interrupts, terminal
from pbr_jax import options as schema
from pbr_jax.llm.engine import t5_decoding
from pbr_jax.llm.engine.batching import bucket
from pbr_jax.llm.engine.local import Ids, LocalModel, check_beams, draw, groups, not_numbers
from pbr_jax.llm.engine.sampling import arrays
from pbr_jax.llm.protocol import OnBatch, OnScores, Prompt, Sampling, Score, TooLong, occurrences
from pbr_jax.models import adapter_file, pretrained, t5
from pbr_jax.types import Params

Answer = TypeVar("Answer", str, Score)


class T5LLM(LocalModel):
    """A T5 or FLAN-T5 model; see `protocol.LLM` for the methods.

    The encoder reads the prompt, the decoder writes the answer. `context`: longest prompt, and longest
    answer, in tokens. It may be more than the model says: T5 knows distances between tokens, not positions.
    """

    version = "t5 2"
    separate = True

    @functools.cached_property
    def _weights(self) -> tuple[t5.T5, Params, int]:
        terminal.doing(f"loading {self._path.name}", slow=True)
        model, params, config = t5.load(self._path, self._dtype, self._devices)
        if self._adapter is not None:
            params = adapter_file.tuned(self._adapter, t5.modules(config), params, outputs_first=False)
        self._check_unchanged()
        return model, params, config.start_id

    @property
    def vocabulary(self) -> int:
        """How many tokens the model has rows for."""
        return t5.read_config(self._path).vocab_size

    @functools.cached_property
    def context(self) -> int:
        """Longest prompt, and longest answer, in tokens."""
        return self._wanted_context or t5.read_config(self._path).context

    def generate(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        *,
        done: Mapping[int, str] | None = None,
        on_batch: OnBatch | None = None,
    ) -> list[str]:
        """One answer for each prompt. Equal prompts are computed once, unless they are sampled.

        Raises:
          TooLong: a prompt is over the context; what could be answered went to `on_batch`.
          UserError: a prompt that is empty; more beams than the vocabulary fills.
        """
        check_beams(sampling.num_beams, self._codec.stops, self.vocabulary)
        every = self._encode(prompts)
        more = [sampling.max_new_tokens] * len(every)
        ids, late = self._fit(every, more, self.context, "generate.max_new_tokens")
        draws = occurrences(prompts) if sampling.temperature else [0] * len(ids)
        choice, drawing = arrays(self._codec.stops, sampling)

        def decode(rows: Sequence[tuple[Ids, int]]) -> list[str]:
            model, params, start = self._weights
            read, mask = _pad([row for row, _ in rows], 32)
            names = np.array([draw(*row) for row in rows], np.uint32)
            tokens = t5_decoding.generate(
                params, read, mask, names, drawing, model=model, start=start, choice=choice,
                new=sampling.max_new_tokens, num_beams=sampling.num_beams,
            )  # fmt: skip
            return [self._decoded(row) for row in np.asarray(tokens).tolist()]

        rows = list(zip(ids, draws))
        return self._answer(rows, late, lambda row: (-len(row[0]),), decode, done, on_batch)

    def score(
        self,
        prompts: Sequence[Prompt],
        targets: Sequence[str],
        *,
        done: Mapping[int, Score] | None = None,
        on_batch: OnScores | None = None,
    ) -> list[Score]:
        """log p(target | prompt), teacher-forced, without the end token. Equal pairs are computed once.

        Raises:
          TooLong: a prompt or target is over the context; what could be scored went to `on_batch`.
          UserError: a prompt that is empty.
        """
        asked = self._encode_pairs(prompts, targets)
        lengths = [len(second) for _, second in asked]
        firsts, late = self._fit([a for a, _ in asked], lengths, self.context, "the target's length")
        pairs = [(first, second) for first, (_, second) in zip(firsts, asked)]

        def force(rows: Sequence[tuple[Ids, Ids]]) -> list[Score]:
            model, params, start = self._weights
            read, mask = _pad([first for first, _ in rows], 32)
            wanted, where = _pad([second for _, second in rows], 8)
            totals = np.asarray(
                t5_decoding.score(params, read, mask, wanted, where, model=model, start=start)
            )
            if not np.isfinite(totals).all():
                raise not_numbers(self._path, self._dtype.name)
            return [Score(total, len(second)) for total, (_, second) in zip(totals.tolist(), rows)]

        empty = {place: Score(0.0, 0) for place, (_, second) in enumerate(pairs) if not second}
        return self._answer(
            pairs, late, lambda row: (-len(row[0]), -len(row[1])), force, empty | dict(done or {}), on_batch
        )

    def _decoded(self, tokens: list[int]) -> str:
        """The answer; what follows its end means nothing."""
        end = next((place for place, token in enumerate(tokens) if token in self._codec.stops), len(tokens))
        if any(token < 0 for token in tokens[:end]):
            raise not_numbers(self._path, self._dtype.name)
        return self._codec.decode(tokens[:end])

    def _answer(
        self,
        rows: Sequence[Any],
        late: Mapping[int, TooLong],
        order: Callable[[Any], tuple[int, ...]],
        compute: Callable[[Sequence[Any]], list[Answer]],
        done: Mapping[int, Answer] | None,
        on_batch: Callable[[Sequence[int], Sequence[Answer]], None] | None,
    ) -> list[Answer]:
        """Computes equal rows once, in batches of like length, the longest first (so memory runs out early).

        What is in a batch depends on the whole list alone, and a batch is left out only when all of it is
        done: what was finished before changes no shape, so no rounding.
        """
        answers = dict(done or {})
        places = {rows[group[0]]: group for group in groups(rows) if group[0] not in late}
        distinct = sorted(places, key=order)
        for start in range(0, len(distinct), self._batch_size):
            batch = distinct[start : start + self._batch_size]
            missing = [[place for place in places[row] if place not in answers] for row in batch]
            if not any(missing):
                continue
            # Few numbers of rows are compiled; the copies' answers are not looked at.
            count = min(1 << (len(batch) - 1).bit_length(), self._batch_size)
            with interrupts.deferred():
                found = compute(batch + batch[-1:] * (count - len(batch)))
                new = {place: answer for some, answer in zip(missing, found) for place in some}
                answers |= new
                if on_batch is not None:
                    on_batch(list(new), list(new.values()))
        if unanswered := [late[index] for index in late if index not in answers]:
            raise unanswered[0]
        return [answers[place] for place in range(len(rows))]


def _pad(rows: Sequence[Ids], floor: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids [rows width] padded on the right with 0 to a bucket, and the mask of real ones."""
    width = bucket(max(map(len, rows)), floor)
    ids, mask = np.zeros((len(rows), width), np.int32), np.zeros((len(rows), width), bool)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = row
        mask[place, : len(row)] = True
    return ids, mask


def load(config: schema.LLM) -> T5LLM:
    """The model a config names."""
    return T5LLM(
        pretrained.locate(config.model),
        dtype=config.dtype,
        batch_size=config.batch_size,
        context=config.context,
        devices=config.tensor_parallel,
        overflow=config.overflow,
        date=config.date,
        adapter=Path(config.adapter) if config.adapter else None,
    )

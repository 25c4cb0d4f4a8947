"""The frozen language model in this process: generation and scoring at scale with a decoder-only model.

What prompts begin with in common is read once (`prefixes`, `reading`); answers are decoded continuously, so
that a finished row makes room for the next prompt (`decoding`). On a CPU each core works on its own share
of the prompts, which gets more done than cores that share every small operation.
"""

import functools
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

import jax
import numpy as np

from pbr_jax import options as schema
from pbr_jax.llm import beams, decoding, prefixes, reading
from pbr_jax.llm.lanes import side_by_side
from pbr_jax.llm.local import (
    Ids,
    LocalModel,
    check_beams,
    check_context,
    check_options,
    draw,
    groups,
    occurrences,
)
from pbr_jax.llm.protocol import OnBatch, OnScores, Prompt, Score
from pbr_jax.llm.reading import Reader, size
from pbr_jax.llm.sampling import Sampling, sampling
from pbr_jax.models import causal_lm, pretrained
from pbr_jax.types import UserError


class JaxLLM(LocalModel):
    """A decoder-only model. `batch_size`: prompts decoded together by each core of a CPU. `context`: longest
    prompt plus answer, in tokens."""

    version = "2"

    @functools.cached_property
    def context(self) -> int:
        """Longest prompt plus answer, in tokens."""
        limit = causal_lm.read_config(self._path).context
        wanted = self._wanted_context
        if wanted is not None and not 0 < wanted <= limit:
            raise UserError(f"llm.context is {wanted}; {self._path} was made for 1 to {limit} tokens")
        return wanted or limit

    @functools.cached_property
    def _lanes(self) -> int:
        """Shares of the work that are computed side by side: one a core on a CPU."""
        if self._devices > 1 or jax.devices()[0].platform != "cpu":
            return 1
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

    @functools.cached_property
    def _reader(self) -> Reader:
        model, params, config = causal_lm.load(self._path, self._dtype, self._devices)
        on_cpu = jax.devices()[0].platform == "cpu"
        return Reader(model.apply, params, config, tokens=1024 if on_cpu else 8192, one_core=self._lanes > 1)

    def generate(
        self,
        prompts: Sequence[Prompt],
        *,
        max_new_tokens: int,
        temperature: float = 0.0,
        top_p: float = 1.0,
        num_beams: int = 1,
        seed: int = 0,
        done: Mapping[int, str] | None = None,
        on_batch: OnBatch | None = None,
    ) -> list[str]:
        """One continuation for each prompt; see `protocol.LLM.generate`. Equal prompts decoded greedily
        are computed once."""
        check_options(max_new_tokens, temperature, top_p, num_beams)
        check_beams(num_beams, self._codec.stops, causal_lm.read_config(self._path).vocab_size)
        ids = self._encode(prompts)
        for index, prompt in enumerate(ids):
            check_context(index, len(prompt), max_new_tokens, self.context, "generate.max_new_tokens")
        texts = dict(done or {})
        rows = list(zip(ids, occurrences(ids) if temperature else [0] * len(ids)))
        same = groups(rows)
        wanted = [any(index not in texts for index in group) for group in same]
        if any(wanted):
            firsts = [ids[group[0]] for group in same]
            if num_beams > 1:
                works = [self._beams(firsts, wanted, num_beams, max_new_tokens)]
            else:
                choice, options = sampling(self._codec.stops, seed, temperature, top_p)
                names = [draw(*rows[group[0]]) for group in same]
                works = self._shares(firsts, names, wanted, decoding.Options(max_new_tokens, choice), options)
            for found in side_by_side(works):
                answers = [
                    (index, self._codec.decode(tokens)) for place, tokens in found for index in same[place]
                ]
                texts |= answers
                if on_batch is not None:
                    on_batch(*map(list, zip(*answers)))
        return [texts[index] for index in range(len(prompts))]

    def _beams(
        self, prompts: Sequence[Ids], wanted: Sequence[bool], num_beams: int, max_new_tokens: int
    ) -> Iterator[list[tuple[int, list[int]]]]:
        return beams.search(
            self._reader, prompts, wanted, self._codec.stops, batch_size=self._batch_size,
            num_beams=num_beams, max_new_tokens=max_new_tokens,
        )  # fmt: skip

    def _shares(
        self, prompts: Sequence[Ids], names: Sequence[int], wanted: Sequence[bool],
        options: decoding.Options, sampling: Sampling,
    ) -> list[Iterator[list[tuple[int, list[int]]]]]:  # fmt: skip
        """What each lane decodes: its part of the prompts of every width, the longest first."""
        classes = _classes([len(prompt) for prompt in prompts], 2 * self._batch_size)

        def work(lane: int) -> Iterator[list[tuple[int, list[int]]]]:
            for width, members in reversed(classes):
                members = sorted(members, key=lambda place: prompts[place])
                own = members[len(members) * lane // self._lanes : len(members) * (lane + 1) // self._lanes]
                if not any(wanted[place] for place in own):
                    continue
                rows = min(_power_of_two(len(own)), self._batch_size)
                for found in decoding.decode(
                    self._reader, [prompts[place] for place in own], [names[place] for place in own],
                    [wanted[place] for place in own], rows=rows, width=width, options=options,
                    sampling=sampling,
                ):  # fmt: skip
                    yield [(own[place], tokens) for place, tokens in found]

        _ = self._reader  # read before lanes ask for it together
        return [work(lane) for lane in range(self._lanes)]

    def score(
        self,
        prompts: Sequence[Prompt],
        targets: Sequence[str],
        *,
        done: Mapping[int, Score] | None = None,
        on_batch: OnScores | None = None,
    ) -> list[Score]:
        """log p(target | prompt); see `protocol.LLM.score`. Logits exist at target positions only, and
        equal pairs are computed once."""
        every = self._encode_pairs(prompts, targets)
        for index, (first, second) in enumerate(every):
            check_context(index, len(first), len(second), self.context, "the target's length")
        scores = {i: Score(0.0, 0) for i, (_, second) in enumerate(every) if not second} | dict(done or {})
        same = [group for group in groups(every) if any(i not in scores for i in group)]
        pairs = [every[group[0]] for group in same]
        for window, totals in side_by_side(self._windows(pairs)):
            found = [
                (i, Score(total, len(every[i][1])))
                for place, total in zip(window, totals)
                for i in same[place]
            ]
            scores |= found
            if on_batch is not None:
                on_batch(*map(list, zip(*found)))
        return [scores[index] for index in range(len(prompts))]

    def _windows(self, pairs: Sequence[tuple[Ids, Ids]]) -> list[Iterator[tuple[list[int], list[float]]]]:
        """What each lane scores: it takes one window after another while there are any."""
        most = min(prefixes.WINDOW, max(32, -(-len(pairs) // self._lanes)))
        waiting = deque(prefixes.windows([first + second for first, second in pairs], most))

        def work() -> Iterator[tuple[list[int], list[float]]]:
            while True:
                try:
                    window = waiting.popleft()
                except IndexError:
                    return
                yield window, log_probabilities(self._reader, [pairs[place] for place in window])

        _ = self._reader if pairs else None  # read before lanes ask for it together
        return [work() for _ in range(self._lanes)]


def log_probabilities(reader: Reader, pairs: Sequence[tuple[Ids, Ids]]) -> list[float]:
    """log p(second | first) of each pair, in nats; what the pairs begin with in common is read once.

    So are pairs that differ in their last token alone, such as a prompt with labels of one token.
    """
    # The last target token is predicted, never read.
    same = groups([(first, second[:-1]) for first, second in pairs])
    begun = [(pairs[group[0]][0], pairs[group[0]][1][:-1]) for group in same]
    tree = prefixes.tree([a + b for a, b in begun], [len(first) - 1 for first, _ in begun])
    pool, batches = reader.read(tree)
    score = reading.log_probabilities(reader.apply, reader.config.logit_cap, reader.one_core)
    totals = np.zeros(len(pairs))
    for batch in batches:
        scored = [(row, place) for row, member in enumerate(batch.members) for place in same[member]]
        targets = [pairs[place][1] for _, place in scored]
        lengths = list(map(len, targets))
        count = sum(lengths)
        rows, places, wanted = (np.zeros(size(count, 32), np.int32) for _ in range(3))
        rows[:count] = np.repeat([row for row, _ in scored], lengths)
        starts = [len(pairs[place][0]) - 1 - tree.leaves[batch.members[row]].start for row, place in scored]
        places[:count] = np.concatenate([start + np.arange(len(t)) for start, t in zip(starts, targets)])
        wanted[:count] = np.concatenate(targets)
        found = score(reader.params, pool, *batch.inputs, rows, places, wanted, tokens=batch.tokens)
        owners = np.repeat([place for _, place in scored], lengths)
        np.add.at(totals, owners, np.asarray(found, np.float64)[:count])
    return totals.tolist()


def _classes(lengths: Sequence[int], least: int) -> list[tuple[int, list[int]]]:
    """(width, places of the prompts that go into it), widths rising; few prompts join the next wider ones."""
    found: list[tuple[int, list[int]]] = []
    for place in sorted(range(len(lengths)), key=lambda place: (lengths[place], place)):
        width = reading.bucket(lengths[place], 32)
        if found and (found[-1][0] == width or len(found[-1][1]) < least):
            found[-1] = (width, [*found[-1][1], place])
        else:
            found.append((width, [place]))
    return found


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()


def load(config: schema.LLM) -> JaxLLM:
    """The model a config names."""
    return JaxLLM(
        pretrained.locate(config.model),
        dtype=config.dtype,
        batch_size=config.batch_size,
        context=config.context,
        devices=config.tensor_parallel,
    )

"""The frozen language model in this process: generation and scoring at scale with a decoder-only model.

What prompts begin with in common is read once (`prefixes`, `reading`); answers are decoded continuously, so
that a finished row makes room for the next prompt (`decoding`). On a CPU each core works on its own share
of the prompts, which gets more done than cores that share every small operation.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from pbr_jax import cores, interrupts, terminal
from pbr_jax import options as schema
from pbr_jax.llm.engine import batching as filling
from pbr_jax.llm.engine import beams, decoding
from pbr_jax.llm.engine.local import (
    Ids,
    check_beams,
    draw,
    groups,
    not_numbers,
)
from pbr_jax.llm.engine.prefill import PrefillEngine
from pbr_jax.llm.engine.sampling import arrays
from pbr_jax.llm.engine.token_level import TokenLevel
from pbr_jax.llm.engine.workers import side_by_side
from pbr_jax.llm.protocol import OnBatch, OnScores, Prompt, Sampling, Score, TooLong, occurrences
from pbr_jax.models import adapter_file, causal_lm, pretrained, sharding
from pbr_jax.models.causal_lm_config import CausalLMConfig
from pbr_jax.types import Params, UserError

Tokens = list[tuple[int, list[int]]]
"""Places of prompts and their new tokens."""

# Tokens of a batch, and bytes of keys and values that one may copy for its rows.
_CPU: dict[str, Any] = {"tokens": 1024, "memory": 2**29}
_ACCELERATOR: dict[str, Any] = {"tokens": 8192, "memory": 2**32, "ahead": 4}


class JaxLLM(TokenLevel):
    """A decoder-only model. `batch_size`: prompts decoded together by each core of a CPU. `context`: longest
    prompt plus answer, in tokens."""

    version = "3"

    @property
    def vocabulary(self) -> int:
        """How many tokens the model has rows for."""
        return causal_lm.read_config(self._path).vocab_size

    @property
    def context(self) -> int:
        """Longest prompt plus answer, in tokens."""
        return self._limit

    @functools.cached_property
    def _limit(self) -> int:
        limit = causal_lm.read_config(self._path).context
        wanted = self._wanted_context
        if wanted is not None and not 0 < wanted <= limit:
            raise UserError(f"llm.context is {wanted}; {self._path} was made for 1 to {limit} tokens")
        return wanted or limit

    @property
    def _engines(self) -> list[PrefillEngine]:
        return self._loaded

    @functools.cached_property
    def _loaded(self) -> list[PrefillEngine]:
        """One for each lane: work is computed side by side by the cores of a CPU, which share one model, or
        by accelerators, which have a copy each. Devices that share every layer are one lane."""
        terminal.doing(f"loading {self._path.name}", slow=True)
        model, params, config = causal_lm.load(self._path, self._dtype, self._devices)
        if self._adapter is not None:
            params = adapter_file.tuned(self._adapter, causal_lm.MODULES, params, outputs_first=True)
        self._check_unchanged()
        if self._devices > 1:
            return [PrefillEngine(model.apply, params, config, heads=self._head_axis(config), **_ACCELERATOR)]
        places = _replicas()
        if places is None:
            lanes = cores.count()
            return [PrefillEngine(model.apply, params, config, one_core=lanes > 1, **_CPU)] * lanes
        return [_replica(model.apply, params, config, device) for device in places]

    def _head_axis(self, config: CausalLMConfig) -> Callable[[int], jax.sharding.Sharding]:
        """Keys and values are divided as their heads are, from the start."""
        mesh = sharding.mesh(self._devices)
        divided = config.num_kv_heads % self._devices == 0
        return lambda axis: NamedSharding(
            mesh, PartitionSpec(*[None] * axis, "model") if divided else PartitionSpec()
        )

    def generate(
        self,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        *,
        done: Mapping[int, str] | None = None,
        on_batch: OnBatch | None = None,
    ) -> list[str]:
        """One continuation for each prompt; see `protocol.LLM.generate`. Equal prompts decoded greedily
        are computed once."""
        new, num_beams = sampling.max_new_tokens, sampling.num_beams
        check_beams(num_beams, self._codec.stops, self.vocabulary)
        every = self._encode(prompts)
        more = [new] * len(every)
        ids, late = self._fit(every, more, self.context, "generate.max_new_tokens")
        texts = dict(done or {})
        if num_beams > 1:
            late |= self._not_searched(ids, new)
        rows = list(zip(ids, occurrences(prompts) if sampling.temperature else [0] * len(ids)))
        same = [group for group in groups(rows) if group[0] not in late]
        wanted = [any(index not in texts for index in group) for group in same]
        if any(wanted):
            firsts = [ids[group[0]] for group in same]
            if num_beams > 1:
                found = self._beams(firsts, wanted, num_beams, new)
            else:
                names = [draw(*rows[group[0]]) for group in same]
                found = self._decoded(firsts, names, wanted, sampling)
            with interrupts.deferred():
                for some in found:
                    if any(token < 0 for _, tokens in some for token in tokens):
                        raise not_numbers(self._path, self._dtype.name)
                    answers = [
                        (index, self._codec.decode(tokens)) for place, tokens in some for index in same[place]
                    ]
                    texts |= answers
                    if on_batch is not None:
                        on_batch(*map(list, zip(*answers)))
                    interrupts.check()
        if unanswered := [late[index] for index in late if index not in texts]:
            raise unanswered[0]
        return [texts[index] for index in range(len(prompts))]

    def _not_searched(self, prompts: Sequence[Ids], new: int) -> dict[int, TooLong]:
        """Prompts from which beams would grow past LongRoPE's original context, where all is read again."""
        original = self._reader.original
        crossing = (
            () if original is None else (i for i, p in enumerate(prompts) if 0 <= original - len(p) < new)
        )
        return {
            index: TooLong(
                index,
                f"has {len(prompts[index])} tokens and {new} more follow, past the {original} from which on "
                "the model reads all positions anew, which beams cannot; set generate.num_beams 1",
            )
            for index in crossing
        }

    def _beams(
        self, prompts: Sequence[Ids], wanted: Sequence[bool], num_beams: int, max_new_tokens: int
    ) -> Iterator[list[tuple[int, list[int]]]]:
        return beams.search(
            self._reader, prompts, wanted, self._codec.stops, batch_size=self._batch_size,
            num_beams=num_beams, max_new_tokens=max_new_tokens,
        )  # fmt: skip

    def _decoded(
        self, prompts: Sequence[Ids], names: Sequence[int], wanted: Sequence[bool], sampling: Sampling
    ) -> Iterator[Tokens]:
        """Places of prompts and their new tokens, as they are finished."""
        original, most = self._reader.original, sampling.max_new_tokens
        if original is None:
            limits = [most] * len(prompts)
            yield from self._side_by_side(prompts, names, limits, wanted, sampling, None)
            return
        # LongRoPE: a text that grows past the original context is read again, as transformers does.
        limits = [min(most, original + 1 - len(prompt)) for prompt in prompts]
        short = [limit > 0 for limit in limits]
        begun: dict[int, list[int]] = {i: [] for i, first in enumerate(short) if wanted[i] and not first}
        for found in self._side_by_side(
            prompts,
            names,
            limits,
            [a and b for a, b in zip(wanted, short)],
            sampling,
            np.bool_(False),
        ):
            grown = {
                place: tokens
                for place, tokens in found
                if len(tokens) == limits[place] < most and tokens[-1] not in self._codec.stops
            }
            begun |= grown
            if ended := [(place, tokens) for place, tokens in found if place not in grown]:
                yield ended
        places = sorted(begun)
        longer = [(*prompts[place], *begun[place]) for place in places]
        for found in self._side_by_side(
            longer,
            [draw(ids, names[place]) for ids, place in zip(longer, places)],
            [most - len(begun[place]) for place in places],
            [True] * len(places),
            sampling,
            np.bool_(True),
        ):
            yield [(places[i], begun[places[i]] + tokens) for i, tokens in found]

    def _side_by_side(
        self, prompts: Sequence[Ids], names: Sequence[int], limits: Sequence[int], wanted: Sequence[bool],
        sampling: Sampling, long: np.bool_ | None,
    ) -> Iterator[Tokens]:  # fmt: skip
        """What each lane decodes: its part of the prompts of every width, the longest first."""
        classes = _classes([len(prompt) for prompt in prompts], 2 * self._batch_size)
        readers, new = self._engines, sampling.max_new_tokens
        choice, drawing = arrays(self._codec.stops, sampling)

        def work(lane: int) -> Iterator[Tokens]:
            for width, members in reversed(classes):
                members = sorted(members, key=lambda place: prompts[place])
                own = members[len(members) * lane // len(readers) : len(members) * (lane + 1) // len(readers)]
                if not any(wanted[place] for place in own):
                    continue
                room = _power_of_two(readers[lane].room(width + new) + 1) // 2
                most = -(-len(members) // len(readers))  # of any lane: they share their programs
                for found in decoding.decode(
                    readers[lane], [prompts[place] for place in own], [names[place] for place in own],
                    [limits[place] for place in own], [wanted[place] for place in own],
                    rows=min(_power_of_two(most), self._batch_size, room), width=width, new=new,
                    choice=choice, sampling=drawing, long=long,
                ):  # fmt: skip
                    if any(token < 0 for _, tokens in found for token in tokens):
                        raise not_numbers(self._path, self._dtype.name)
                    yield [(own[place], tokens) for place, tokens in found]

        return side_by_side([work(lane) for lane in range(len(readers))])

    def score(
        self,
        prompts: Sequence[Prompt],
        targets: Sequence[str],
        *,
        done: Mapping[int, Score] | None = None,
        on_batch: OnScores | None = None,
    ) -> list[Score]:
        """log p(target | prompt); see `protocol.LLM.score`."""
        known = dict(done or {})

        def tell(positions: Sequence[int], rows: Sequence[list[float]]) -> None:
            if on_batch is not None:
                on_batch(positions, [Score(sum(row), len(row)) for row in rows])

        rows = self.token_scores(prompts, targets, done={place: [] for place in known}, on_batch=tell)
        return [known.get(i, Score(sum(row), len(row))) for i, row in enumerate(rows)]


def _replicas() -> Sequence[Any] | None:
    """The accelerators that have a copy of the model each; None on a CPU."""
    found = jax.local_devices()
    return None if found[0].platform == "cpu" else found


def _replica(apply: Any, params: Params, config: CausalLMConfig, device: Any) -> PrefillEngine:
    here = SingleDeviceSharding(device)
    return PrefillEngine(apply, jax.device_put(params, here), config, heads=lambda axis: here, **_ACCELERATOR)


def _classes(lengths: Sequence[int], least: int) -> list[tuple[int, list[int]]]:
    """(width, places of the prompts that go into it), widths rising; few prompts join the next wider ones."""
    found: list[tuple[int, list[int]]] = []
    for place in sorted(range(len(lengths)), key=lambda place: (lengths[place], place)):
        width = filling.bucket(lengths[place], 32)
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
        overflow=config.overflow,
        date=config.date,
        adapter=Path(config.adapter) if config.adapter else None,
    )

"""The frozen language model in this process: generation and scoring at scale with a decoder-only model.

What prompts begin with in common is read once (`prefixes`, `prefill`); answers are decoded continuously, so
that a finished row makes room for the next prompt (`decoding`). On a CPU each core works on its own share
of the prompts, which gets more done than cores that share every small operation.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar, Unpack

import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pbr_jax.base import compilation, terminal
from pbr_jax.base.types import Params, UserError
from pbr_jax.llm.engine import beam_search, decoding, mixtures, prefixes, scoring
from pbr_jax.llm.engine.batching import bucket, power
from pbr_jax.llm.engine.local import (
    AnswerBatches,
    Ids,
    LocalModel,
    answer_each,
    draw,
    groups,
    replicas,
    too_long,
)
from pbr_jax.llm.engine.prefill import PrefillEngine
from pbr_jax.llm.engine.sampling import arrays
from pbr_jax.llm.engine.workers import shared_out, side_by_side
from pbr_jax.llm.protocol import (
    Mixture,
    PerToken,
    Progress,
    Prompt,
    Prompts,
    Sampling,
    Score,
    TooLong,
    Watch,
    listener,
)
from pbr_jax.llm.stop_strings import is_settled, settled
from pbr_jax.models import adapter_file, causal_lm
from pbr_jax.models.causal_lm_config import CausalLMConfig
from pbr_jax.models.sharding import copied

T = TypeVar("T")
W = TypeVar("W")

# Tokens of a batch, and bytes of keys and values that one may copy for its rows where devices do not say.
_CPU: dict[str, Any] = {"tokens": 1024, "memory": 2**29}
_ACCELERATOR: dict[str, Any] = {"tokens": 8192, "memory": 2**32, "ahead": 4}


class JaxLLM(LocalModel):
    """A decoder-only model, which can do all of `protocol.TokenLevel`. `batch_size`: prompts decoded together
    by each core of a CPU. `context`: longest prompt plus answer, in tokens."""

    version = "3"

    @property
    def vocabulary(self) -> int:
        return causal_lm.read_config(self._path).vocab_size

    @functools.cached_property
    def context(self) -> int:
        limit = causal_lm.read_config(self._path).context
        wanted = self._wanted_context
        if wanted is not None and not 0 < wanted <= limit:
            raise UserError(f"llm.context is {wanted}; {self._path} was made for 1 to {limit} tokens")
        return wanted or limit

    @functools.cached_property
    def _engines(self) -> list[PrefillEngine]:
        """One for each worker: a core of a CPU, where all share one model, or the devices that have a copy
        of their own and share its layers."""
        terminal.doing(f"loading {self._path.name}", slow=True)
        meshes = replicas(self._devices)
        model, params, config = causal_lm.load(self._path, self._dtype, meshes[0] if meshes else None)
        if self._adapter is not None:
            params = adapter_file.tuned(self._adapter, causal_lm.modules(config), params)
        self._check_unchanged()
        if meshes:
            return [_replica(model.apply, params, config, mesh) for mesh in meshes]
        workers = compilation.count()
        return [PrefillEngine(model.apply, params, config, one_core=workers > 1, **_CPU)] * workers

    def generate(self, prompts: Prompts, sampling: Sampling, **progress: Unpack[Progress]) -> list[str]:
        """One continuation for each prompt; see `protocol.LLM.generate`. Equal prompts decoded greedily
        are computed once."""
        requests, errors = self._requests(prompts, sampling)
        if sampling.num_beams > 1:
            errors |= self._not_searched([ids for ids, _ in requests], sampling.max_new_tokens)

        def compute(distinct: list[tuple[Ids, int]], wanted: list[bool]) -> AnswerBatches[str]:
            ids = [ids for ids, _ in distinct]
            if sampling.num_beams > 1:
                batches = self._searched(ids, wanted, sampling)
            else:
                tell = self._telling(dict(zip((ids for ids, _ in requests), prompts)), ids, sampling)
                batches = self._decoded(ids, [draw(*one) for one in distinct], wanted, sampling, tell)
            for batch in batches:
                yield [(place, self._text(tokens, sampling.stop)) for place, tokens in batch]

        return answer_each(requests, errors, compute, progress)

    def _telling(
        self, prompts: Mapping[Ids, Prompt], distinct: Sequence[Ids], sampling: Sampling
    ) -> Callable[[int, list[int]], None] | None:
        """Tells the listener around the caller, if there is one, what is settled of an answer's text."""
        on_text, times = listener(), Counter(distinct)
        if on_text is None or self._codec.thinks:
            return None

        def tell(place: int, tokens: list[int]) -> None:
            if times[distinct[place]] == 1:
                on_text(prompts[distinct[place]], settled(self._codec.decode(tokens), sampling.stop))

        return tell

    def _searched(
        self, prompts: Sequence[Ids], wanted: Sequence[bool], sampling: Sampling
    ) -> AnswerBatches[list[int]]:
        def work(engine: PrefillEngine, batch: beam_search.Batch) -> Iterator[tuple[int, list[int]]]:
            found = beam_search.search_prompts(engine, prompts, batch, self._codec.stops, sampling)
            yield from ((place, tokens) for place, tokens in found if wanted[place])

        batches = beam_search.batches(self._engine, prompts, wanted, sampling, self._batch_size)
        return self._windowed(batches, work, list(dict.fromkeys(self._engines)))

    def _not_searched(self, prompts: Sequence[Ids], new: int) -> dict[int, TooLong]:
        """Prompts from which beams would grow past LongRoPE's original context, where all is read again."""
        original = self._engine.original
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

    def _decoded(
        self,
        prompts: Sequence[Ids],
        names: Sequence[int],
        wanted: Sequence[bool],
        sampling: Sampling,
        tell: Callable[[int, list[int]], None] | None = None,
    ) -> AnswerBatches[list[int]]:
        original, most = self._engine.original, sampling.max_new_tokens
        if original is None:
            limits = [most] * len(prompts)
            yield from self._side_by_side(prompts, names, limits, wanted, sampling, tell=tell)
            return
        # LongRoPE: a text that grows past the original context is read again, as transformers does.
        limits = [min(most, original + 1 - len(prompt)) for prompt in prompts]
        short = [limit > 0 for limit in limits]
        begun: dict[int, list[int]] = {i: [] for i, first in enumerate(short) if wanted[i] and not first}
        fitting = [a and b for a, b in zip(wanted, short)]
        for batch in self._side_by_side(prompts, names, limits, fitting, sampling, long=np.bool_(False)):
            grown = {
                place: tokens
                for place, tokens in batch
                if len(tokens) == limits[place] < most and tokens[-1] not in self._codec.stops
            }
            begun |= grown
            if ended := [(place, tokens) for place, tokens in batch if place not in grown]:
                yield ended
        places = sorted(begun)
        longer = [(*prompts[place], *begun[place]) for place in places]
        names = [draw(ids, names[place]) for ids, place in zip(longer, places)]
        before = [begun[place] for place in places]
        limits = [most - len(tokens) for tokens in before]
        for batch in self._side_by_side(
            longer, names, limits, [True] * len(places), sampling, before, np.bool_(True)
        ):
            yield [(places[i], before[i] + tokens) for i, tokens in batch]

    def _side_by_side(
        self, prompts: Sequence[Ids], names: Sequence[int], limits: Sequence[int], wanted: Sequence[bool],
        sampling: Sampling, before: Sequence[list[int]] | None = None, long: np.bool_ | None = None,
        tell: Callable[[int, list[int]], None] | None = None,
    ) -> AnswerBatches[list[int]]:  # fmt: skip
        """What each worker decodes: its part of the prompts of every width, the longest first. `before`: what
        of each answer its prompt ends with. `tell` gets an answer's place and its tokens so far."""
        classes = _classes([len(prompt) for prompt in prompts], 2 * self._batch_size)
        engines, new = self._engines, sampling.max_new_tokens
        choice, drawing = arrays(self._codec.stops, sampling)

        def is_over(own: list[int], place: int, tokens: list[int]) -> bool:
            tokens = before[own[place]] + tokens if before else tokens
            if tell is not None:
                tell(own[place], tokens)
            return bool(sampling.stop) and is_settled(self._codec.decode(tokens), sampling.stop)

        def work(worker: int) -> AnswerBatches[list[int]]:
            for width, members in reversed(classes):
                members = sorted(members, key=lambda place: prompts[place])
                start, end = (len(members) * n // len(engines) for n in (worker, worker + 1))
                own = members[start:end]
                if not any(wanted[place] for place in own):
                    continue
                room = power(engines[worker].room(width + new) + 1, 1) // 2
                most = -(-len(members) // len(engines))  # of any worker: they share their programs
                for batch in decoding.decode(
                    engines[worker], [prompts[place] for place in own], [names[place] for place in own],
                    [limits[place] for place in own], [wanted[place] for place in own],
                    rows=min(power(most, 1), self._batch_size, room), width=width, new=new,
                    choice=choice, sampling=drawing, long=long,
                    is_over=functools.partial(is_over, own) if sampling.stop or tell else None,
                ):  # fmt: skip
                    yield [(own[place], tokens) for place, tokens in batch]

        return side_by_side([work(worker) for worker in range(len(engines))])

    def score(self, prompts: Prompts, targets: Sequence[str], **progress: Unpack[Progress]) -> list[Score]:
        """log p(target | prompt); see `protocol.LLM.score`."""
        known, on_batch = dict(progress.get("done") or {}), progress.get("on_batch")

        def report(positions: Sequence[int], rows: Sequence[list[float]]) -> None:
            if on_batch is not None:
                on_batch(positions, [Score(sum(row), len(row)) for row in rows])

        rows = self.token_scores(prompts, targets, done={place: [] for place in known}, on_batch=report)
        return [known.get(i, Score(sum(row), len(row))) for i, row in enumerate(rows)]

    @property
    def _engine(self) -> PrefillEngine:
        return self._engines[0]

    def text(self, tokens: Sequence[int]) -> str:
        return self._codec.decode(tokens)

    def beginning(self, target: str, tokens: int) -> str:
        return self._codec.tokenizer.decode(self._codec.encode_target(target)[:tokens])

    def ended(self, tokens: Sequence[int]) -> bool:
        return bool(tokens) and tokens[-1] in self._codec.stops

    def token_scores(
        self, prompts: Prompts, targets: Sequence[str], **progress: Unpack[Progress]
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
            if error := too_long(index, len(ids), 0, self.context, "", cuts=False):
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


def _replica(apply: Any, params: Params, config: CausalLMConfig, mesh: Mesh) -> PrefillEngine:
    """A copy of the model on the devices of a mesh; keys and values are divided as their heads are, from the
    start."""
    model = "model" if config.num_kv_heads % mesh.size == 0 else None

    def heads(axis: int) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*[None] * axis, model))

    return PrefillEngine(apply, copied(params, mesh), config, heads=heads, **_ACCELERATOR)


def _classes(lengths: Sequence[int], least: int) -> list[tuple[int, list[int]]]:
    """(width, places of the prompts that go into it), widths rising; few prompts join the next wider ones."""
    classes: list[tuple[int, list[int]]] = []
    for place in sorted(range(len(lengths)), key=lambda place: (lengths[place], place)):
        width = bucket(lengths[place], 32)
        if classes and (classes[-1][0] == width or len(classes[-1][1]) < least):
            classes[-1] = (width, [*classes[-1][1], place])
        else:
            classes.append((width, [place]))
    return classes


def _wanted_ones(
    compute: Callable[[list[Any]], AnswerBatches[T]],
) -> Callable[[list[Any], list[bool]], AnswerBatches[T]]:
    """For `answer_each`, a function that is given the wanted requests alone."""

    def wanted_ones(distinct: list[Any], wanted: list[bool]) -> AnswerBatches[T]:
        places = [place for place, one in enumerate(wanted) if one]
        for batch in compute([distinct[place] for place in places]):
            yield [(places[i], value) for i, value in batch]

    return wanted_ones

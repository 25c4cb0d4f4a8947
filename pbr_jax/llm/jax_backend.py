"""The frozen language model in this process: batched generation and scoring with a Llama-family model.

Prompts are sorted by length and cut into batches; a batch is padded on the right to a bucket, so that few
shapes are compiled. One compiled call reads the prompts and then decodes all rows together until each
has stopped.
"""

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt

from pbr_jax import config as schema
from pbr_jax.llm import chat
from pbr_jax.llm.protocol import OnBatch, OnScores, Prompt, Score
from pbr_jax.models import causal_lm, pretrained
from pbr_jax.types import Params, UserError

_VERSION = 1  # of how texts are computed; raise it when the same weights would give other texts
_SCORED_TOGETHER = 512  # target positions whose logits exist at once


class JaxLLM:
    """A Llama-family model read from a Hugging Face folder or a GGUF file.

    Creating one reads no weights: the tokenizer and the weights are read when first needed.
    """

    def __init__(
        self, path: Path, *, dtype: str = "float32", batch_size: int = 16, context: int | None = None
    ):
        """`context`: longest prompt plus answer in tokens; None: as the model says."""
        if batch_size < 1:
            raise UserError(f"llm.batch_size is {batch_size}; it must be at least 1")
        self._path = path
        self._dtype = jnp.dtype(dtype)
        self._batch_size = batch_size
        self._wanted_context = context

    @property
    def fingerprint(self) -> str:
        """Of weights, tokenizer, template, number format and this backend's version."""
        identity = f"{pretrained.fingerprint(self._path)} {self._dtype.name} {_VERSION}"
        return hashlib.sha256(identity.encode()).hexdigest()

    @functools.cached_property
    def _codec(self) -> chat.Codec:
        return chat.load(self._path)

    @functools.cached_property
    def _weights(self) -> tuple[Callable[..., causal_lm.Output], Params]:
        model, params, _ = causal_lm.load(self._path, self._dtype)
        return model.apply, params

    @functools.cached_property
    def context(self) -> int:
        """Longest prompt plus answer, in tokens."""
        limit = causal_lm.read_config(self._path).context
        wanted = self._wanted_context
        if wanted is not None and not 0 < wanted <= limit:
            raise UserError(f"llm.context is {wanted}; {self._path} was made for 1 to {limit} tokens")
        return wanted or limit

    def count(self, text: str) -> int:
        """Number of tokens of a text, no special tokens added."""
        return self._codec.count(text)

    def truncate(self, text: str, tokens: int) -> str:
        """The longest prefix of the text that has at most this many tokens."""
        return self._codec.truncate(text, tokens)

    def render(self, prompt: Prompt) -> str:
        """The text that the model reads."""
        return self._codec.render(prompt)

    def num_tokens(self, prompt: Prompt) -> int:
        """Number of tokens the model reads for this prompt."""
        return len(self._codec.encode(prompt))

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
        _check_sampling(max_new_tokens, temperature, top_p)
        ids = [tuple(self._codec.encode(prompt)) for prompt in prompts]
        self._check_lengths(ids, [max_new_tokens] * len(ids), "generate.max_new_tokens")
        texts: dict[int, str] = dict(done or {})
        options = _Options(max_new_tokens, temperature == 0, top_p < 1)
        for batch in plan(_groups(ids, merge=options.greedy), ids, self._batch_size):
            members = [index for group in batch for index in group]
            if all(index in texts for index in members):
                continue
            found = self._decode(
                [(group[0], ids[group[0]]) for group in batch], options, temperature, top_p, seed
            )
            answers = [text for group, text in zip(batch, found) for _ in group]
            texts.update(zip(members, answers))
            if on_batch is not None:
                on_batch(members, answers)
        return [texts[index] for index in range(len(prompts))]

    def _decode(
        self, rows: Sequence[tuple[int, tuple[int, ...]]], options: "_Options",
        temperature: float, top_p: float, seed: int,
    ) -> list[str]:  # fmt: skip
        apply, params = self._weights
        count = _power_of_two(len(rows), self._batch_size)
        ids, mask = _pad([row for _, row in rows], count, bucket(max(len(row) for _, row in rows)))
        places = np.zeros(count, np.uint32)
        places[: len(rows)] = [place for place, _ in rows]
        stops = np.array(sorted(self._codec.stops) or [-1], np.int32)
        tokens = _generate(
            params, ids, mask, places, stops, np.uint32(seed % 2**32), np.float32(temperature or 1.0),
            np.float32(top_p), apply=apply, options=options,
        )  # fmt: skip
        return [self._codec.decode(row) for row in np.asarray(tokens)[: len(rows)].tolist()]

    def score(
        self,
        prompts: Sequence[Prompt],
        targets: Sequence[str],
        *,
        done: Mapping[int, Score] | None = None,
        on_batch: OnScores | None = None,
    ) -> list[Score]:
        """log p(target | prompt); see `protocol.LLM.score`. Logits exist at target positions only."""
        if len(prompts) != len(targets):
            raise ValueError(f"{len(prompts)} prompts for {len(targets)} targets; one target each is needed")
        firsts = [tuple(self._codec.encode(prompt)) for prompt in prompts]
        seconds = [tuple(self._codec.encode_target(target)) for target in targets]
        self._check_lengths(firsts, [len(second) for second in seconds], "the target's length")
        whole = [first + second for first, second in zip(firsts, seconds)]
        scores = {index: Score(0.0, 0) for index, second in enumerate(seconds) if not second}
        pairs = list(zip(firsts, seconds))
        groups = [group for group in _groups(pairs, merge=True) if group[0] not in scores]
        for batch in plan(groups, whole, self._batch_size):
            sums = self._sum([pairs[group[0]] for group in batch])
            for group, total in zip(batch, sums):
                scores |= {index: Score(total, len(seconds[group[0]])) for index in group}
        return [scores[index] for index in range(len(prompts))]

    def _sum(self, pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...]]]) -> list[float]:
        apply, params = self._weights
        count = _power_of_two(len(pairs), self._batch_size)
        # The last target token is predicted, never read.
        read = [first + second[:-1] for first, second in pairs]
        ids, mask = _pad(read, count, bucket(max(map(len, read))))
        targets, where = _pad(
            [second for _, second in pairs], count, bucket(max(len(t) for _, t in pairs), 8)
        )
        starts = np.zeros(count, np.int32)
        starts[: len(pairs)] = [len(first) - 1 for first, _ in pairs]
        totals = _score(params, ids, mask, starts, targets, where, apply=apply)
        return np.asarray(totals)[: len(pairs)].astype(float).tolist()

    def _check_lengths(self, prompts: Sequence[Sequence[int]], following: Sequence[int], name: str) -> None:
        for index, (ids, new) in enumerate(zip(prompts, following)):
            if not ids:
                raise UserError(f"prompt {index} is empty; a model needs at least one token to continue")
            if len(ids) + new > self.context:
                raise UserError(
                    f"prompt {index} has {len(ids)} tokens and {new} more follow, over the context of "
                    f"{self.context}; lower prompt.max_tokens or {name}, or raise llm.context"
                )


class _Options(NamedTuple):
    """What is compiled into the decoding loop."""

    max_new_tokens: int
    greedy: bool
    nucleus: bool


def _check_sampling(max_new_tokens: int, temperature: float, top_p: float) -> None:
    if max_new_tokens < 1:
        raise UserError(f"generate.max_new_tokens is {max_new_tokens}; it must be at least 1")
    if not 0 <= temperature < float("inf"):
        raise UserError(f"generate.temperature is {temperature}; it must be 0 (greedy) or a positive number")
    if not 0 < top_p <= 1:
        raise UserError(f"generate.top_p is {top_p}; it must be above 0 and at most 1")


def _groups(items: Sequence[Any], *, merge: bool) -> list[list[int]]:
    """Positions of equal items together, in order of first appearance; or every position alone."""
    if not merge:
        return [[index] for index in range(len(items))]
    groups: dict[Any, list[int]] = {}
    for index, item in enumerate(items):
        groups.setdefault(item, []).append(index)
    return list(groups.values())


def plan(
    groups: Sequence[Sequence[int]], ids: Sequence[Sequence[int]], batch_size: int
) -> list[list[Sequence[int]]]:
    """Groups of equal prompts in batches of like length, the longest first (so memory runs out early).

    A function of the whole list alone: what was finished before does not move a batch's borders.
    """
    order = sorted(groups, key=lambda group: (-len(ids[group[0]]), group[0]))
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def bucket(length: int, floor: int = 32) -> int:
    """The padded length: a multiple of an eighth of its power of two, at least of `floor`.

    So no more than an eighth is padding beyond short texts, and an octave costs eight compilations.
    """
    step = max(floor, 2 ** (length.bit_length() - 1) // 8)
    return -(-length // step) * step


def _power_of_two(count: int, limit: int) -> int:
    """Rows of a batch: few sizes are compiled, and one question does not pay for a whole batch."""
    return min(1 << (count - 1).bit_length(), limit)


def _pad(rows: Sequence[Sequence[int]], count: int, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Ids [count width] padded on the right with 0, and the mask of real ones; rows in excess are empty."""
    ids, mask = np.zeros((count, width), np.int32), np.zeros((count, width), bool)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = row
        mask[place, : len(row)] = True
    return ids, mask


class _State(NamedTuple):
    """The decoding loop: `tokens[:, :step]` are chosen, the last of them is not read yet."""

    step: Int[Array, ""]
    tokens: Int[Array, "b n"]
    finished: Bool[Array, "b"]
    past: causal_lm.Past


@functools.partial(jax.jit, static_argnames=("apply", "options"))
def _generate(
    params: Params,
    ids: Int[Array, "b t"],
    mask: Bool[Array, "b t"],
    places: UInt[Array, "b"],
    stops: Int[Array, "m"],
    seed: UInt[Array, ""],
    temperature: Float[Array, ""],
    top_p: Float[Array, ""],
    *,
    apply: Callable[..., causal_lm.Output],
    options: _Options,
) -> Int[Array, "b n"]:
    """Reads the prompts, then decodes until every row has stopped or has n tokens.

    New tokens take slots t, t + 1, ... in all rows, whatever the length of the prompt: positions and
    mask say what a slot means. A row that has stopped keeps computing; its tokens are not used.
    """
    (rows, width), n = ids.shape, options.max_new_tokens
    lengths = mask.sum(axis=1)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), places)
    choose = functools.partial(_choose, keys=keys, temperature=temperature, top_p=top_p, options=options)

    def body(state: _State) -> _State:
        last = jax.lax.dynamic_slice_in_dim(state.tokens, state.step - 1, 1, axis=1)
        positions = (lengths + state.step - 1)[:, None]
        output = apply(params, last, positions, state.past)
        chosen = choose(causal_lm.logits(params, output.hidden[:, 0]), step=state.step)
        tokens = jax.lax.dynamic_update_slice_in_dim(state.tokens, chosen[:, None], state.step, axis=1)
        past = _append(state.past, output, width + state.step - 1, positions[:, 0])
        return _State(state.step + 1, tokens, state.finished | jnp.isin(chosen, stops), past)

    places = jnp.where(mask, jnp.arange(width)[None, :], -1)
    output = apply(params, ids, places)
    hidden = output.hidden[jnp.arange(rows), jnp.maximum(lengths - 1, 0)]
    chosen = choose(causal_lm.logits(params, hidden), step=jnp.int32(0))
    slots = ((0, 0), (0, 0), (0, 0), (0, n - 1), (0, 0))
    past = causal_lm.Past(
        jnp.pad(output.keys, slots), jnp.pad(output.values, slots),
        jnp.pad(places, ((0, 0), (0, n - 1)), constant_values=-1),
    )
    tokens = jnp.zeros((rows, n), jnp.int32).at[:, 0].set(chosen)
    finished = jnp.isin(chosen, stops) | (lengths == 0)
    state = _State(jnp.int32(1), tokens, finished, past)
    state = jax.lax.while_loop(lambda s: (s.step < n) & ~s.finished.all(), body, state)
    # Beyond the last step nothing was chosen; rows that are finished hold a stop token before that.
    return state.tokens


def _append(
    past: causal_lm.Past, output: causal_lm.Output, slot: Int[Array, ""], place: Int[Array, "b"]
) -> causal_lm.Past:
    """One token's keys and values written into a slot of every row and layer."""
    start = (0, 0, 0, slot, 0)
    return causal_lm.Past(
        jax.lax.dynamic_update_slice(past.keys, output.keys, start),
        jax.lax.dynamic_update_slice(past.values, output.values, start),
        past.positions.at[:, slot].set(place),
    )


def _choose(
    logits: Float[Array, "b v"],
    *,
    step: Int[Array, ""],
    keys: Array,
    temperature: Float[Array, ""],
    top_p: Float[Array, ""],
    options: _Options,
) -> Int[Array, "b"]:
    """The next token of each row. Randomness depends on the row's own key and the step only."""
    if options.greedy:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    logits = logits / temperature
    keys = jax.vmap(jax.random.fold_in, (0, None))(keys, step)
    if not options.nucleus:
        return jax.vmap(jax.random.categorical)(keys, logits).astype(jnp.int32)
    order = jnp.argsort(logits, axis=-1, descending=True)
    logits = jnp.take_along_axis(logits, order, axis=-1)
    probabilities = jax.nn.softmax(logits, axis=-1)
    # Kept while the mass before a token is below top_p: the smallest set that reaches it, never empty.
    before = jnp.cumsum(probabilities, axis=-1) - probabilities
    rank = jax.vmap(jax.random.categorical)(keys, jnp.where(before < top_p, logits, -jnp.inf))
    return jnp.take_along_axis(order, rank[:, None], axis=-1)[:, 0].astype(jnp.int32)


@functools.partial(jax.jit, static_argnames=("apply",))
def _score(
    params: Params,
    ids: Int[Array, "b t"],
    mask: Bool[Array, "b t"],
    starts: Int[Array, "b"],
    targets: Int[Array, "b n"],
    where: Bool[Array, "b n"],
    *,
    apply: Callable[..., causal_lm.Output],
) -> Float[Array, "b"]:
    """Sum of log-probabilities of each row's targets; the first is predicted at position `starts`."""
    width, (rows, n) = ids.shape[1], targets.shape
    hidden = apply(params, ids, jnp.where(mask, jnp.arange(width)[None, :], -1)).hidden
    places = jnp.minimum(starts[:, None] + jnp.arange(n)[None, :], width - 1)
    hidden = jnp.take_along_axis(hidden, places[:, :, None], axis=1)

    def log_probability(pair: tuple[Array, Array]) -> Array:
        state, target = pair
        row = causal_lm.logits(params, state)
        return row[target] - jax.nn.logsumexp(row)

    pairs = hidden.reshape(rows * n, -1), targets.reshape(rows * n)
    found = jax.lax.map(log_probability, pairs, batch_size=_SCORED_TOGETHER).reshape(rows, n)
    return jnp.where(where, found, 0).sum(axis=1)


@functools.lru_cache(maxsize=4)
def load(config: schema.LLM) -> JaxLLM:
    """The model a config names; the same object for the same config."""
    return JaxLLM(
        pretrained.locate(config.model),
        dtype=config.dtype,
        batch_size=config.batch_size,
        context=config.context,
    )

"""Beam search over any model that decodes a token at a time, as one function that compiles.

The model is a pure `step`; its caches are a tree of arrays that `reorder` rearranges when beams change
places.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from pbr_jax.base.types import Params
from pbr_jax.llm.engine.batching import bucket
from pbr_jax.llm.engine.prefill import PrefillEngine, padded
from pbr_jax.llm.protocol import Sampling
from pbr_jax.models import causal_lm
from pbr_jax.models.causal_lm import Past

Step = Callable[[Any, Any, Int[Array, "r"]], tuple[Float[Array, "r v"], Any]]
"""`step(fixed, state, tokens) -> (logits, state)`: reads one token in each row."""

Reorder = Callable[[Any, Int[Array, "r"]], Any]
"""`reorder(state, index) -> state`: row i of the result is row `index[i]` of the state given."""


class Best(NamedTuple):
    """The best continuation of each prompt: up to a stop token (included), or n tokens. What follows a
    stop token means nothing; -1 where logits were not numbers. `scores` are their log-probabilities per
    token."""

    tokens: Int[Array, "b n"]
    scores: Float[Array, "b"]


class _Beams(NamedTuple):
    """Sequences and scores, best first: sums of log-probabilities while they run, means once they ended."""

    tokens: Int[Array, "b k n"]
    scores: Float[Array, "b k"]


class _Search(NamedTuple):
    length: Int[Array, ""]  # tokens of the running beams
    running: _Beams
    ended: _Beams  # minus infinity where fewer than k have ended
    open: Bool[Array, "b"]  # a running beam may still beat an ended one
    sound: Bool[Array, "b"]  # all logits so far were numbers
    state: Any


@functools.partial(jax.jit, static_argnames=("step", "reorder", "num_beams", "max_new_tokens"))
def beam_search(
    fixed: Any,
    state: Any,
    first: Float[Array, "b v"],
    stops: Int[Array, "m"],
    *,
    step: Step,
    reorder: Reorder,
    num_beams: int,
    max_new_tokens: int,
) -> Best:
    """The most probable continuations, per token, that a search with k = `num_beams` beams finds.

    Of the k best extensions of a prompt's running beams, those that end in a stop token (at the last step,
    all) join the ended ones, of which the k with the best mean log-probability over new tokens are kept; the
    k best that do not stop run on. A prompt is finished when its best running beam has a lower mean than the
    worst of k ended ones. The same as Hugging Face's `generate` with `length_penalty=1.0,
    early_stopping=False`.

    Args:
      fixed: what every step reads and none changes: weights, keys and values of an encoder.
      state: what the model remembers of the prompts, b rows; `reorder` gives each k rows next to each other.
      first: logits of the first new token, after the prompts.
      stops: ids that end a continuation. The vocabulary has at least (m + 1) k tokens.
      step: reads a token in each of b k rows; static, so give the same function every time.
      reorder: as above.
      num_beams: k.
      max_new_tokens: n, the most tokens of a continuation, the stop token included.

    Reference: Sutskever et al., https://arxiv.org/abs/1409.3215, 2014, section 3.2.
    """
    b, k = first.shape[0], num_beams
    advance = functools.partial(_advance, stops=stops, reorder=reorder, num_beams=k)

    def body(search: _Search) -> _Search:
        last = jax.lax.dynamic_index_in_dim(search.running.tokens, search.length - 1, axis=2, keepdims=False)
        rows, state = step(fixed, search.state, last.reshape(b * k))
        return advance(search._replace(state=state), rows.reshape(b, k, -1))

    nothing = jnp.zeros((b, k, max_new_tokens), jnp.int32)
    prompts = _Beams(nothing[:, :1], jnp.zeros((b, 1), jnp.float32))
    ended = _Beams(nothing, jnp.full((b, k), -jnp.inf))
    yes = jnp.ones(b, bool)
    search = advance(_Search(jnp.int32(0), prompts, ended, yes, yes, state), first[:, None])
    search = jax.lax.while_loop(lambda s: (s.length < max_new_tokens) & s.open.any(), body, search)
    tokens = jnp.where(search.sound[:, None], search.ended.tokens[:, 0], -1)
    return Best(tokens, search.ended.scores[:, 0])


def _advance(
    search: _Search,
    logits: Float[Array, "b j v"],
    *,
    stops: Int[Array, "m"],
    reorder: Reorder,
    num_beams: int,
) -> _Search:
    """One token more. The j running beams are one (the prompt itself) at first and k later."""
    (b, j, v), k, length = logits.shape, num_beams, search.length + 1
    totals = search.running.scores[:, :, None] + jax.nn.log_softmax(logits.astype(jnp.float32), axis=-1)
    # Each beam has at most m extensions that stop, so k that do not are among these.
    scores, place = jax.lax.top_k(totals.reshape(b, j * v), (len(stops) + 1) * k)
    parent, token = place // v, (place % v).astype(jnp.int32)
    tokens = jnp.take_along_axis(search.running.tokens, parent[:, :, None], axis=1)
    tokens = jax.lax.dynamic_update_slice_in_dim(tokens, token[:, :, None], search.length, axis=2)
    stopped = jnp.isin(token, stops)

    eligible = (stopped | (length == tokens.shape[2])) & search.open[:, None]
    eligible &= (jnp.arange(scores.shape[1]) < k)[None, :]
    means = jnp.concatenate([search.ended.scores, jnp.where(eligible, scores / length, -jnp.inf)], axis=1)
    ended, _ = _best(_Beams(jnp.concatenate([search.ended.tokens, tokens], axis=1), means), k)

    running, chosen = _best(_Beams(tokens, jnp.where(stopped, -jnp.inf, scores)), k)
    rows = jnp.arange(b)[:, None] * j + jnp.take_along_axis(parent, chosen, axis=1)
    sound = search.sound & ~(search.open & jnp.isnan(logits).any(axis=(1, 2)))
    still = search.open & sound & (running.scores[:, 0] / length > ended.scores[:, -1])
    return _Search(length, running, ended, still, sound, reorder(search.state, rows.reshape(b * k)))


def _best(beams: _Beams, k: int) -> tuple[_Beams, Int[Array, "b k"]]:
    scores, place = jax.lax.top_k(beams.scores, k)
    return _Beams(jnp.take_along_axis(beams.tokens, place[:, :, None], axis=1), scores), place


# -- with a decoder-only model: prompts are read once, and their beams share what was read -------------------

_New = tuple[Past, Int[Array, ""]]  # of the chosen tokens, and how many of its slots are full


class Batch(NamedTuple):
    """Prompts that are searched together, as `height` rows."""

    members: list[int]
    height: int


def batches(
    engine: PrefillEngine,
    prompts: Sequence[tuple[int, ...]],
    wanted: Sequence[bool],
    sampling: Sampling,
    batch_size: int,
) -> list[Batch]:
    """The longest prompts first. Batches depend on all prompts and not on which are `wanted`; those with no
    wanted prompt are left out."""
    num_beams, new = sampling.num_beams, sampling.max_new_tokens
    order = sorted(range(len(prompts)), key=lambda place: (-len(prompts[place]), place))
    found, start = list[Batch](), 0
    while start < len(order):
        width = bucket(len(prompts[order[start]]), 32)
        room = engine.room(num_beams * (width + new))
        height = min(max(1, batch_size // num_beams), 1 << (room.bit_length() - 1))
        found.append(Batch(order[start : start + height], height))
        start += height
    return [batch for batch in found if any(wanted[place] for place in batch.members)]


def search_prompts(
    engine: PrefillEngine,
    prompts: Sequence[tuple[int, ...]],
    batch: Batch,
    stops: frozenset[int],
    sampling: Sampling,
) -> list[tuple[int, list[int]]]:
    """(Place of the prompt, tokens of its best beam) of each prompt of a batch."""
    num_beams, new = sampling.num_beams, sampling.max_new_tokens
    ends = jnp.asarray(np.array(sorted(stops) or [-1], np.int32))
    rows = [prompts[place] for place in batch.members]
    ids, positions = padded(rows, [0] * len(rows), batch.height, bucket, 32)
    held, first, past = _read(engine.apply)(
        engine.params, ids, positions, num_beams=num_beams, max_new_tokens=new, cap=engine.config.logit_cap
    )
    best = beam_search(
        (engine.params, held), past, first, ends, step=_step(engine.apply, engine.config.logit_cap),
        reorder=_reorder, num_beams=num_beams, max_new_tokens=new,
    )  # fmt: skip
    return list(zip(batch.members, np.asarray(best.tokens).tolist()))


@functools.lru_cache(maxsize=8)
def _read(apply: Callable[..., causal_lm.Output]) -> Any:
    """The prompts' past, repeated for their beams; logits of the first new token; room for new ones."""

    def read(
        params: Params,
        ids: Int[Array, "b t"],
        positions: Int[Array, "b t"],
        *,
        num_beams: int,
        max_new_tokens: int,
        cap: float | None,
    ) -> tuple[tuple[Past, Int[Array, "r"]], Float[Array, "b v"], _New]:
        output = apply(params, ids, positions)
        lengths = positions.max(axis=1) + 1
        held = Past(
            jnp.repeat(output.keys, num_beams, axis=1),
            jnp.repeat(output.values, num_beams, axis=1),
            jnp.repeat(positions, num_beams, axis=0),
        )
        room = jnp.zeros((*output.keys.shape[:3], max_new_tokens, output.keys.shape[4]), output.keys.dtype)
        new = Past(room, room, jnp.full((ids.shape[0], max_new_tokens), -1, jnp.int32)), jnp.int32(0)
        last = jnp.maximum(lengths - 1, 0)[:, None, None]
        hidden = jnp.take_along_axis(output.hidden, last, axis=1)[:, 0]
        return (held, jnp.repeat(lengths, num_beams)), causal_lm.logits(params, hidden, cap), new

    return jax.jit(read, static_argnames=("num_beams", "max_new_tokens", "cap"))


@functools.lru_cache(maxsize=8)
def _step(apply: Callable[..., causal_lm.Output], cap: float | None) -> Any:
    """One token in every beam; the same function for the same model, as compilation wants it."""

    def step(
        fixed: tuple[Params, tuple[Past, Int[Array, "r"]]], state: _New, tokens: Int[Array, "r"]
    ) -> tuple[Float[Array, "r v"], _New]:
        (params, (held, lengths)), (new, count) = fixed, state
        positions = (lengths + count)[:, None]
        output = apply(params, tokens[:, None], positions, (held, new))
        new = Past(
            jax.lax.dynamic_update_slice_in_dim(new.keys, output.keys, count, axis=3),
            jax.lax.dynamic_update_slice_in_dim(new.values, output.values, count, axis=3),
            jax.lax.dynamic_update_slice_in_dim(new.positions, positions, count, axis=1),
        )
        return causal_lm.logits(params, output.hidden[:, 0], cap), (new, count + 1)

    return step


def _reorder(state: _New, index: Int[Array, "r"]) -> _New:
    new, count = state
    return Past(new.keys[:, index], new.values[:, index], new.positions[index]), count

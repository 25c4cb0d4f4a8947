"""What of T5 is compiled: one call encodes a batch of prompts, computes what the decoder reads of them once,
and decodes all rows together until each has stopped, or scores given targets."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt

from pbr_jax.base.types import Params
from pbr_jax.llm.engine.beam_search import beam_search
from pbr_jax.llm.engine.sampling import Choice, SamplingArrays, choose
from pbr_jax.losses.language_model import token_cross_entropy
from pbr_jax.models import t5

_SCORED_TOGETHER = 512  # target positions whose logits exist at once


class _State(NamedTuple):
    """The sampling loop: `tokens[:, :step]` are chosen; `logits` are those of the next."""

    step: Int[Array, ""]
    tokens: Int[Array, "b n"]
    finished: Bool[Array, "b"]
    logits: Float[Array, "b v"]
    past: t5.Past


@functools.partial(jax.jit, static_argnames=("model", "start", "new", "choice", "num_beams"))
def generate(
    params: Params,
    ids: Int[Array, "b s"],
    mask: Bool[Array, "b s"],
    names: UInt[Array, "b"],
    sampling: SamplingArrays,
    *,
    model: t5.T5,
    start: int,
    new: int,
    choice: Choice,
    num_beams: int,
) -> Int[Array, "b n"]:
    """Encodes the prompts, then decodes until every row has stopped or has n tokens."""
    n, rows = new, ids.shape[0]
    fixed = params, model.cross(params, model.encode(params, ids, mask), mask)
    read = functools.partial(read_token, model=model)
    first, past = read(fixed, slots(fixed[1], n), jnp.full(rows, start, jnp.int32))
    if num_beams > 1:
        return beam_search(
            fixed, past, first, sampling.stops, step=read, reorder=reorder, num_beams=num_beams,
            max_new_tokens=n,
        ).tokens  # fmt: skip

    def add(state: _State) -> _State:
        chosen = choose(state.logits, jnp.full(rows, state.step), names, sampling, choice)
        tokens = jax.lax.dynamic_update_slice_in_dim(state.tokens, chosen[:, None], state.step, axis=1)
        return state._replace(
            step=state.step + 1, tokens=tokens, finished=state.finished | jnp.isin(chosen, sampling.stops)
        )

    def body(state: _State) -> _State:
        last = jax.lax.dynamic_index_in_dim(state.tokens, state.step - 1, axis=1, keepdims=False)
        logits, past = read(fixed, state.past, last)
        return add(state._replace(logits=logits, past=past))

    tokens = jnp.zeros((rows, n), jnp.int32)
    state = add(_State(jnp.int32(0), tokens, jnp.zeros(rows, bool), first, past))
    state = jax.lax.while_loop(lambda s: (s.step < n) & ~s.finished.all(), body, state)
    # Beyond the last step nothing was chosen; rows that are finished hold a stop token before that.
    return state.tokens


def slots(cross: t5.Cross, n: int) -> t5.Past:
    """An empty past with room for n tokens of every row."""
    empty = jnp.zeros((*cross.keys.shape[:3], n, cross.keys.shape[4]), cross.keys.dtype)
    return t5.Past(empty, empty, jnp.int32(0))


def read_token(
    fixed: tuple[Params, t5.Cross], past: t5.Past, tokens: Int[Array, "r"], *, model: t5.T5
) -> tuple[Float[Array, "r v"], t5.Past]:
    """One token read in every row, its keys and values written into the next slot: a `beam_search.Step`."""
    params, cross = fixed
    output = model.decode(params, tokens[:, None], cross, past)
    place = (0, 0, 0, past.length, 0)
    keys = jax.lax.dynamic_update_slice(past.keys, output.keys, place)
    values = jax.lax.dynamic_update_slice(past.values, output.values, place)
    return t5.logits(params, output.hidden[:, 0]), t5.Past(keys, values, past.length + 1)


def reorder(past: t5.Past, index: Int[Array, "r"]) -> t5.Past:
    return t5.Past(past.keys[:, index], past.values[:, index], past.length)


@functools.partial(jax.jit, static_argnames=("model", "start"))
def score(
    params: Params,
    ids: Int[Array, "b s"],
    mask: Bool[Array, "b s"],
    targets: Int[Array, "b t"],
    where: Bool[Array, "b t"],
    *,
    model: t5.T5,
    start: int,
) -> Float[Array, "b"]:
    """Sum of log-probabilities of each row's targets; the vocabulary is multiplied out block by block."""
    hidden = model.apply(params, ids, mask, t5.shift_right(targets, where, start))

    def loss(position: tuple[Array, Array, Array]) -> Array:
        state, target, counts = position
        return token_cross_entropy(t5.logits(params, state), target, where=counts)

    flat = hidden.reshape(-1, hidden.shape[-1]), targets.ravel(), where.ravel()
    losses = jax.lax.map(loss, flat, batch_size=_SCORED_TOGETHER)
    return -losses.reshape(targets.shape).sum(axis=1)

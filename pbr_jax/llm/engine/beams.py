"""Beam search with a decoder-only model: prompts are read once, and their beams share what was read."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pbr_jax.base.types import Params
from pbr_jax.llm.engine.batching import bucket
from pbr_jax.llm.engine.beam_search import beam_search
from pbr_jax.llm.engine.prefill import PrefillEngine, padded
from pbr_jax.llm.protocol import Sampling
from pbr_jax.models import causal_lm
from pbr_jax.models.causal_lm import Past

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


def search(
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

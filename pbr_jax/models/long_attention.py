"""Softmax attention over many keys, block by block: no array is as large as queries times keys.

Dao et al. (FlashAttention), https://arxiv.org/abs/2205.14135, 2022, Algorithms 1 and 4, in plain JAX: scores
exist for a block of queries and of keys at a time, forward and backward, on any platform, and XLA divides the
products over devices as it divides others. JAX's cuDNN attention does not serve here: it rounds the sums with
which pieces are joined to half precision, and its gradient leaves them out.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jaxtyping import Array, Bool, Float, Int

from pbr_jax.models.layers import KEPT, precision

BLOCKS = {"cpu": 256}  # queries, and keys, whose scores exist at once (benchmarks/RESULTS.md)
BLOCK = 512  # elsewhere: fewer turns of the loops
_LOWEST = jnp.finfo(jnp.float32).min
_FARTHEST = jnp.iinfo(jnp.int32).max

Attended = tuple[Float[Array, "b k g t h"], Float[Array, "b k g t 1"]]
"""What each query reads, and the logarithm of the sum of its exponentiated scores, both float32."""


def blockwise(
    query: Float[Array, "b k g t h"],
    keys: Float[Array, "b k s h"],
    values: Float[Array, "b k s h"],
    own: Int[Array, "b t"],
    places: Int[Array, "b s"],
    window: Int[Array, ""] | None = None,
    cap: float | None = None,
) -> Attended:
    """Attention of queries at positions `own` to keys at `places` that do not lie behind them.

    A query that sees no key reads zeros, with the lowest float32 for its logarithm.

    Args:
      query: scaled; g query heads share each of k key heads.
      own, places: positions; negative ones are padding, which is never attended to.
      window: how many tokens back are seen; None: all.
      cap: scores are squashed into (-cap, cap); None leaves them alone.
    """
    return _blockwise(cap, query, keys, values, own, places, window)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _blockwise(cap: float | None, *inputs: Any) -> Attended:
    return _forward(cap, *inputs)[0]


def _forward(cap: float | None, *inputs: Any) -> tuple[Attended, Any]:
    query, keys, values, own, places, window = inputs
    with precision(query.dtype):
        key_blocks = _blocks(keys, 2), _blocks(values, 2), _blocks(places, 1, fill=-1)

        def attend(some: tuple[Array, ...]) -> Attended:
            queries, at, first, last = some

            def add(j: Any, state: tuple[Array, ...]) -> tuple[Array, ...]:
                most, total, mixed = state
                keys, values, places = (x[j] for x in key_blocks)
                scores, visible = _scores(queries, keys, at, places, window, cap)
                highest = jnp.maximum(most, scores.max(axis=-1, keepdims=True))
                weights, rescaled = jnp.where(visible, jnp.exp(scores - highest), 0), jnp.exp(most - highest)
                read = _product("bkgrs,bksh->bkgrh", weights.astype(values.dtype), values)
                total = total * rescaled + weights.sum(axis=-1, keepdims=True)
                return highest, total, mixed * rescaled + read

            one = jnp.zeros((*queries.shape[:-1], 1), jnp.float32)
            start = one + _LOWEST, one, jnp.zeros(queries.shape, jnp.float32)
            most, total, mixed = jax.lax.fori_loop(first, last, add, start)
            total = jnp.where(total > 0, total, 1)
            return mixed / total, most + jnp.log(total)

        owns = _blocks(own, 1, fill=-1)
        found = jax.lax.map(attend, (_blocks(query, 3), owns, *_ranges(owns, key_blocks[2], window)))
    mixed, log_sum = (checkpoint_name(_joined(x, 3, query.shape[3]), KEPT) for x in found)
    return (mixed, log_sum), (inputs, mixed, log_sum)


def _backward(cap: float | None, kept: Any, gradients: Attended) -> tuple[Any, ...]:
    (query, keys, values, own, places, window), mixed, log_sum = kept
    # What moves every score of a query alike: its softmax's sum, and the gradient of its logarithm.
    shift = (gradients[0] * mixed).sum(axis=-1, keepdims=True) - gradients[1]
    with precision(query.dtype):  # traced where that of the caller no longer holds
        key_blocks = _blocks(keys, 2), _blocks(values, 2), _blocks(places, 1, fill=-1)

        def rows(state: tuple[Array, Array], some: tuple[Array, ...]) -> tuple[tuple[Array, Array], Array]:
            queries, at, first, last, gradient, log_sum, shift = some
            gradient = gradient.astype(values.dtype)

            def add(j: Any, state: tuple[Array, ...]) -> tuple[Array, ...]:
                to_query, to_keys, to_values = state
                keys, values, places = (x[j] for x in key_blocks)
                scores, visible = _scores(queries, keys, at, places, window, cap)
                weights = jnp.where(visible, jnp.exp(scores - log_sum), 0)
                to_scores = weights * (_product("bkgrh,bksh->bkgrs", gradient, values) - shift)
                if cap is not None:
                    to_scores *= 1 - jnp.square(jnp.where(visible, scores, 0) / cap)
                to_scores = to_scores.astype(keys.dtype)
                read = _product("bkgrs,bkgrh->bksh", weights.astype(values.dtype), gradient)
                return (
                    to_query + _product("bkgrs,bksh->bkgrh", to_scores, keys),
                    to_keys.at[j].add(_product("bkgrs,bkgrh->bksh", to_scores, queries)),
                    to_values.at[j].add(read),
                )

            start = jnp.zeros(queries.shape, jnp.float32), *state
            to_query, to_keys, to_values = jax.lax.fori_loop(first, last, add, start)
            return (to_keys, to_values), to_query

        owns = _blocks(own, 1, fill=-1)
        ranges = _ranges(owns, key_blocks[2], window)
        others = (_blocks(x, 3) for x in (gradients[0], log_sum, shift))
        start = jnp.zeros(key_blocks[0].shape, jnp.float32), jnp.zeros(key_blocks[1].shape, jnp.float32)
        found, to_query = jax.lax.scan(rows, start, (_blocks(query, 3), owns, *ranges, *others))
    to_keys, to_values = (_joined(x, 2, keys.shape[2]) for x in found)
    to_query = _joined(to_query, 3, query.shape[3])
    return (
        to_query.astype(query.dtype),
        to_keys.astype(keys.dtype),
        to_values.astype(values.dtype),
        *[None] * 3,
    )


_blockwise.defvjp(_forward, _backward)


def _ranges(
    own: Int[Array, "q b r"], places: Int[Array, "n b r"], window: Int[Array, ""] | None
) -> tuple[Int[Array, "q"], Int[Array, "q"]]:
    """Of each block of queries the first block of keys that one of them sees, and the one after the last."""

    def bounds(at: Int[Array, "m b r"]) -> tuple[Int[Array, "m"], Int[Array, "m"]]:
        return jnp.where(at >= 0, at, _FARTHEST).min(axis=(1, 2)), at.max(axis=(1, 2))

    (earliest, latest), (first, last) = bounds(own), bounds(places)
    seen = (first[None, :] <= latest[:, None]) & (last >= 0)[None, :]
    if window is not None:
        seen &= last[None, :] > earliest[:, None] - window
    count = jnp.where(seen.any(axis=1), seen.shape[1], 0)
    return jnp.argmax(seen, axis=1).astype(jnp.int32), count - jnp.argmax(seen[:, ::-1], axis=1)


def _scores(
    query: Float[Array, "b k g r h"],
    keys: Float[Array, "b k s h"],
    own: Int[Array, "b r"],
    places: Int[Array, "b s"],
    window: Int[Array, ""] | None,
    cap: float | None,
) -> tuple[Float[Array, "b k g r s"], Any]:
    """Scores, those of keys that are not seen made very small, and which are seen [b 1 1 r s]."""
    scores = _product("bkgrh,bksh->bkgrs", query, keys)
    visible = sees(own, places, window)[:, None, None]
    return jnp.where(visible, capped(scores, cap), _LOWEST), visible


def capped(x: Array, cap: float | None) -> Array:
    """Squashed into (-cap, cap); None leaves it alone."""
    return x if cap is None else cap * jnp.tanh(x / cap)


def sees(
    own: Int[Array, "b r"], places: Int[Array, "b s"], window: Int[Array, ""] | None
) -> Bool[Array, "b r s"]:
    """Which keys, at `places`, a query at `own` attends to."""
    own, places = own[:, :, None], places[:, None, :]
    visible = (places >= 0) & (places <= own)
    return visible if window is None else visible & (places > own - window)


def _product(letters: str, *operands: Array) -> Array:
    return jnp.einsum(letters, *operands, preferred_element_type=jnp.float32)


def _blocks(x: Array, axis: int, fill: int = 0) -> Array:
    """[.. t ..] -> [blocks .. block ..], filled up."""
    block = BLOCKS.get(jax.default_backend(), BLOCK)
    padding = [(0, 0)] * x.ndim
    padding[axis] = (0, -x.shape[axis] % block)
    x = jnp.pad(x, padding, constant_values=fill)
    return jnp.moveaxis(x.reshape(*x.shape[:axis], -1, block, *x.shape[axis + 1 :]), axis, 0)


def _joined(blocks: Array, axis: int, length: int) -> Array:
    """[blocks .. block ..] -> [.. length ..]."""
    x = jnp.moveaxis(blocks, 0, axis)
    x = x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])
    return jax.lax.slice_in_dim(x, 0, length, axis=axis)

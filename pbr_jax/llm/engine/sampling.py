"""Choosing the next token of each row, greedily or at random."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt

from pbr_jax.llm.protocol import Sampling


class Choice(NamedTuple):
    """How tokens are chosen, as far as it is compiled."""

    greedy: bool
    nucleus: bool


class SamplingArrays(NamedTuple):
    """The rest: what may change without compiling again."""

    stops: Int[Array, "e"]
    seed: UInt[Array, ""]
    temperature: Float[Array, ""]
    top_p: Float[Array, ""]


def arrays(stops: frozenset[int], sampling: Sampling) -> tuple[Choice, SamplingArrays]:
    """Both halves; temperature 0 is greedy and divides nothing."""
    return Choice(sampling.temperature == 0, sampling.top_p < 1), SamplingArrays(
        jnp.asarray(np.array(sorted(stops) or [-1], np.int32)),
        jnp.uint32(sampling.seed % 2**32),
        jnp.float32(sampling.temperature or 1.0),
        jnp.float32(sampling.top_p),
    )


def choose(
    logits: Float[Array, "b v"],
    step: Int[Array, "b"],
    names: UInt[Array, "b"],
    sampling: SamplingArrays,
    choice: Choice,
) -> Int[Array, "b"]:
    """The next token of each row, -1 where logits are not numbers. Randomness depends on the seed, the row's
    name and its own step only."""
    chosen = _choose(logits, step, names, sampling, choice).astype(jnp.int32)
    return jnp.where(jnp.isnan(logits).any(axis=-1), -1, chosen)


def _choose(logits: Array, step: Array, names: Array, sampling: SamplingArrays, choice: Choice) -> Array:
    if choice.greedy:
        return jnp.argmax(logits, axis=-1)
    logits = logits / sampling.temperature
    key = jax.random.key(sampling.seed)
    keys = jax.vmap(lambda name, at: jax.random.fold_in(jax.random.fold_in(key, name), at))(names, step)
    if choice.nucleus:
        logits = jnp.where(nucleus(logits, sampling.top_p), logits, -jnp.inf)
    return jax.vmap(jax.random.categorical)(keys, logits)


def nucleus(logits: Float[Array, "b v"], top_p: Float[Array, ""]) -> Bool[Array, "b v"]:
    """The most probable tokens that together reach `top_p`, never none; all tokens of the last probability.

    Holtzman et al., https://arxiv.org/abs/1904.09751, 2020. The least probability that is kept is found by
    bisection: a vocabulary is long to sort and quick to add up.
    """
    ranks = _ordered(logits)
    mass = jnp.exp(logits - jax.nn.logsumexp(logits, axis=-1, keepdims=True))

    def halve(_: Array, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds  # what ranks from `low` on reaches top_p; what ranks above `high` does not
        middle = low + (high - low) // 2 + (high - low) % 2
        enough = jnp.where(ranks >= middle, mass, 0).sum(axis=-1, keepdims=True) >= top_p
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle - 1)

    low, high = ranks.min(axis=-1, keepdims=True), ranks.max(axis=-1, keepdims=True)
    return ranks >= jax.lax.fori_loop(0, 32, halve, (low, high))[0]


def _ordered(x: Float[Array, "b v"]) -> UInt[Array, "b v"]:
    """Integers in the order of the numbers."""
    x = jnp.where(x == 0, 0.0, x.astype(jnp.float32))  # one zero, not two
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    return jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(2**31))

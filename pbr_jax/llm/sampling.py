"""Choosing the next token of each row, greedily or at random."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt


class Choice(NamedTuple):
    """How tokens are chosen, as far as it is compiled."""

    greedy: bool
    nucleus: bool


class Sampling(NamedTuple):
    """The rest: what may change without compiling again."""

    stops: Int[Array, "e"]
    seed: UInt[Array, ""]
    temperature: Float[Array, ""]
    top_p: Float[Array, ""]


def sampling(stops: frozenset[int], seed: int, temperature: float, top_p: float) -> tuple[Choice, Sampling]:
    """Both halves; temperature 0 is greedy and divides nothing."""
    return Choice(temperature == 0, top_p < 1), Sampling(
        jnp.asarray(np.array(sorted(stops) or [-1], np.int32)),
        jnp.uint32(seed % 2**32),
        jnp.float32(temperature or 1.0),
        jnp.float32(top_p),
    )


def choose(
    logits: Float[Array, "b v"],
    step: Int[Array, "b"],
    names: UInt[Array, "b"],
    sampling: Sampling,
    choice: Choice,
) -> Int[Array, "b"]:
    """The next token of each row. Randomness depends on the seed, the row's name and its own step only."""
    if choice.greedy:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)
    logits = logits / sampling.temperature
    key = jax.random.key(sampling.seed)
    keys = jax.vmap(lambda name, at: jax.random.fold_in(jax.random.fold_in(key, name), at))(names, step)
    if not choice.nucleus:
        return jax.vmap(jax.random.categorical)(keys, logits).astype(jnp.int32)
    order = jnp.argsort(logits, axis=-1, descending=True)
    logits = jnp.take_along_axis(logits, order, axis=-1)
    probabilities = jax.nn.softmax(logits, axis=-1)
    # Kept while the mass before a token is below top_p: the smallest set that reaches it, never empty.
    before = jnp.cumsum(probabilities, axis=-1) - probabilities
    rank = jax.vmap(jax.random.categorical)(keys, jnp.where(before < sampling.top_p, logits, -jnp.inf))
    return jnp.take_along_axis(order, rank[:, None], axis=-1)[:, 0].astype(jnp.int32)

"""Decoding one answer from several prompts: at every token their distributions are mixed.

Rows of a mixture advance together, so batches of whole mixtures are read and decoded one after another.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt

from pbr_jax.base import compilation
from pbr_jax.base.types import Params
from pbr_jax.llm.engine import prefixes
from pbr_jax.llm.engine.batching import bucket
from pbr_jax.llm.engine.decoding import read_rows
from pbr_jax.llm.engine.local import Ids
from pbr_jax.llm.engine.prefill import Inputs, Pool, PrefillEngine
from pbr_jax.llm.engine.sampling import Choice, SamplingArrays, choose
from pbr_jax.models import causal_lm


def batches(mixtures: Sequence[Sequence[Ids]], rows: int) -> list[list[int]]:
    """Places of mixtures whose prompts are decoded together, the longest first; one of more prompts than
    `rows` stands alone."""
    order = sorted(range(len(mixtures)), key=lambda i: (-max(map(len, mixtures[i])), i))
    batches: list[list[int]] = []
    left = 0
    for place in order:
        size = len(mixtures[place])
        if not batches or size > left:
            batches, left = [*batches, []], max(rows, size)
        batches[-1].append(place)
        left -= size
    return batches


def decode(
    engine: PrefillEngine,
    mixtures: Sequence[Sequence[Ids]],
    weights: Sequence[Sequence[float]],
    names: Sequence[int],
    *,
    rows: int,
    new: int,
    choice: Choice,
    sampling: SamplingArrays,
    long: np.bool_ | None,
) -> Iterator[tuple[int, list[int]]]:
    """(place, tokens with the stop token) of each mixture of one batch; `rows`: how many it is padded to."""
    prompts = [prompt for mixture in mixtures for prompt in mixture]
    groups = np.repeat(np.arange(len(mixtures)), [len(mixture) for mixture in mixtures])
    height, width, c = max(rows, len(prompts)), bucket(max(map(len, prompts)), 32), engine.config

    held, logits = engine.past(height, width), jnp.zeros((height, c.vocab_size), jnp.float32)
    fill = _fill(engine.apply, c.logit_cap, engine.one_core)
    pool, parts = engine.read(prefixes.tree(prompts), long=long)
    for batch in parts:
        places = np.full(len(batch.inputs.ids), height, np.int32)
        places[: len(batch.members)] = batch.members
        held, logits = fill(engine.params, held, logits, pool, batch.inputs, places, tokens=batch.tokens)
    group, log_weights, draws, lengths = (
        np.zeros(height, t) for t in (np.int32, np.float32, np.uint32, np.int32)
    )
    group[:] = height - 1  # padding has no weight wherever it is
    group[: len(prompts)], lengths[: len(prompts)] = groups, list(map(len, prompts))
    log_weights[:] = -np.inf  # padding has no weight wherever it is
    with np.errstate(divide="ignore"):
        log_weights[: len(prompts)] = np.log(np.concatenate([np.asarray(x, np.float64) for x in weights]))
    draws[: len(prompts)] = np.asarray(names, np.uint32)[groups]
    live = np.arange(height) < len(prompts)
    tokens, made = _decode(engine.apply, c.logit_cap, engine.one_core)(
        engine.params, held, engine.past(height, new), logits, group, log_weights, draws, lengths, live,
        sampling, new=new, choice=choice,
    )  # fmt: skip
    firsts = np.searchsorted(groups, np.arange(len(mixtures)))
    for place, row in enumerate(firsts):
        yield place, np.asarray(tokens)[row, : np.asarray(made)[row]].tolist()


@functools.lru_cache(maxsize=8)
def _fill(apply: Callable[..., causal_lm.Output], cap: float | None, one_core: bool) -> Any:

    def run(
        params: Params,
        held: causal_lm.Past,
        logits: Float[Array, "r v"],
        pool: Pool,
        inputs: Inputs,
        places: Int[Array, "b"],
        *,
        tokens: int,
    ) -> tuple[causal_lm.Past, Float[Array, "r v"]]:
        held, next_logits = read_rows(apply, cap, params, held, pool, inputs, places, tokens)
        return held, logits.at[places].set(next_logits, mode="drop")

    return compilation.compiled(run, one_core, static_argnames="tokens", donate_argnums=(1, 2))


def mixed(
    logits: Float[Array, "r v"], log_weights: Float[Array, "r"], group: Int[Array, "r"]
) -> Float[Array, "r v"]:
    """The log of each row's mixture: of the distributions of all rows with its owner, by their weights."""
    each = jnp.exp(jax.nn.log_softmax(logits, axis=-1) + log_weights[:, None])
    return jnp.log(jax.ops.segment_sum(each, group, num_segments=len(logits)))[group]


@functools.lru_cache(maxsize=8)
def _decode(apply: Callable[..., causal_lm.Output], cap: float | None, one_core: bool) -> Any:
    """Tokens of every row, and how many: all rows of a mixture get the same."""

    def run(
        params: Params,
        held: causal_lm.Past,
        past: causal_lm.Past,
        logits: Float[Array, "r v"],
        group: Int[Array, "r"],
        log_weights: Float[Array, "r"],
        names: UInt[Array, "r"],
        lengths: Int[Array, "r"],
        live: Bool[Array, "r"],
        sampling: SamplingArrays,
        *,
        new: int,
        choice: Choice,
    ) -> tuple[Int[Array, "r n"], Int[Array, "r"]]:
        def body(state: Any) -> Any:
            step, past, logits, tokens, made, live = state
            every = jnp.full_like(made, step)
            chosen = choose(mixed(logits, log_weights, group), every, names, sampling, choice)
            tokens = tokens.at[:, step].set(jnp.where(live, chosen, 0))
            made = made + live
            live = live & ~jnp.isin(chosen, sampling.stops) & (chosen >= 0)
            positions = jnp.where(live, lengths + step, -1)
            output = apply(params, jnp.maximum(chosen, 0)[:, None], positions[:, None], (held, past))
            past = causal_lm.Past(
                past.keys.at[:, :, :, step].set(output.keys[:, :, :, 0]),
                past.values.at[:, :, :, step].set(output.values[:, :, :, 0]),
                past.positions.at[:, step].set(positions),
            )
            return step + 1, past, causal_lm.logits(params, output.hidden[:, 0], cap), tokens, made, live

        none = jnp.zeros_like(lengths)
        start = (jnp.int32(0), past, logits, jnp.zeros((len(lengths), new), jnp.int32), none, live)
        end = jax.lax.while_loop(lambda state: (state[0] < new) & state[5].any(), body, start)
        return end[3], end[4]

    return compilation.compiled(run, one_core, static_argnames=("new", "choice"))

"""Continuous decoding: rows that have finished make room for prompts that wait.

A fixed number of rows decode together. A row has slots for its prompt and for new tokens, so what it computes
does not depend on other rows, nor on when it came.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt

from pbr_jax.base import compilation, terminal
from pbr_jax.base.types import Params
from pbr_jax.llm.engine import prefixes
from pbr_jax.llm.engine.prefill import Before, Inputs, Pool, PrefillBatch, PrefillEngine, forward
from pbr_jax.llm.engine.sampling import Choice, SamplingArrays, choose
from pbr_jax.models import causal_lm

STEPS = 32  # at most between two looks at what has finished
TEXT_STEPS = 8  # and at the texts, where these end an answer


class DecodingRows(NamedTuple):
    """The rows being decoded, beside their prompts' keys and values."""

    new: causal_lm.Past  # tokens that were chosen and read, in n slots
    lengths: Int[Array, "b"]  # tokens read
    tokens: Int[Array, "b n"]  # chosen
    made: Int[Array, "b"]  # how many; the last of them is not read yet
    limits: Int[Array, "b"]  # how many at most
    live: Bool[Array, "b"]
    names: UInt[Array, "b"]  # what randomness a row has, beside the seed


def empty_rows(engine: PrefillEngine, rows: int, max_new_tokens: int) -> DecodingRows:
    """DecodingRows with room for new tokens; none is live."""
    none = jnp.zeros(rows, jnp.int32)
    return DecodingRows(
        new=engine.past(rows, max_new_tokens),
        lengths=none,
        tokens=jnp.zeros((rows, max_new_tokens), jnp.int32),
        made=none.copy(),
        limits=none.copy(),
        live=jnp.zeros(rows, bool),
        names=jnp.zeros(rows, jnp.uint32),
    )


@functools.lru_cache(maxsize=8)
def admit(apply: Callable[..., causal_lm.Output], cap: float | None, one_core: bool) -> Any:
    """Reads a batch of prompts, chooses their first tokens and puts them into rows. Row i of the batch
    goes to `places[i]`; one beyond the last row is left out."""

    def run(
        params: Params,
        held: causal_lm.Past,
        rows: DecodingRows,
        pool: Pool,
        inputs: Inputs,
        places: Int[Array, "b"],
        names: UInt[Array, "b"],
        limits: Int[Array, "b"],
        sampling: SamplingArrays,
        *,
        tokens: int,
        new: int,
        choice: Choice,
    ) -> tuple[causal_lm.Past, DecodingRows]:
        held, logits = read_rows(apply, cap, params, held, pool, inputs, places, tokens)
        lengths = inputs.positions.max(axis=1) + 1
        chosen = choose(logits, jnp.zeros_like(lengths), names, sampling, choice)

        tokens_ = jnp.zeros((len(chosen), new), jnp.int32).at[:, 0].set(chosen)
        return held, DecodingRows(
            new=rows.new._replace(positions=rows.new.positions.at[places].set(-1, mode="drop")),
            lengths=rows.lengths.at[places].set(lengths, mode="drop"),
            tokens=rows.tokens.at[places].set(tokens_, mode="drop"),
            made=rows.made.at[places].set(1, mode="drop"),
            limits=rows.limits.at[places].set(limits, mode="drop"),
            live=rows.live.at[places].set(
                ~jnp.isin(chosen, sampling.stops) & (chosen >= 0) & (limits > 1), mode="drop"
            ),
            names=rows.names.at[places].set(names, mode="drop"),
        )

    return compilation.compiled(
        run, one_core, static_argnames=("tokens", "new", "choice"), donate_argnums=(1, 2)
    )


def read_rows(
    apply: Callable[..., causal_lm.Output],
    cap: float | None,
    params: Params,
    held: causal_lm.Past,
    pool: Pool,
    inputs: Inputs,
    places: Int[Array, "b"],
    tokens: int,
) -> tuple[causal_lm.Past, Float[Array, "b v"]]:
    """The rows with texts that are read into these places (what all rows share, each row's own past, what is
    new), and the logits of each text's next token."""
    output, shared, past = forward(apply, params, pool, inputs, tokens)
    before, positions = inputs.before, inputs.positions
    last = jnp.argmax(positions, axis=1)
    hidden = jnp.take_along_axis(output.hidden, last[:, None, None], axis=1)[:, 0]
    logits = causal_lm.logits(params, hidden, cap)
    order = jnp.arange(held.positions.shape[1])[None, :]
    source = _sources(order, before)

    def write(old: Array, *parts: Array) -> Array:
        parts = tuple(jnp.broadcast_to(x, (*output.keys.shape[:3], *x.shape[3:])) for x in parts)
        whole = jnp.concatenate(parts, axis=3)
        rows = jax.vmap(lambda x, i: jnp.take(x, i, axis=2, mode="clip"), (1, 0), 1)(whole, source)
        return old.at[:, places].set(rows, mode="drop")

    real = jnp.where(order <= positions.max(axis=1, keepdims=True), order, -1)
    rows = causal_lm.Past(
        write(held.keys, shared.keys[:, None], past.keys, output.keys),
        write(held.values, shared.values[:, None], past.values, output.values),
        held.positions.at[places].set(real, mode="drop"),
    )
    return rows, logits


def _sources(order: Int[Array, "1 w"], before: Before) -> Int[Array, "b w"]:
    """Where a row's tokens lie in: what all rows share, its own past, and what it reads, in a line."""
    shared = (before.shared_at >= 0).sum()
    own = (before.own_at >= 0).sum(axis=1, keepdims=True)
    after = before.shared.shape[0] + before.own.shape[1] + order - shared - own
    rest = jnp.where(order < shared + own, before.shared.shape[0] + order - shared, after)
    return jnp.where(order < shared, order, rest)


@functools.lru_cache(maxsize=8)
def advance(apply: Callable[..., causal_lm.Output], cap: float | None, one_core: bool) -> Any:
    """Decodes until at most `enough` rows are live, or for `steps` tokens; rows that are `over` are not
    live."""

    def run(
        params: Params,
        held: causal_lm.Past,
        rows: DecodingRows,
        over: Bool[Array, "b"],
        enough: Int[Array, ""],
        steps: Int[Array, ""],
        sampling: SamplingArrays,
        *,
        choice: Choice,
    ) -> DecodingRows:
        def body(state: tuple[Array, DecodingRows]) -> tuple[Array, DecodingRows]:
            count, rows = state
            last = jnp.take_along_axis(rows.tokens, jnp.maximum(rows.made - 1, 0)[:, None], axis=1)
            positions = jnp.where(rows.live, rows.lengths, -1)[:, None]
            output = apply(params, last, positions, (held, rows.new))
            logits = causal_lm.logits(params, output.hidden[:, 0], cap)
            chosen = choose(logits, rows.made, rows.names, sampling, choice)
            return count + 1, _next(rows, output, chosen, positions, sampling.stops)

        def more(state: tuple[Array, DecodingRows]) -> Array:
            return (state[0] < steps) & (state[1].live.sum() > enough)

        rows = rows._replace(live=rows.live & ~over)
        return jax.lax.while_loop(more, body, (jnp.int32(0), rows))[1]

    return compilation.compiled(run, one_core, static_argnames="choice", donate_argnums=2)


def _next(
    rows: DecodingRows, output: causal_lm.Output, chosen: Array, positions: Array, stops: Array
) -> DecodingRows:
    """The rows after one step: the read token's keys and values kept, the chosen one noted."""
    b, n = rows.tokens.shape
    here = (jnp.arange(n)[None, :] == rows.made[:, None]) & rows.live[:, None]
    made = rows.made + rows.live
    at = jnp.arange(b), jnp.maximum(rows.made - 1, 0)  # the slot of the token that was read

    def write(old: Array, new: Array) -> Array:
        return old.at[:, at[0], :, at[1]].set(jnp.moveaxis(new[:, :, :, 0], 1, 0), mode="promise_in_bounds")

    return DecodingRows(
        new=causal_lm.Past(
            write(rows.new.keys, output.keys),
            write(rows.new.values, output.values),
            rows.new.positions.at[at].set(positions[:, 0]),
        ),
        lengths=rows.lengths + rows.live,
        tokens=jnp.where(here, chosen[:, None], rows.tokens),
        made=made,
        limits=rows.limits,
        live=rows.live & ~jnp.isin(chosen, stops) & (chosen >= 0) & (made < rows.limits),
        names=rows.names,
    )


def decode(
    engine: PrefillEngine,
    prompts: Sequence[tuple[int, ...]],
    names: Sequence[int],
    limits: Sequence[int],
    wanted: Sequence[bool],
    *,
    rows: int,
    width: int,
    new: int,
    choice: Choice,
    sampling: SamplingArrays,
    long: np.bool_ | None = None,
    is_over: Callable[[int, list[int]], bool] | None = None,
) -> Iterator[list[tuple[int, list[int]]]]:
    """Continues prompts of up to `width` tokens by up to `limits` tokens, `rows` of them at a time.

    Yields (place of the prompt, its new tokens with the stop token) of those that have finished. Prompts that
    are not `wanted` are read where others are read with them, and never decoded: what a prompt
    gets does not depend on which others are wanted. `is_over(place, tokens)`: whether an answer may end
    here; it is asked every few tokens, so an answer goes on for some.
    """
    weights, config = engine.params, engine.config
    start = admit(engine.apply, config.logit_cap, engine.one_core)
    go_on = advance(engine.apply, config.logit_cap, engine.one_core)
    held, state = engine.past(rows, width), empty_rows(engine, rows, new)
    batches = _batches(engine, prompts, wanted, max(1, rows // 4), long)  # few at a time keep the rows full
    steps = np.int32(STEPS if is_over is None else TEXT_STEPS)
    free, members, over = list(range(rows)), {}, np.zeros(rows, bool)
    waiting = next(batches, None)
    while waiting is not None or members:
        while waiting is not None and len(waiting.members) <= len(free):
            places = np.full(len(waiting.batch.inputs.ids), rows, np.int32)
            for row, member in waiting.members.items():
                places[row] = free.pop()
                members[int(places[row])], over[places[row]] = member, False
            own, most = np.zeros(len(places), np.uint32), np.zeros(len(places), np.int32)
            own[: len(waiting.batch.members)] = [names[member] for member in waiting.batch.members]
            most[: len(waiting.batch.members)] = [limits[member] for member in waiting.batch.members]
            held, state = start(
                weights, held, state, waiting.pool, waiting.batch.inputs, places, own, most, sampling,
                tokens=waiting.batch.tokens, new=new, choice=choice,
            )  # fmt: skip
            waiting = next(batches, None)
        room = rows if waiting is None else len(waiting.members)
        state = go_on(weights, held, state, over, np.int32(rows - room), steps, sampling, choice=choice)
        live, tokens, made = jax.device_get((state.live, state.tokens, state.made))
        terminal.doing(f"{sum(int(made[place]) for place in members)} tokens of {len(members)} answers")
        if is_over is not None:
            over = np.array([
                row in members and live[row] and is_over(members[row], tokens[row, : made[row]].tolist())
                for row in range(rows)
            ])  # fmt: skip
        finished = [place for place in members if over[place] or not live[place]]
        if finished:
            yield [(members.pop(place), tokens[place, : made[place]].tolist()) for place in finished]
            free += finished


class _Waiting(NamedTuple):
    """A batch to be read, with its pool, and the prompts in it that are wanted, by row."""

    pool: Pool
    batch: PrefillBatch
    members: dict[int, int]


def _batches(
    engine: PrefillEngine,
    prompts: Sequence[tuple[int, ...]],
    wanted: Sequence[bool],
    rows: int,
    long: np.bool_ | None,
) -> Iterator[_Waiting]:
    """The batches of up to `rows` that hold a wanted prompt, window by window."""
    for window in prefixes.windows(prompts):
        if not any(wanted[member] for member in window):
            continue
        pool, batches = engine.read(prefixes.tree([prompts[member] for member in window]), rows, long)
        for batch in batches:
            batch = batch._replace(members=[window[place] for place in batch.members])
            members = {row: member for row, member in enumerate(batch.members) if wanted[member]}
            if members:
                yield _Waiting(pool, batch, members)

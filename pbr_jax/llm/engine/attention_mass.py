"""How much attention tokens get from a query behind them. What texts begin with in common is read once, and
scores are [tokens of the query, all tokens], never [all, all]."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Array, Bool, Float, Int

from pbr_jax.base import compilation
from pbr_jax.base.prefetch import fetched
from pbr_jax.base.types import Params
from pbr_jax.llm.engine import prefixes
from pbr_jax.llm.engine.local import Ids
from pbr_jax.llm.engine.prefill import Before, Pool, PrefillBatch, PrefillEngine, past_of
from pbr_jax.models import causal_lm

TOGETHER = 16  # texts whose beginnings are shared
_ROWS = 4  # that add up at once


def masses(engine: PrefillEngine, texts: Sequence[tuple[Ids, range]]) -> Iterator[tuple[int, np.ndarray]]:
    """(place, attention `[len(ids)]`) of each text: summed over layers and heads, the mean over the tokens of
    the range. Texts are all over the length of `Rope.original`, or none is."""
    long = engine.long(max(len(ids) for ids, _ in texts))
    tree = prefixes.tree([ids for ids, _ in texts], [where.start for _, where in texts])
    pool, batches = engine.read(tree, _ROWS, long)
    add_up = _masses(engine.apply, engine.one_core)

    def start(batch: PrefillBatch) -> tuple[PrefillBatch, Any]:
        watched = np.zeros(batch.ids.shape, np.float32)
        for row, member in enumerate(batch.members):
            start, where = tree.leaves[member].start, texts[member][1]
            watched[row, where.start - start : where.stop - start] = 1 / len(where)
        return batch, add_up(engine.params, pool, *batch.inputs, watched, tokens=batch.tokens)

    for batch, mass in fetched(map(start, batches), engine.ahead):
        for row, member in enumerate(batch.members):
            yield member, _joined(batch, mass, row, len(texts[member][0]))


def _joined(batch: PrefillBatch, mass: Sequence[np.ndarray], row: int, length: int) -> np.ndarray:
    """The attention of one row's tokens, in their order."""
    before, whole = batch.before, np.zeros(length)
    places = [batch.positions[row], before.shared_at, before.own_at[row]]
    for at, values in zip((at for at in places if len(at)), mass, strict=True):
        whole[at[at >= 0]] = values[row, at >= 0]
    return whole


@functools.lru_cache(maxsize=8)
def _masses(apply: Callable[..., causal_lm.Output], one_core: bool) -> Any:
    def run(
        params: Params,
        pool: Pool,
        ids: Int[Array, "b t"],
        positions: Int[Array, "b t"],
        before: Before,
        long: Bool[Array, "*b"] | None,
        watched: Float[Array, "b t"],
        *,
        tokens: int,
    ) -> Any:
        past = past_of(pool, before)
        return apply(params, ids, positions, past, tokens=tokens, long=long, watched=watched).mass

    return compilation.compiled(run, one_core, static_argnames="tokens")

"""What a decoder-only model says of given texts: log-probabilities of continuations, and how much attention
tokens get from a query behind them. What texts begin with in common is read once."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Array, Float

from pbr_jax.base import compilation, terminal
from pbr_jax.base.prefetch import fetched
from pbr_jax.base.types import Params
from pbr_jax.llm.engine import prefill, prefixes
from pbr_jax.llm.engine.local import Ids, groups
from pbr_jax.llm.engine.prefill import Inputs, Pool, PrefillBatch, PrefillEngine, forward
from pbr_jax.models import causal_lm

TOGETHER = 16  # texts whose beginnings are shared
_ROWS = 4  # that add up at once


def log_probabilities(engine: PrefillEngine, pairs: Sequence[tuple[Ids, Ids]]) -> list[np.ndarray]:
    """log p of every token of the second, after the first, of each pair, in nats; what the pairs begin with
    in common is read once.

    So are pairs that differ in their last token alone, such as a prompt with labels of one token.
    """
    every = [np.zeros(0)] * len(pairs)
    lengths = [engine.long(len(first) + len(second)) for first, second in pairs]
    for kind in groups(lengths):  # texts of the two kinds of LongRoPE share no keys
        rows = _together(engine, [pairs[place] for place in kind], lengths[kind[0]])
        for place, values in zip(kind, rows, strict=True):
            every[place] = values
    return every


def _together(
    engine: PrefillEngine, pairs: Sequence[tuple[Ids, Ids]], long: np.bool_ | None
) -> list[np.ndarray]:
    # The last target token is predicted, never read.
    same = groups([(first, second[:-1]) for first, second in pairs])
    begun = [(pairs[group[0]][0], pairs[group[0]][1][:-1]) for group in same]
    tree = prefixes.tree([a + b for a, b in begun], [len(first) - 1 for first, _ in begun])
    pool, batches = engine.read(tree, long=long)
    score = prefill.log_probabilities(engine.apply, engine.config.logit_cap, engine.one_core)
    every = [np.zeros(0)] * len(pairs)

    def start(batch: PrefillBatch) -> tuple[tuple[list[int], list[int]], Any]:
        """Places of pairs and their tokens, and what will be found."""
        scored = [(row, place) for row, member in enumerate(batch.members) for place in same[member]]
        targets = [pairs[place][1] for _, place in scored]
        lengths = list(map(len, targets))
        count = sum(lengths)
        # As many as the batch has tokens, or a multiple where targets share rows: no shapes of their own.
        most = batch.tokens * (1 << (-(-count // batch.tokens) - 1).bit_length())
        rows, places, wanted = (
            np.zeros(-(-most // prefill.BLOCK) * prefill.BLOCK, np.int32) for _ in range(3)
        )
        rows[:count] = np.repeat([row for row, _ in scored], lengths)
        starts = [len(pairs[place][0]) - 1 - tree.leaves[batch.members[row]].start for row, place in scored]
        places[:count] = np.concatenate([start + np.arange(len(t)) for start, t in zip(starts, targets)])
        wanted[:count] = np.concatenate(targets)
        log_probs = score(
            engine.params, pool, batch.inputs, rows, places, wanted, np.int32(count), tokens=batch.tokens
        )
        return ([place for _, place in scored], lengths), log_probs

    read = 0
    for (places, lengths), log_probs in fetched(map(start, batches), engine.ahead):
        values = log_probs.astype(np.float64)[: sum(lengths)]
        for place, own in zip(places, np.split(values, np.cumsum(lengths)[:-1]), strict=True):
            every[place] = own
        read += len(places)
        terminal.doing(f"{read} of {len(pairs)} of a batch")
    return every


def masses(engine: PrefillEngine, texts: Sequence[tuple[Ids, range]]) -> Iterator[tuple[int, np.ndarray]]:
    """(place, attention `[len(ids)]`) of each text: summed over layers and heads, the mean over the tokens of
    the range. Scores are [tokens of the query, all tokens], never [all, all]. Texts are all over the length
    of `Rope.original`, or none is."""
    long = engine.long(max(len(ids) for ids, _ in texts))
    tree = prefixes.tree([ids for ids, _ in texts], [where.start for _, where in texts])
    pool, batches = engine.read(tree, _ROWS, long)
    add_up = _masses(engine.apply, engine.one_core)

    def start(batch: PrefillBatch) -> tuple[PrefillBatch, Any]:
        watched = np.zeros(batch.inputs.ids.shape, np.float32)
        for row, member in enumerate(batch.members):
            start, where = tree.leaves[member].start, texts[member][1]
            watched[row, where.start - start : where.stop - start] = 1 / len(where)
        return batch, add_up(engine.params, pool, batch.inputs, watched, tokens=batch.tokens)

    for batch, mass in fetched(map(start, batches), engine.ahead):
        for row, member in enumerate(batch.members):
            yield member, _joined(batch, mass, row, len(texts[member][0]))


def _joined(batch: PrefillBatch, mass: Sequence[np.ndarray], row: int, length: int) -> np.ndarray:
    """The attention of one row's tokens, in their order."""
    before, whole = batch.inputs.before, np.zeros(length)
    places = [batch.inputs.positions[row], before.shared_at, before.own_at[row]]
    for at, values in zip((at for at in places if len(at)), mass, strict=True):
        whole[at[at >= 0]] = values[row, at >= 0]
    return whole


@functools.lru_cache(maxsize=8)
def _masses(apply: Callable[..., causal_lm.Output], one_core: bool) -> Any:
    def run(params: Params, pool: Pool, inputs: Inputs, watched: Float[Array, "b t"], *, tokens: int) -> Any:
        return forward(apply, params, pool, inputs, tokens, watched=watched)[0].mass

    return compilation.compiled(run, one_core, static_argnames="tokens")

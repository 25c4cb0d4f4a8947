"""Log-probabilities of given continuations with a decoder-only model."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pbr_jax.base import terminal
from pbr_jax.base.prefetch import fetched
from pbr_jax.llm.engine import prefill, prefixes
from pbr_jax.llm.engine.local import Ids, groups
from pbr_jax.llm.engine.prefill import PrefillBatch, PrefillEngine


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
            engine.params, pool, *batch.inputs, rows, places, wanted, np.int32(count), tokens=batch.tokens
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

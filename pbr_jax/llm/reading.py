"""Reading token sequences with a language model: shared beginnings once, and no padding but in attention.

The nodes of a prefix tree are read level by level. Keys and values of shared tokens lie one after another
in a `Pool`; whoever follows them names their slots. Rows of unlike length go into one batch up to a
number of tokens, so that the matrix products see few shapes and no padding to speak of.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pbr_jax.llm.prefixes import Node, Tree
from pbr_jax.models import causal_lm
from pbr_jax.models.causal_lm_config import CausalLMConfig
from pbr_jax.types import Params

LOGITS_TOGETHER = 512  # positions whose logits exist at once


class Pool(NamedTuple):
    """Keys and values of shared tokens, a slot each."""

    keys: Float[Array, "l p k h"]
    values: Float[Array, "l p k h"]


class Batch(NamedTuple):
    """Rows read together. Padding has position -1."""

    members: list[int]  # places of the rows in the list that was batched
    ids: np.ndarray  # [b t]
    positions: np.ndarray  # [b t]
    slots: np.ndarray  # [b s] of the tokens before
    earlier: np.ndarray  # [b s] their positions
    tokens: int  # at least as many as are real in ids

    @property
    def inputs(self) -> tuple[np.ndarray, ...]:
        return self.ids, self.positions, self.slots, self.earlier


class Reader:
    """A model with its weights, and how much it reads at a time.

    Args:
      apply: of `models.causal_lm`.
      tokens: of one batch.
      one_core: compile for a single core; several readers then work side by side.
    """

    def __init__(
        self,
        apply: Callable[..., causal_lm.Output],
        params: Params,
        config: CausalLMConfig,
        *,
        tokens: int = 512,
        one_core: bool = False,
    ):
        self.apply, self.params, self.config = apply, params, config
        self.tokens, self.one_core = tokens, one_core

    def read(self, tree: Tree, rows: int = 64) -> tuple[Pool, Iterator[Batch]]:
        """Reads the shared nodes; returns what they left, and the leaves in batches of up to `rows`."""
        levels: dict[int, list[int]] = {}
        depths: list[int] = []
        for place, node in enumerate(tree.shared):
            depths.append(0 if node.parent is None else depths[node.parent] + 1)
            levels.setdefault(depths[-1], []).append(place)
        pool = self._pool(sum(len(node.ids) for node in tree.shared))
        extend = _extend(self.apply, self.one_core)
        paths: list[np.ndarray] = [np.zeros(0, np.int32)] * len(tree.shared)
        used = 0
        for level in levels.values():
            nodes = [tree.shared[place] for place in level]
            for batch in self._batches(nodes, paths, 64):
                pool = extend(self.params, pool, *batch.inputs, np.int32(used), tokens=batch.tokens)
                for member in batch.members:
                    node, end = nodes[member], used + len(nodes[member].ids)
                    paths[level[member]] = np.append(_path(node, paths), np.arange(used, end, dtype=np.int32))
                    used = end
        return pool, self._batches(tree.leaves, paths, rows)

    def _pool(self, tokens: int) -> Pool:
        c = self.config
        # One batch of room: a batch writes all of its places, the last of them beyond its real tokens.
        shape = (c.num_layers, size(tokens + self.tokens, 64) if tokens else 1, c.num_kv_heads, c.head_width)
        empty = jnp.zeros(shape, self.params["embedding"].dtype)
        return Pool(empty, empty.copy())

    def _batches(self, nodes: Sequence[Node], paths: Sequence[np.ndarray], rows: int) -> Iterator[Batch]:
        """Nodes of like length together, until a batch is full."""
        order = sorted(range(len(nodes)), key=lambda i: (size(nodes[i].start), len(nodes[i].ids), i))
        for members in _fill(order, [len(node.ids) for node in nodes], self.tokens, rows):
            yield self._batch([nodes[i] for i in members], members, paths)

    def _batch(self, nodes: list[Node], members: list[int], paths: Sequence[np.ndarray]) -> Batch:
        count = len(nodes) if len(nodes) <= 8 else size(len(nodes))
        starts = [node.start for node in nodes]
        ids, positions = _padded([node.ids for node in nodes], starts, count, bucket)
        slots, earlier = _padded([_path(node, paths) for node in nodes], [0] * len(nodes), count, _power)
        tokens = bucket(sum(len(node.ids) for node in nodes), 128)
        return Batch(members, ids, positions, slots, earlier, tokens)


def _path(node: Node, paths: Sequence[np.ndarray]) -> np.ndarray:
    return np.zeros(0, np.int32) if node.parent is None else paths[node.parent]


def _fill(order: Sequence[int], lengths: Sequence[int], tokens: int, rows: int) -> Iterator[list[int]]:
    """The order, cut so that no batch holds more tokens or rows; a longer row stands alone.

    As few batches as that takes, of about the same size: alike they need fewer compilations.
    """
    whole = sum(lengths[member] for member in order)
    even = whole / max(1, -(-whole // tokens))
    batch: list[int] = []
    total = 0
    for member in order:
        more = lengths[member]
        if batch and (total + more > tokens or len(batch) == rows or total + more / 2 > even):
            yield batch
            batch, total = [], 0
        batch.append(member)
        total += more
    if batch:
        yield batch


def _padded(
    rows: Sequence[Sequence[int] | np.ndarray],
    starts: Sequence[int],
    count: int,
    bucketed: Callable[[int, int], int],
) -> tuple[np.ndarray, np.ndarray]:
    """Rows padded on the right to one bucket, and the positions of what is real, -1 elsewhere.

    Attention alone sees this padding, so buckets are few: each is a compilation.
    """
    width = bucketed(max(map(len, rows)), 64)
    values, positions = np.zeros((count, width), np.int32), np.full((count, width), -1, np.int32)
    for place, (row, start) in enumerate(zip(rows, starts)):
        values[place, : len(row)] = row
        positions[place, : len(row)] = np.arange(start, start + len(row))
    return values, positions


def size(count: int, floor: int = 1) -> int:
    """The bucket of a count: a power of two, or three quarters of one, not below `floor`; 0 stays 0."""
    if count == 0:
        return 0
    power = 1 << (max(count, floor) - 1).bit_length()
    return power * 3 // 4 if power >= 4 and max(count, floor) <= power * 3 // 4 else power


def _power(count: int, floor: int) -> int:
    return 1 << (max(count, floor) - 1).bit_length() if count else 0


def bucket(count: int, floor: int) -> int:
    """The finer bucket of a length: a multiple of an eighth of its power of two, at least of `floor`."""
    step = max(floor, 2 ** (count.bit_length() - 1) // 8)
    return -(-count // step) * step


def compiled(function: Callable[..., Any], one_core: bool, **options: Any) -> Any:
    """`jax.jit`, for one core where batches are computed side by side (benchmarks/RESULTS.md)."""
    compiler = {"xla_cpu_multi_thread_eigen": False} if one_core else None
    return jax.jit(function, compiler_options=compiler, **options)


def past_of(pool: Pool, slots: Int[Array, "b s"], earlier: Int[Array, "b s"]) -> causal_lm.Past:
    """The pool's slots as the past of each row."""
    keys, values = (jnp.take(x, slots, axis=1, mode="clip").swapaxes(2, 3) for x in pool)
    return causal_lm.Past(keys, values, earlier)


@functools.lru_cache(maxsize=8)
def _extend(apply: Callable[..., causal_lm.Output], one_core: bool) -> Any:
    """Reads a batch and writes its keys and values into the pool, packed, from slot `offset` on."""

    def extend(
        params: Params,
        pool: Pool,
        ids: Int[Array, "b t"],
        positions: Int[Array, "b t"],
        slots: Int[Array, "b s"],
        earlier: Int[Array, "b s"],
        offset: Int[Array, ""],
        *,
        tokens: int,
    ) -> Pool:
        output = apply(params, ids, positions, past_of(pool, slots, earlier), tokens=tokens)
        (real,) = jnp.nonzero(positions.reshape(-1) >= 0, size=tokens, fill_value=0)

        def write(old: Array, new: Array) -> Array:
            rows = new.swapaxes(2, 3)  # [l b t k h]
            packed = jnp.take(rows.reshape(rows.shape[0], -1, *rows.shape[3:]), real, axis=1, mode="clip")
            return jax.lax.dynamic_update_slice(old, packed, (0, offset, 0, 0))

        return Pool(write(pool.keys, output.keys), write(pool.values, output.values))

    return compiled(extend, one_core, static_argnames="tokens", donate_argnums=1)


@functools.lru_cache(maxsize=8)
def log_probabilities(apply: Callable[..., causal_lm.Output], cap: float | None, one_core: bool) -> Any:
    """Reads a batch and returns log p of `targets` at (`rows`, `places`) in it: logits exist nowhere else."""

    def score(
        params: Params,
        pool: Pool,
        ids: Int[Array, "b t"],
        positions: Int[Array, "b t"],
        slots: Int[Array, "b s"],
        earlier: Int[Array, "b s"],
        rows: Int[Array, "m"],
        places: Int[Array, "m"],
        targets: Int[Array, "m"],
        *,
        tokens: int,
    ) -> Float[Array, "m"]:
        hidden = apply(params, ids, positions, past_of(pool, slots, earlier), tokens=tokens).hidden

        def one(pair: tuple[Array, Array]) -> Array:
            state, target = pair
            logits = causal_lm.logits(params, state, cap)
            return logits[target] - jax.nn.logsumexp(logits)

        return jax.lax.map(one, (hidden[rows, places], targets), batch_size=LOGITS_TOGETHER)

    return compiled(score, one_core, static_argnames="tokens")

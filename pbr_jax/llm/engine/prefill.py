"""Reading token sequences with a language model: shared beginnings once, and no padding but in attention.

The nodes of a prefix tree are read level by level. Keys and values of shared tokens lie one after another
in a `Pool`. Rows of unlike length go into one batch up to a number of tokens, so that shapes are few.
"""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from pbr_jax.base import compilation
from pbr_jax.base.types import Params
from pbr_jax.llm.engine.batching import common, fill, power, size, width
from pbr_jax.llm.engine.prefixes import WINDOW, Node, Tree
from pbr_jax.models import causal_lm
from pbr_jax.models.causal_lm_config import CausalLMConfig

FAR = 256  # slots of their own from which on rows of one parent are read together
BLOCK = 128  # positions whose logits exist at once
SHARE = 4  # prompts that decode, what they begin with, and activations need as much memory each


class Pool(NamedTuple):
    """Keys and values of shared tokens, a slot each."""

    keys: Float[Array, "l p k h"]
    values: Float[Array, "l p k h"]


class Before(NamedTuple):
    """Slots of the pool that stand before the rows of a batch, and the positions there (-1: padding).

    What stands before all rows is attended to where it lies; what stands before one is copied for it.
    """

    shared: Any  # Int["s"]
    shared_at: Any  # Int["s"]
    own: Any  # Int["b r"]
    own_at: Any  # Int["b r"]


class Inputs(NamedTuple):
    """What a program reads of a batch. Padding has position -1."""

    ids: Any  # Int["b t"]
    positions: Any  # Int["b t"]
    before: Before
    long: Any  # Bool["*b"], whether the texts are over the length of `Rope.original`; None: there is none


class PrefillBatch(NamedTuple):
    """Rows read together."""

    members: list[int]  # places of the rows in the list that was batched
    inputs: Inputs
    tokens: int  # at least as many as are real in ids


class PrefillEngine:
    """A model with its weights, and how much it reads at a time.

    Args:
      apply: of `models.causal_lm`.
      tokens: of one batch.
      memory: bytes of keys and values that a batch may copy for its rows on each device, where the devices do
        not say what they have free (`for_rows`).
      ahead: batches that an accelerator is given beyond the one that is waited for.
      one_core: compile for a single core; several readers then work side by side.
      heads: where keys and values lie, by the axis of their heads; None: on the default device.
    """

    def __init__(
        self,
        apply: Callable[..., causal_lm.Output],
        params: Params,
        config: CausalLMConfig,
        *,
        tokens: int = 512,
        memory: int = 2**29,
        ahead: int = 0,
        one_core: bool = False,
        heads: Callable[[int], jax.sharding.Sharding] | None = None,
    ):
        self.apply, self.params, self.config = apply, params, config
        self.tokens, self.ahead, self.one_core, self._heads = tokens, ahead, one_core, heads
        self._step = max(128, tokens // 8)  # numbers of tokens that are compiled are its multiples
        c = config
        embedding = jax.block_until_ready(params)["embedding"]  # what is free is known once all is there
        shape = (c.num_layers, c.num_kv_heads, c.head_width)
        own = shape if heads is None else heads(1).shard_shape(shape)
        held = for_rows(embedding.sharding.addressable_devices, memory)
        self._most = max(1, held // (2 * math.prod(own) * embedding.dtype.itemsize))

    @property
    def original(self) -> int | None:
        """Tokens from which on texts take LongRoPE's long factors, less one; None where there are none."""
        return self.config.rope.original if self.config.rope.long_divisors else None

    @property
    def window(self) -> int:
        """How many texts share their beginnings: more where batches are larger."""
        return WINDOW * max(1, self.tokens // 2048)

    def room(self, slots: int) -> int:
        """How many rows of so many tokens fit the memory; at least one."""
        return max(1, self._most // max(1, slots))

    def zeros(self, shape: tuple[int, ...], heads: int) -> Array:
        """Room for keys or values, made where it is to lie; `heads`: the axis of heads."""
        where = None if self._heads is None else self._heads(heads)
        return jnp.zeros(shape, self.params["embedding"].dtype, device=where)

    def past(self, rows: int, slots: int) -> causal_lm.Past:
        """Room for so many tokens of each row."""
        c = self.config
        shape = (c.num_layers, rows, c.num_kv_heads, slots, c.head_width)
        empty = jnp.full((rows, slots), -1, jnp.int32)
        return causal_lm.Past(self.zeros(shape, 2), self.zeros(shape, 2), empty)

    def long(self, length: int) -> np.bool_ | None:
        """Whether a text of so many tokens takes LongRoPE's long factors; None where there are none."""
        return None if self.original is None else np.bool_(length > self.original)

    def read(
        self, tree: Tree, rows: int = 64, long: np.bool_ | None = None
    ) -> tuple[Pool, Iterator[PrefillBatch]]:
        """Reads the shared nodes; returns what they left, and the leaves in batches of up to `rows`. All
        texts of the tree are `long`, or none is: what they share is read alike."""
        levels: dict[int, list[int]] = {}
        depths: list[int] = []
        for place, node in enumerate(tree.shared):
            depths.append(0 if node.parent is None else depths[node.parent] + 1)
            levels.setdefault(depths[-1], []).append(place)
        pool = self._pool([len(node.ids) for node in tree.shared])
        extend = _extend(self.apply, self.one_core)
        paths: list[np.ndarray] = [np.zeros(0, np.int32)] * len(tree.shared)
        used = 0
        for level in levels.values():
            nodes = [tree.shared[place] for place in level]
            for batch in self._batches(nodes, paths, 64, long):
                pool = extend(self.params, pool, batch.inputs, np.int32(used), tokens=batch.tokens)
                for member in batch.members:
                    node, end = nodes[member], used + len(nodes[member].ids)
                    paths[level[member]] = np.append(_path(node, paths), np.arange(used, end, dtype=np.int32))
                    used = end
        return pool, self._batches(tree.leaves, paths, rows, long)

    def _pool(self, lengths: Sequence[int]) -> Pool:
        c = self.config
        # One batch more: a batch writes all of its places, the last of them beyond its real tokens.
        slots = size(sum(lengths) + max(self.tokens, *lengths) + self._step, 64) if lengths else 1
        shape = (c.num_layers, slots, c.num_kv_heads, c.head_width)
        return Pool(self.zeros(shape, 2), self.zeros(shape, 2))

    def _batches(
        self, nodes: Sequence[Node], paths: Sequence[np.ndarray], rows: int, long: np.bool_ | None
    ) -> Iterator[PrefillBatch]:
        """Nodes of like length together, but for those that fill a batch up."""
        before = [_path(node, paths) for node in nodes]
        lengths = [len(node.ids) for node in nodes]
        far = max(map(len, before), default=0) - common(before) >= FAR
        order = sorted(
            range(len(nodes)), key=lambda i: ((nodes[i].parent or 0) if far else 0, -lengths[i], i)
        )
        limits = self.tokens, rows, self._most
        for members in fill(order, lengths, before, *limits, step=None if far else self._step):
            yield self._batch([nodes[i] for i in members], members, [before[i] for i in members], long)

    def _batch(
        self, nodes: list[Node], members: list[int], paths: list[np.ndarray], long: np.bool_ | None
    ) -> PrefillBatch:
        count, starts = size(len(nodes)), [node.start for node in nodes]
        ids, positions = padded([node.ids for node in nodes], starts, count, width, 8)
        alike = common(paths)
        shared, shared_at = padded([paths[0][:alike]], [0], 1, size, 64)
        rests = [path[alike:] for path in paths]
        # Few rows have room for slots of their own, needed or not: shapes are fewer and no number changes.
        few = int(alike > 0 and 128 * count <= self.tokens)
        own, own_at = padded(rests, [alike] * len(rests), count, lambda n, low: power(max(n, few), low), 64)
        tokens = min(-(-sum(len(node.ids) for node in nodes) // self._step) * self._step, ids.size)
        before = Before(shared[0], shared_at[0], own, own_at)
        return PrefillBatch(members, Inputs(ids, positions, before, long), tokens)


def for_rows(devices: Iterable[Any], otherwise: int) -> int:
    """Bytes on each device that a batch's rows may take: a quarter of what is free where least is.

    Rounded down to a power of two: shapes of batches, and with them roundings, are then the same where a
    little more or less is free. `otherwise`: where a backend does not say what it has, such as a CPU.
    """
    stats = [device.memory_stats() for device in devices]
    if not all(each and {"bytes_limit", "bytes_in_use"} <= each.keys() for each in stats):
        return otherwise
    free = min(each["bytes_limit"] - each["bytes_in_use"] for each in stats)
    return 1 << max(free // SHARE, 1).bit_length() - 1


def _path(node: Node, paths: Sequence[np.ndarray]) -> np.ndarray:
    return np.zeros(0, np.int32) if node.parent is None else paths[node.parent]


def padded(
    rows: Sequence[Sequence[int] | np.ndarray],
    starts: Sequence[int],
    count: int,
    bucketed: Callable[[int, int], int],
    floor: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Rows padded on the right to one bucket, and the positions of what is real, -1 elsewhere."""
    width = bucketed(max(map(len, rows)), floor)
    values, positions = np.zeros((count, width), np.int32), np.full((count, width), -1, np.int32)
    for place, (row, start) in enumerate(zip(rows, starts)):
        values[place, : len(row)] = row
        positions[place, : len(row)] = np.arange(start, start + len(row))
    return values, positions


def past_of(pool: Pool, before: Before) -> tuple[causal_lm.Past, causal_lm.Past]:
    """What stands before all rows, and before each beside it."""

    def past(slots: Array, places: Array) -> causal_lm.Past:
        keys, values = (jnp.take(x, slots, axis=1, mode="clip").swapaxes(-3, -2) for x in pool)
        return causal_lm.Past(keys, values, places)

    return past(before.shared, before.shared_at), past(before.own, before.own_at)


def forward(
    apply: Callable[..., causal_lm.Output],
    params: Params,
    pool: Pool,
    inputs: Inputs,
    tokens: int,
    **watched: Any,
) -> tuple[causal_lm.Output, causal_lm.Past, causal_lm.Past]:
    """What the model makes of a batch, and what stands before all rows and before each."""
    shared, past = past_of(pool, inputs.before)
    output = apply(
        params, inputs.ids, inputs.positions, (shared, past), tokens=tokens, long=inputs.long, **watched
    )
    return output, shared, past


@functools.lru_cache(maxsize=8)
def _extend(apply: Callable[..., causal_lm.Output], one_core: bool) -> Any:
    """Reads a batch and writes its keys and values into the pool, packed, from slot `offset` on."""

    def extend(params: Params, pool: Pool, inputs: Inputs, offset: Int[Array, ""], *, tokens: int) -> Pool:
        output, _, _ = forward(apply, params, pool, inputs, tokens)
        (real,) = jnp.nonzero(inputs.positions.reshape(-1) >= 0, size=tokens, fill_value=0)

        def write(old: Array, new: Array) -> Array:
            rows = new.swapaxes(2, 3)  # [l b t k h]
            packed = jnp.take(rows.reshape(rows.shape[0], -1, *rows.shape[3:]), real, axis=1, mode="clip")
            return jax.lax.dynamic_update_slice(old, packed, (0, offset, 0, 0))

        return Pool(write(pool.keys, output.keys), write(pool.values, output.values))

    return compilation.compiled(extend, one_core, static_argnames="tokens", donate_argnums=1)


@functools.lru_cache(maxsize=8)
def log_probabilities(apply: Callable[..., causal_lm.Output], cap: float | None, one_core: bool) -> Any:
    """Reads a batch and returns log p of the first `count` `targets` at (`rows`, `places`) in it. Logits
    exist nowhere else, and in blocks: their number does not need a program of its own."""

    def score(
        params: Params,
        pool: Pool,
        inputs: Inputs,
        rows: Int[Array, "m"],
        places: Int[Array, "m"],
        targets: Int[Array, "m"],
        count: Int[Array, ""],
        *,
        tokens: int,
    ) -> Float[Array, "m"]:
        hidden = forward(apply, params, pool, inputs, tokens)[0].hidden
        block = min(len(rows), BLOCK)

        def body(state: tuple[Array, Array]) -> tuple[Array, Array]:
            start, log_probs = state
            row, place, target = (
                jax.lax.dynamic_slice(x, (start,), (block,)) for x in (rows, places, targets)
            )
            logits = causal_lm.logits(params, hidden[row, place], cap)
            wanted = jnp.take_along_axis(logits, target[:, None], axis=1)[:, 0]
            values = wanted - jax.nn.logsumexp(logits, axis=1)
            return start + block, jax.lax.dynamic_update_slice(log_probs, values, (start,))

        empty = jnp.zeros(rows.shape, jnp.float32)
        return jax.lax.while_loop(lambda state: state[0] < count, body, (jnp.int32(0), empty))[1]

    return compilation.compiled(score, one_core, static_argnames="tokens")

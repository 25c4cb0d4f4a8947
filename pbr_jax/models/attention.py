"""Softmax attention of a batch of rows over pieces of keys and values: what is read, and what came before.

Pieces are never joined, so nothing is copied. What stands before all rows is one piece without a batch axis;
tokens attend to it packed, a block at a time, so that its scores stay in a core's cache.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pbr_jax.models.long_attention import blockwise, capped, sees
from pbr_jax.models.sharding import data_devices, over_data

# A row's tokens attend by at most 8 blocks of a multiple of 64, each to what stands before its end.
QUERY_BLOCK, QUERY_BLOCKS = 64, 8
LONG = 1024  # keys of a piece; beyond, they are attended to blockwise, whatever the platform
SHARED_BLOCK = 64  # packed tokens that attend at once to what stands before all rows, on a CPU


class Layout(NamedTuple):
    """Where tokens lie: in rows, [b t], for attention, and one after another, [n], for everything else."""

    positions: Int[Array, "b t"]
    rows: Int[Array, "n"] | None  # of each packed token: its place in the b t; None: all of them in order
    packed: Int[Array, "b t"] | None  # of each place in the rows: its packed token
    numbers: Int[Array, "n"] | None = None  # of each packed token, by which dropout knows it
    watched: Float[Array, "b t"] | None = None  # how much each token's attention counts in `mass`

    def pack(self, x: Array) -> Array:
        """[b t ...] -> [n ...]."""
        flat = x.reshape(-1, *x.shape[2:])
        return flat if self.rows is None else jnp.take(flat, self.rows, axis=0, mode="clip")

    def spread(self, x: Array) -> Array:
        """[n ...] -> [b t ...]; places of padding get some token's values."""
        if self.packed is None:
            return x.reshape(*self.positions.shape, *x.shape[1:])
        return jnp.take(x, self.packed, axis=0, mode="clip")

    def divided(self, x: Array, *rest: None) -> Array:
        """[n ...], which lies where its rows do (`sharding.over_data`)."""
        return over_data(x, len(self.positions), *rest)


Piece = tuple[Float[Array, "*_ k _ h"], Float[Array, "*_ k _ h"], Int[Array, "*_"]]
"""Keys, values, and their positions; negative ones are never attended to."""


class Part(NamedTuple):
    """Attention over some of the keys: `mixed / total` if they were all; `most` was taken from the scores."""

    most: Float[Array, "*n 1"]
    total: Float[Array, "*n 1"]
    mixed: Float[Array, "*n h"]

    def whole(self) -> Array:
        # Divided after the product: of a width h, not of as many as there are keys.
        return self.mixed / self.total


def attend(
    query: Float[Array, "n a h"],
    pieces: list[Piece],
    layout: Layout,
    window: Int[Array, ""] | None,
    cap: float | None,
    bias: Sequence[Float[Array, "#a t _s"]] | None = None,
) -> Float[Array, "n d"]:
    """Attention of every packed token over `pieces`, the first of which is the tokens' own.

    Args:
      query: scaled.
      layout: where the tokens lie in rows; positions rise in a row, but for padding or with a bias.
      window: how many tokens back are seen; None: all.
      cap: scores are squashed into (-cap, cap).
      bias: what is added to the scores of each piece, where every head has keys of its own.
    """
    n, a, h = query.shape
    k = pieces[0][0].shape[1]
    t = layout.positions.shape[1]
    query = query.reshape(n, k, a // k, h)
    rows = layout.spread(query)
    rowwise = [x for x in pieces if x[0].ndim == 4]
    if bias is None and any(_is_long(t, x) for x in rowwise):
        own = _over_long(rows, rowwise, layout.positions, window, cap)
    else:
        own = _over_rows(rows, rowwise, layout.positions, window, cap, bias)
    shared = [x for x in pieces if x[0].ndim == 3]
    if not shared:
        return layout.pack(own.whole().astype(query.dtype)).reshape(n, -1)
    parts = [Part(*map(layout.pack, own))]
    positions = layout.pack(layout.positions)
    for piece in shared:
        if _is_long(n, piece):
            keys, values, places = (x[None] for x in piece)
            whole = _over_long(query[None], [(keys, values, places)], positions[None], window, cap)
            parts.append(Part(*(x[0] for x in whole)))
        else:
            parts.append(_over_shared(query, piece, positions, window, cap))
    return _joined(parts).whole().astype(query.dtype).reshape(n, -1)


def mass(
    query: Float[Array, "n a h"],
    pieces: list[Piece],
    layout: Layout,
    window: Int[Array, ""] | None,
    cap: float | None,
) -> list[Float[Array, "b s"]]:
    """How much attention each key of each piece gets, summed over heads and over the tokens of a row, each of
    these times `layout.watched`. Scores exist for `QUERY_BLOCK` tokens at a time; arguments as `attend`'s.
    """
    n, a, h = query.shape
    k = pieces[0][0].shape[-3]
    rows = layout.spread(query.reshape(n, k, a // k, h)).transpose(0, 2, 3, 1, 4)  # [b k g t h]
    b, t = layout.positions.shape
    watched = jnp.zeros((b, t)) if layout.watched is None else layout.watched
    rowwise = [
        tuple(jnp.broadcast_to(x, (b, *x.shape)) for x in piece) if piece[0].ndim == 3 else piece
        for piece in pieces
    ]
    padding = -t % QUERY_BLOCK
    rows = jnp.pad(rows, ((0, 0), (0, 0), (0, 0), (0, padding), (0, 0)))
    own = jnp.pad(layout.positions, ((0, 0), (0, padding)), constant_values=-1)
    watched = jnp.pad(watched, ((0, 0), (0, padding)))
    blocks = jnp.moveaxis(rows.reshape(*rows.shape[:3], -1, QUERY_BLOCK, h), 3, 0)
    places, weights = (x.reshape(b, -1, QUERY_BLOCK).swapaxes(0, 1) for x in (own, watched))

    def block(state: list[Array], some: tuple[Array, Array, Array]) -> tuple[list[Array], None]:
        tokens, places, weights = some
        scores = [_masked(_scores(tokens, keys), places, at, window, cap) for keys, _, at in rowwise]
        most = functools.reduce(jnp.maximum, [x.max(axis=-1, keepdims=True) for x in scores])
        total = functools.reduce(jnp.add, [jnp.exp(x - most).sum(axis=-1, keepdims=True) for x in scores])
        scale = weights[:, None, None, :, None] / total
        return [old + (jnp.exp(x - most) * scale).sum((1, 2, 3)) for old, x in zip(state, scores)], None

    start = [jnp.zeros(at.shape, jnp.float32) for _, _, at in rowwise]
    return jax.lax.scan(block, start, (blocks, places, weights))[0]


def _joined(parts: list[Part]) -> Part:
    most = functools.reduce(jnp.maximum, [part.most for part in parts])
    scales = [jnp.exp(part.most - most) for part in parts]
    return Part(
        most,
        functools.reduce(jnp.add, [part.total * scale for part, scale in zip(parts, scales)]),
        functools.reduce(jnp.add, [part.mixed * scale for part, scale in zip(parts, scales)]),
    )


def _over_shared(
    query: Float[Array, "n k g h"],
    piece: Piece,
    positions: Int[Array, "n"],
    window: Int[Array, ""] | None,
    cap: float | None,
) -> Part:
    """Attention to what stands before all rows; all of it lies before every token."""
    keys, values, places = piece
    size = min(len(query), SHARED_BLOCK if jax.default_backend() == "cpu" else 16 * SHARED_BLOCK)

    def block(some: Array, own: Array) -> Part:  # [r k g h], [r]
        # Tokens are moved behind heads before the product: moving its scores would take longer.
        some = some.transpose(1, 2, 0, 3)
        scores = jnp.einsum("kgrh,ksh->kgrs", some, keys, preferred_element_type=jnp.float32)
        visible = (places >= 0)[None, :]
        if window is not None:
            visible &= places[None, :] > own[:, None] - window
        scores = jnp.where(visible, capped(scores, cap), jnp.finfo(jnp.float32).min)
        most = scores.max(axis=-1, keepdims=True)
        weights = jnp.exp(scores - most)
        mixed = jnp.einsum(
            "kgrs,ksh->kgrh", weights.astype(values.dtype), values, preferred_element_type=jnp.float32
        )
        return Part(*(jnp.moveaxis(x, 2, 0) for x in (most, weights.sum(axis=-1, keepdims=True), mixed)))

    return _by_blocks(block, size, query, positions)


def _by_blocks(block: Callable[..., Part], size: int, query: Array, positions: Array) -> Part:
    n = len(query)
    if n <= size or data_devices():  # a block of tokens would come from other devices
        return block(query, positions)
    padding = -n % size
    query = jnp.pad(query, ((0, padding), (0, 0), (0, 0), (0, 0))).reshape(-1, size, *query.shape[1:])
    positions = jnp.pad(positions, (0, padding), constant_values=-1).reshape(-1, size)
    parts = jax.lax.map(lambda x: block(*x), (query, positions))
    return Part(*(x.reshape(-1, *x.shape[2:])[:n] for x in parts))


def _is_long(queries: int, piece: Piece) -> bool:
    return queries > QUERY_BLOCK and piece[0].shape[-2] > LONG


def _over_long(
    query: Float[Array, "b t k g h"],
    pieces: list[Piece],
    positions: Int[Array, "b t"],
    window: Int[Array, ""] | None,
    cap: float | None,
) -> Part:
    """`_over_rows`, a block of keys at a time."""
    query = query.transpose(0, 2, 3, 1, 4)
    found = [blockwise(query, keys, values, positions, at, window, cap) for keys, values, at in pieces]
    whole = _joined([Part(log_sum, jnp.ones_like(log_sum), mixed) for mixed, log_sum in found])
    return Part(*(x.transpose(0, 3, 1, 2, 4) for x in whole))


def _over_rows(
    query: Float[Array, "b t k g h"],
    pieces: list[Piece],
    positions: Int[Array, "b t"],
    window: Int[Array, ""] | None,
    cap: float | None,
    bias: Sequence[Float[Array, "#k t _s"]] | None = None,
) -> Part:
    """Attention of the tokens of each row to what is the row's."""
    t = query.shape[1]
    # Scores come out as [b k g r s] without moving them: the largest arrays of the layer.
    query = query.transpose(0, 2, 3, 1, 4)

    def block(some: Array, own: Array, pieces: list[Piece], rows: slice) -> Part:  # [b k g r h], [b r]
        scores = [_scores(some, keys) for keys, _, _ in pieces]
        if bias is not None:
            scores = [x + added[None, :, None, rows] for x, added in zip(scores, bias, strict=True)]
        scores = [_masked(x, own, places, window, cap) for x, (_, _, places) in zip(scores, pieces)]
        most = functools.reduce(jnp.maximum, [x.max(axis=-1, keepdims=True) for x in scores])
        weights = [jnp.exp(x - most) for x in scores]
        total = functools.reduce(jnp.add, [x.sum(axis=-1, keepdims=True) for x in weights])
        mixed = [_mix(x.astype(values.dtype), values) for x, (_, values, _) in zip(weights, pieces)]
        return Part(most, total, functools.reduce(jnp.add, mixed))

    # Without a bias tokens stand in order: no block sees what comes after it.
    # Of at least 128: those of 64 run no faster, and each more is a part of the program to compile.
    size = max(2, -(-t // (QUERY_BLOCKS * QUERY_BLOCK))) * QUERY_BLOCK
    (keys, values, places), *past = pieces
    parts = []
    for start in range(0, t, size):
        end = min(start + size, t)
        last = end if bias is None else keys.shape[2]
        seen = [(keys[:, :, :last], values[:, :, :last], places[:, :last]), *past]
        parts.append(block(query[:, :, :, start:end], positions[:, start:end], seen, slice(start, end)))
    whole = Part(*(jnp.concatenate(x, axis=3) for x in zip(*parts)))
    return Part(*(x.transpose(0, 3, 1, 2, 4) for x in whole))


def _masked(
    scores: Float[Array, "b k g r s"],
    own: Int[Array, "b r"],
    places: Int[Array, "b s"],
    window: Int[Array, ""] | None,
    cap: float | None,
) -> Float[Array, "b k g r s"]:
    """Scores of keys at `places` for queries at `own`, those that are not seen made very small. A finite
    fill: a row that sees nothing (padding) averages everything instead of making NaN."""
    visible = sees(own, places, window)[:, None, None]
    return jnp.where(visible, capped(scores, cap), jnp.finfo(jnp.float32).min)


def _scores(query: Float[Array, "b k g r h"], keys: Float[Array, "b k s h"]) -> Float[Array, "b k g r s"]:
    if query.shape[3] == 1:  # one token a row: on CPU faster by far with the long side first
        scores = jnp.einsum("bksh,bkgrh->bksgr", keys, query, preferred_element_type=jnp.float32)
        return jnp.moveaxis(scores, 2, 4)
    return jnp.einsum("bkgrh,bksh->bkgrs", query, keys, preferred_element_type=jnp.float32)


def _mix(weights: Float[Array, "b k g r s"], values: Float[Array, "b k s h"]) -> Float[Array, "b k g r h"]:
    return jnp.einsum("bkgrs,bksh->bkgrh", weights, values, preferred_element_type=jnp.float32)

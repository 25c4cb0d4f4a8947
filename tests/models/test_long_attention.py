"""Blockwise attention against a softmax over all keys written out, forward and backward."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from test_causal_lm import CASES, causal_lm, save, tokens

from pbr_jax.models import attention, long_attention, sharding
from pbr_jax.models.attention import Layout, attend

blockwise: Any = long_attention.blockwise


def alike(found: Any, wanted: Any) -> None:
    """Within 1e-5 of the largest value, or of one."""
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5 * max(1.0, float(np.abs(wanted).max())))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 16, from 20 keys on."""
    monkeypatch.setattr(long_attention, "BLOCKS", {"cpu": 16})
    monkeypatch.setattr(attention, "LONG", 20)
    monkeypatch.setattr(attention, "QUERY_BLOCK", 4)


def written_out(*arguments: Any) -> Any:
    query, keys, values, own, places, window, cap = arguments
    scores = jnp.einsum("bkgth,bksh->bkgts", query, keys)
    scores = scores if cap is None else cap * jnp.tanh(scores / cap)
    back = own[:, :, None] - places[:, None, :]
    seen = (back >= 0) & (places >= 0)[:, None, :]
    seen = (seen if window is None else seen & (back < window))[:, None, None]
    weights = jnp.where(seen, jnp.exp(scores), 0)
    total = weights.sum(-1, keepdims=True)
    mixed = jnp.einsum("bkgts,bksh->bkgth", weights, values) / jnp.where(total > 0, total, 1)
    return mixed, jnp.log(jnp.where(total > 0, total, 1)), total > 0


def rising(length: int, rows: str, start: int = 0) -> np.ndarray:
    """Positions of three rows: whole, with padding at an end or within, and without a token."""
    positions = np.full((3, length), -1, np.int32)
    positions[0] = start + np.arange(length)
    real = {"right": slice(0, length // 2), "left": slice(length // 3, None), "within": slice(0, None, 2)}
    count = len(positions[1, real[rows]])
    positions[1, real[rows]] = start + np.arange(count)
    return positions


@pytest.mark.long
@pytest.mark.parametrize(("window", "cap"), [(None, None), (9, 2.0)])
@pytest.mark.parametrize(("t", "s", "rows"), [(37, 37, "right"), (53, 41, "left"), (16, 64, "within")])
def test_values_and_gradients_equal_those_of_all_scores(small, t, s, rows, window, cap):
    draw = np.random.default_rng(t + s)
    query = draw.normal(size=(3, 2, 3, t, 8))
    keys, values = draw.normal(size=(2, 3, 2, s, 8))
    to_mixed, to_log = draw.normal(size=query.shape), draw.normal(size=(*query.shape[:4], 1))
    own, places = jnp.asarray(rising(t, rows, max(s - t, 0))), jnp.asarray(rising(s, rows))
    width = None if window is None else jnp.int32(window)
    arrays = [jnp.asarray(x, jnp.float32) for x in (query, keys, values)]

    def ours(*arrays: Any) -> Any:
        mixed, log_sum = blockwise(*arrays, own, places, width, cap)
        return (mixed * to_mixed).sum() + jnp.where(log_sum > -1e30, log_sum * to_log, 0).sum()

    def wanted(*arrays: Any) -> Any:
        mixed, log_sum, any_seen = written_out(*arrays, own, places, width, cap)
        return (mixed * to_mixed).sum() + jnp.where(any_seen, log_sum * to_log, 0).sum()

    mixed, log_sum = blockwise(*arrays, own, places, width, cap)
    mixed_, log_sum_, any_seen = written_out(*arrays, own, places, width, cap)
    np.testing.assert_allclose(mixed, mixed_, atol=1e-5)
    np.testing.assert_allclose(np.where(any_seen, log_sum, 0), np.where(any_seen, log_sum_, 0), atol=1e-5)
    assert (np.asarray(log_sum)[~np.asarray(any_seen)] < -1e30).all()
    assert not np.asarray(any_seen).all()
    found = jax.jit(jax.grad(ours, (0, 1, 2)))(*arrays)
    for a, b in zip(found, jax.jit(jax.grad(wanted, (0, 1, 2)))(*arrays), strict=True):
        alike(a, b)


def layer(t: int) -> tuple[Any, list[Any]]:
    """Attention of two rows, one padded, each with 30 tokens before it and 26 before both."""
    draw = np.random.default_rng(t)
    own = np.stack([56 + np.arange(t), np.where(np.arange(t) < t - 7, 56 + np.arange(t), -1)])
    before = np.stack([26 + np.arange(30), np.where(np.arange(30) < 19, 26 + np.arange(30), -1)])
    shapes = (2 * t, 4, 8), (2, 2, t, 8), (2, 2, t, 8), (2, 2, 30, 8), (2, 2, 30, 8), (2, 26, 8), (2, 26, 8)
    arrays = [jnp.asarray(draw.normal(size=shape), jnp.float32) for shape in shapes]
    real = jnp.asarray((own >= 0).reshape(-1, 1))

    def read(*arrays: Any) -> Any:
        query, keys, values, more, further, shared, too = arrays
        pieces = [
            (keys, values, jnp.asarray(own)),
            (more, further, jnp.asarray(before)),
            (shared, too, jnp.arange(26)),
        ]
        return attend(query, pieces, Layout(jnp.asarray(own), None, None), jnp.int32(50), None) * real

    return read, arrays


def with_gradients(read: Any, arrays: list[Any]) -> list[np.ndarray]:
    def loss(*arrays: Any) -> Any:
        values = read(*arrays)
        return jnp.sin(3 * values).sum(), values

    gradients, values = jax.jit(jax.grad(loss, range(len(arrays)), has_aux=True))(*arrays)
    return [np.asarray(x) for x in (values, *gradients)]


@pytest.mark.long
@pytest.mark.parametrize("case", ["gemma2", "gemma3"])
def test_a_model_reads_long_texts_as_before(case, small, monkeypatch, tmp_path):
    save(CASES[case], tmp_path)
    _, params, config = causal_lm.load(tmp_path)
    ids = jnp.asarray(tokens(2, 75))
    positions = jnp.broadcast_to(jnp.arange(75), ids.shape)

    def read() -> list[np.ndarray]:
        model = causal_lm.causal_lm(config)  # another function, so that it is traced anew

        def loss(params: Any) -> Any:
            hidden = model.apply(params, ids, positions).hidden
            return jnp.square(hidden[..., ::2]).mean(), hidden

        gradients, hidden = jax.jit(jax.grad(loss, has_aux=True))(params)
        return [np.asarray(x) for x in (hidden, *jax.tree.leaves(gradients))]

    found = read()
    monkeypatch.setattr(attention, "LONG", 1000)
    for a, b in zip(found, read(), strict=True):
        alike(a, b)


def test_no_array_of_a_gradient_is_as_large_as_all_scores():
    t, heads = 2048, 4
    shapes = [(1, heads, 1, t, 8), (1, heads, t, 8), (1, heads, t, 8)]
    arrays, places = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes], jnp.arange(t)[None]

    def loss(*arrays: Any) -> Any:
        return jnp.square(jax.checkpoint(blockwise)(*arrays, places, places)[0]).sum()

    compiled = jax.jit(jax.grad(loss, (0, 1, 2))).lower(*arrays).compile()
    analysis: Any = compiled.memory_analysis()
    assert analysis.temp_size_in_bytes < 4 * heads * t**2 / 4


def test_blocks_that_are_not_seen_are_not_read(small):
    """Keys that are NaN, out of every window: a product with them would show."""
    draw, t = np.random.default_rng(0), 64
    query, (keys, values) = draw.normal(size=(1, 1, 1, t, 8)), draw.normal(size=(2, 1, 1, 96, 8))
    keys[:, :, :32], values[:, :, 80:] = np.nan, np.nan
    arrays = [jnp.asarray(x, jnp.float32) for x in (query, keys, values)]
    own, places = 48 + jnp.arange(t)[None] // 2, jnp.arange(96)[None]
    mixed, log_sum = blockwise(*arrays, own, places, jnp.int32(10))
    assert np.isfinite(mixed).all()
    assert np.isfinite(log_sum).all()


@pytest.mark.long
def test_heads_may_lie_on_several_devices(small):
    mesh = sharding.mesh(model=2)
    read, arrays = layer(64)
    wanted = with_gradients(read, arrays)
    heads = [1, 1, 1, 1, 1, 0, 0]
    divided = [
        jax.device_put(x, NamedSharding(mesh, PartitionSpec(*[None] * axis, "model")))
        for x, axis in zip(arrays, heads)
    ]
    for a, b in zip(with_gradients(read, divided), wanted, strict=True):
        alike(a, b)


def test_half_precision_stays_near(small):
    draw = np.random.default_rng(0)
    arrays = [jnp.asarray(draw.normal(size=s), jnp.float32) for s in ((1, 2, 2, 50, 8), *[(1, 2, 50, 8)] * 2)]
    places = jnp.arange(50)[None]
    wanted = blockwise(*arrays, places, places)[0]
    found = blockwise(*[x.astype(jnp.bfloat16) for x in arrays], places, places)[0]
    assert found.dtype == jnp.float32
    assert float(jnp.abs(found - wanted).mean() / wanted.std()) < 0.02

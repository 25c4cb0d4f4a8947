"""Transformer layers against torch's TransformerEncoder, MLPs against torch, dropout against its law."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from pbr_jax.models import layers

MASK = np.array([[1, 1, 1, 1, 1], [1, 0, 1, 1, 0], [0, 0, 1, 0, 0]], bool)


class Stack(nn.Module):
    config: layers.LayerConfig
    num_layers: int

    @nn.compact
    def __call__(self, states: jax.Array, mask: jax.Array) -> jax.Array:
        return layers.stack(self, self.config, self.num_layers, states, jnp.asarray(mask)[:, None, :])


def test_values_and_gradients_equal_torch(from_torch) -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, dim_feedforward=12, batch_first=True)
    oracle = from_torch.spread(torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    states = torch.randn(3, 5, 8, requires_grad=True)
    direction = torch.randn(3, 5, 8) * torch.tensor(MASK)[..., None]
    wanted = oracle(states, src_key_padding_mask=~torch.tensor(MASK))
    torch.tanh((wanted * direction).sum() / 8).backward()

    module = Stack(layers.LayerConfig(num_heads=2, mlp_width=12), 2)

    def objective(params: dict, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        found = module.apply({"params": params}, x, MASK)
        assert isinstance(found, jax.Array)
        return jnp.tanh((found * direction.numpy()).sum() / 8), found

    params = {"layers": from_torch.layers(from_torch.weights(oracle), "")}
    gradient = jax.jit(jax.grad(objective, argnums=(0, 1), has_aux=True))
    (by_weight, by_state), found = gradient(params, jnp.array(states.detach().numpy()))
    np.testing.assert_allclose(found[MASK], wanted.detach().numpy()[MASK], atol=1e-5, rtol=0)
    expected = {"layers": from_torch.layers(from_torch.gradients(oracle), "")}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4, rtol=0), by_weight, expected)
    assert states.grad is not None
    np.testing.assert_allclose(by_state, states.grad.numpy(), atol=1e-4, rtol=0)
    assert np.abs(states.grad.numpy()).max() > 1e-3


def test_no_layers_change_nothing_and_have_no_parameters() -> None:
    module = Stack(layers.LayerConfig(num_heads=2, mlp_width=12), 0)
    states = jnp.ones((3, 5, 8))
    assert "params" not in module.init(jax.random.key(0), states, MASK)
    np.testing.assert_array_equal(np.asarray(module.apply({}, states, MASK)), states)


def test_dropout_keeps_the_mean_and_needs_a_key() -> None:
    class Drop(nn.Module):
        def __call__(self, x: jax.Array) -> jax.Array:
            return layers.drop(self, 0.25, x, layers.places(x))

    x = jnp.linspace(1, 2, 20_001).reshape(3, -1)  # rows of an odd length
    dropped = np.asarray(Drop().apply({}, x, rngs=layers.rngs(jax.random.key(0))))
    kept = dropped != 0
    np.testing.assert_allclose(dropped[kept], x[kept] / 0.75, rtol=1e-6)
    assert abs(kept.mean() - 0.75) < 0.015  # five standard deviations
    for one, other in ((kept[:, :-1:2], kept[:, 1::2]), (kept[0], kept[1])):  # no place depends on another
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.06
    np.testing.assert_array_equal(np.asarray(Drop().apply({}, x, rngs=layers.rngs(None))), x)


def test_a_row_loses_the_same_wherever_it_stands() -> None:
    class Drop(nn.Module):
        def __call__(self, x: jax.Array, rows: jax.Array) -> jax.Array:
            return layers.drop(self, 0.5, x, rows)

    x, rows = jnp.ones((4, 3, 7)), jnp.array([5, 2, 9, 2])
    whole = np.asarray(Drop().apply({}, x, rows, rngs=layers.rngs(jax.random.key(0))))
    for part in ([2, 0], [1, 3]):
        some = Drop().apply({}, x[:2], rows[jnp.array(part)], rngs=layers.rngs(jax.random.key(0)))
        np.testing.assert_array_equal(np.asarray(some), whole[part])
    np.testing.assert_array_equal(whole[1], whole[3])
    assert not np.array_equal(whole[0], whole[1])


def dropping(**rates: Any) -> Callable[..., Any]:
    """A function (key) -> states, with dropout at these rates."""
    module = Stack(replace(layers.LayerConfig(num_heads=2, mlp_width=12), **rates), 2)
    rng = np.random.default_rng(0)
    states = jnp.array(rng.normal(size=(3, 5, 8)), jnp.float32)
    shapes = jax.eval_shape(module.init, jax.random.key(1), states, MASK)
    params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), shapes)
    return lambda key: module.apply(params, states, MASK, rngs=layers.rngs(key))


def test_states_depend_on_the_key_of_dropout() -> None:
    apply = jax.jit(dropping(dropout=0.5))
    # The generator "rbg" compiles in a third of the time of the default one.
    one, same, other = (np.asarray(apply(jax.random.key(seed, impl="rbg"))) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert np.abs(one - other).max() > 1e-2


@pytest.mark.parametrize("place", ["dropout", "attention_dropout", "mlp_dropout"])
def test_each_dropout_draws_with_a_key_only(place: str) -> None:
    apply = dropping(**{place: 0.5})
    assert "random_bits[" in str(jax.make_jaxpr(apply)(jax.random.key(0)))
    assert "random_bits[" not in str(jax.make_jaxpr(lambda: apply(None))())


def test_masked_mean_of_nothing_is_zero_with_a_finite_gradient() -> None:
    states = jnp.array(np.random.default_rng(0).normal(size=(3, 5, 8)), jnp.float32)
    mask = jnp.array(MASK).at[2].set(False)
    means = layers.masked_mean(states, mask)
    np.testing.assert_allclose(means[1], states[1, jnp.array([0, 2, 3])].mean(0), atol=1e-6)
    assert not np.asarray(means[2]).any()
    gradient = jax.grad(lambda s: layers.masked_mean(s, mask).sum())(states)
    assert np.isfinite(gradient).all()

"""The user encoder against torch's TransformerEncoder; histories empty, short, masked and too long."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pbr_jax.models.user_transformer import UserTransformerConfig, user_transformer

CONFIG = UserTransformerConfig(width=8, max_documents=7, mlp_width=12)
MODEL = user_transformer(CONFIG)
RNG = np.random.default_rng(0)
SHAPES = jax.eval_shape(MODEL.init, jax.random.key(0))
PARAMS = jax.tree.map(lambda leaf: RNG.normal(0.2, 0.8, leaf.shape).astype(np.float32), SHAPES)
HISTORY, DIRECTION = (RNG.normal(size=size).astype(np.float32) for size in ((3, 6, 8), (3, 8)))
MASK = np.arange(6) < np.array([[6], [4], [1]])
NONE = np.zeros_like(MASK)


def objective(params: dict, history: Any, mask: Any, replaced: Any) -> tuple[jax.Array, jax.Array]:
    users = MODEL.apply(params, history, mask, replaced=replaced)
    return jnp.tanh((users * DIRECTION).sum() / 4), users


GRADIENTS = jax.jit(jax.grad(objective, argnums=(0, 1), has_aux=True))


def users(history: np.ndarray, mask: np.ndarray, replaced: np.ndarray = NONE) -> np.ndarray:
    return np.asarray(GRADIENTS(PARAMS, history, mask, replaced)[1])


def test_values_and_gradients_equal_torch(from_torch) -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, dim_feedforward=12, batch_first=True)
    transformer = from_torch.spread(torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=False))
    positions = torch.nn.Embedding(7, 8)
    history = torch.tensor(HISTORY, requires_grad=True)
    states = transformer(history + positions.weight[:6], src_key_padding_mask=~torch.tensor(MASK))
    mask = torch.tensor(MASK)[..., None].float()
    expected = (states * mask).sum(1) / mask.sum(1)
    torch.tanh((expected * torch.tensor(DIRECTION)).sum() / 4).backward()

    def ours(named: dict, embedding: torch.Tensor | None) -> dict:
        assert embedding is not None
        return {"position": {"embedding": embedding.detach().numpy()}, "layers": from_torch.layers(named, "")}

    params = ours(from_torch.weights(transformer), positions.weight) | {"mask": np.zeros(8, np.float32)}
    (by_weight, by_history), found = GRADIENTS(params, HISTORY, MASK, NONE)
    np.testing.assert_allclose(found, expected.detach().numpy(), atol=1e-5, rtol=0)
    assert not np.asarray(by_weight.pop("mask")).any()
    wanted = ours(from_torch.gradients(transformer), positions.weight.grad)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4, rtol=0), by_weight, wanted)
    assert history.grad is not None
    np.testing.assert_allclose(by_history, history.grad.numpy(), atol=1e-4, rtol=0)
    assert np.abs(history.grad.numpy()).max() > 1e-3


@settings(max_examples=20)
@given(st.lists(st.booleans(), min_size=18, max_size=18))
def test_masking_equals_dropping(kept: list[bool]) -> None:
    mask = np.array(kept).reshape(3, 6)
    dropped = np.full_like(HISTORY, 9)  # what padding holds does not matter
    for user in range(3):
        dropped[user, : mask[user].sum()] = HISTORY[user, mask[user]]
    masked = users(HISTORY, mask)
    at_the_end = np.arange(6) < mask.sum(1, keepdims=True)
    np.testing.assert_allclose(masked, users(dropped, at_the_end), atol=1e-5, rtol=0)
    assert not masked[~mask.any(1)].any()


def test_the_width_of_the_padding_changes_nothing() -> None:
    alone = jax.jit(MODEL.apply)(PARAMS, HISTORY[1:2, :4], np.ones((1, 4), bool))
    np.testing.assert_allclose(users(HISTORY, MASK)[1], alone[0], atol=1e-5, rtol=0)


def test_gradients_are_finite_for_empty_and_one_document_histories() -> None:
    mask = MASK.copy()
    mask[1] = False
    gradients, found = GRADIENTS(PARAMS, HISTORY, mask, NONE)
    assert not np.asarray(found)[1].any()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))
    assert not np.asarray(gradients[1][1]).any()
    assert np.asarray(gradients[1][2, 0]).any()
    empty = jax.jit(MODEL.apply)(PARAMS, np.zeros((2, 0, 8), np.float32), np.zeros((2, 0), bool))
    np.testing.assert_array_equal(empty, np.zeros((2, 8)))


def test_a_replaced_document_is_the_mask_embedding() -> None:
    replaced = NONE.copy()
    replaced[0, 2] = replaced[2, 0] = True
    found = users(HISTORY, MASK, replaced)
    written = np.where(replaced[..., None], PARAMS["mask"], HISTORY)
    np.testing.assert_allclose(found, users(written, MASK), atol=1e-6)
    changed = np.abs(found - users(HISTORY, MASK)).max(1) > 1e-3
    assert changed.tolist() == [True, False, True]
    by_weight, _ = GRADIENTS(PARAMS, HISTORY, MASK, replaced)[0]
    assert np.asarray(by_weight["mask"]).any()


def test_order_matters() -> None:
    changed = np.abs(users(HISTORY[:, ::-1], MASK[:, ::-1]) - users(HISTORY, MASK)).max(1) > 1e-3
    assert changed.tolist() == [True, True, False]


def test_dropout_needs_a_key(draws) -> None:
    assert draws(MODEL.apply, PARAMS, HISTORY, MASK)
    without = user_transformer(replace(CONFIG, dropout=0.0))
    assert not draws(without.apply, PARAMS, HISTORY, MASK)


def test_too_long_or_wide_a_history_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"\[1, 8, 8\]; n is at most 7 \(max_documents\)"):
        MODEL.apply(PARAMS, np.zeros((1, 8, 8), np.float32), np.ones((1, 8), bool))
    with pytest.raises(ValueError, match=r"d 8 \(width\)"):
        MODEL.apply(PARAMS, np.zeros((1, 7, 4), np.float32), np.ones((1, 7), bool))

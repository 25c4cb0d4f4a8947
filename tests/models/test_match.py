"""What PURPLE's policy is given of fit and of retrievers' scores: gradients, order, padding, odd sizes."""

from typing import Any

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

from pbr_jax.models.set_policy import SetPolicyConfig, from_arrays, matched, set_policy

B, N, T, S, D, F = 2, 5, 3, 4, 8, 3
RNG = np.random.default_rng(1)
BATCH: dict[str, Any] = {
    "query": RNG.normal(size=(B, S, D)).astype(np.float32),
    "records": RNG.normal(size=(B, N, T, D)).astype(np.float32),
    "features": RNG.normal(size=(B, N, F)).astype(np.float32),
    "query_mask": np.arange(S) < np.array([[4], [1]]),
    "token_mask": np.broadcast_to(np.arange(T) < np.array([[[3]], [[2]]]), (B, N, T)),
    "record_mask": np.arange(N) < np.array([[5], [1]]),
}
CONFIG = SetPolicyConfig(
    width=D, fusion="match", num_layers=1, num_heads=2, mlp_width=12, decoder_width=6, num_features=F
)
MODEL = set_policy(CONFIG)
SCORE = jax.jit(from_arrays(MODEL))


@pytest.fixture(scope="module")
def params(random_params) -> Any:
    return random_params(MODEL)


def test_matched_is_the_fit_of_unit_vectors():
    query, records = BATCH["query"][:, :1], BATCH["records"][:, :, 0]
    q, r = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (query, records))
    found = np.asarray(matched(jnp.asarray(query), jnp.asarray(records)))
    np.testing.assert_allclose(found[..., :D].mean(-1), (q * r).sum(-1), atol=1e-5)
    distance = np.linalg.norm(q - r, axis=-1)
    np.testing.assert_allclose(np.square(found[..., D:]).mean(-1), np.square(distance), atol=1e-5)
    assert np.isfinite(jax.grad(lambda x: matched(x, jnp.zeros((B, N, D))).sum())(jnp.zeros((B, 1, D)))).all()


def test_reordering_records_with_their_features_reorders_logits(params):
    order = np.array([3, 0, 4, 1, 2])
    moved = {name: BATCH[name][:, order] for name in ("records", "features", "token_mask", "record_mask")}
    found, wanted = SCORE(params, BATCH | moved), SCORE(params, BATCH)
    here = BATCH["record_mask"][:, order]
    np.testing.assert_allclose(found[here], wanted[:, order][here], atol=1e-5)
    swapped = SCORE(params, BATCH | {"features": BATCH["features"][:, order]})
    assert np.abs(swapped - wanted)[0].max() > 1e-2  # features count


def test_one_record_beside_padding_is_as_alone(params):
    alone = {name: BATCH[name][1:, :1] for name in ("records", "features", "token_mask", "record_mask")} | {
        name: BATCH[name][1:] for name in ("query", "query_mask")
    }
    filled = {**BATCH, "features": np.where(BATCH["record_mask"][..., None], BATCH["features"], 50.0)}
    np.testing.assert_allclose(SCORE(params, filled)[1, 0], SCORE(params, alone)[0, 0], atol=1e-5)


def test_features_must_be_as_many_as_was_said(params):
    with pytest.raises(ValueError, match="records have 2 features, want 3"):
        SCORE(params, BATCH | {"features": BATCH["features"][..., :2]})
    with pytest.raises(ValueError, match="records have 0 features, want 3"):
        SCORE(params, BATCH | {"features": None})

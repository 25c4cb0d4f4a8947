"""What a step computes does not depend on how its batch is divided, and bfloat16 is bfloat16."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pbr_jax.models import cross_encoder, dual_encoder
from pbr_jax.models.bert import BertConfig
from pbr_jax.models.user_transformer import UserTransformerConfig, user_transformer
from pbr_jax.options import Distillation
from pbr_jax.train import distillation as lessons
from pbr_jax.train import reranker, retriever, sharding, steps, user_encoder

B, C, T, U = 16, 2, 6, 4
BERT = BertConfig(
    vocab_size=11,
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=8,
    max_position_embeddings=T,
    hidden_dropout_prob=0.3,
    attention_probs_dropout_prob=0.3,
)
RANDOM = np.random.default_rng(0)
QUESTIONS = {
    "values": RANDOM.random((B, C)).astype(np.float32),
    "present": np.ones((B, C), bool),
    "where": np.arange(B) < 13,
    "users": RANDOM.normal(size=(B, U)).astype(np.float32),
}


def tokens(*shape: int) -> tuple[np.ndarray, np.ndarray]:
    return RANDOM.integers(0, 11, shape).astype(np.int32), np.ones(shape, bool)


def ranking() -> tuple[steps.Loss, Any, dict[str, np.ndarray]]:
    config = cross_encoder.CrossEncoderConfig(body=BERT, user_width=U)
    model = cross_encoder.cross_encoder(config)
    ids, mask = tokens(B, C, T)
    scorer = lessons.Scorer(dict, lambda _: {}, reranker._scores(model))
    batch = QUESTIONS | {"ids": ids, "mask": mask}
    return lessons._loss(scorer, Distillation()), model.init(jax.random.key(0)), batch  # pyright: ignore


def retrieving() -> tuple[steps.Loss, Any, dict[str, np.ndarray]]:
    config = dual_encoder.DualEncoderConfig(tower=BERT, user_width=U)
    (asked, asked_mask), (ids, mask) = tokens(B, T), tokens(B, C, T)
    batch = QUESTIONS | {"query_ids": asked, "query_mask": asked_mask}
    batch |= {"document_ids": ids, "document_mask": mask}
    scorer = lessons.Scorer(dict, lambda _: {}, retriever._scores(config, 0.3))
    params = dual_encoder.dual_encoder(config).init(jax.random.key(0))
    return lessons._loss(scorer, Distillation()), params, batch


def viewing() -> tuple[steps.Loss, Any, dict[str, np.ndarray]]:
    config = UserTransformerConfig(width=8, max_documents=5, dropout=0.3)
    batch: dict[str, np.ndarray] = {"where": QUESTIONS["where"]}
    for name in ("first", "second"):
        mask = RANDOM.random((B, 5)) < 0.8
        batch |= {name: RANDOM.normal(size=(B, 5, 8)).astype(np.float32), f"{name}_mask": mask}
        batch[f"{name}_hidden"] = mask & (RANDOM.random((B, 5)) < 0.3)
    params = user_transformer(config).init(jax.random.key(0))
    return user_encoder._loss(config, user_encoder.Objective(), dropout=True), params, batch


PARTS = {"reranker": ranking, "retriever": retrieving, "user encoder": viewing}


def gradients(loss: steps.Loss, params: Any, batch: dict[str, np.ndarray], accumulate: int, devices: int):
    """Loss and gradients of a batch as it is, and the loss under other names of its rows."""
    mesh = sharding.data_mesh(devices)

    def parts(params: Any, batch: dict[str, Any]) -> Any:
        return steps._gradients(jax.value_and_grad(loss), params, batch, jax.random.key(7), accumulate)

    run = jax.jit(parts, in_shardings=(sharding.replicated(mesh), sharding.divided(mesh)))
    rows = np.arange(B, dtype=np.int32)
    value, found = run(params, sharding.put(batch | {"row": rows}, mesh))
    other, _ = run(params, sharding.put(batch | {"row": rows + B}, mesh))
    return float(value), jax.tree.leaves(found), float(other)


@pytest.mark.long
@pytest.mark.parametrize("name", ["reranker", "user encoder"])
def test_dropout_follows_rows_not_parts_or_devices(name: str):
    loss, params, batch = PARTS[name]()
    parts = 1 if name == "user encoder" else 2  # its negatives are the rest of the batch
    value, whole, other = gradients(loss, params, batch, 1, 1)
    assert value != pytest.approx(other, rel=1e-5)  # it does drop
    found, divided, _ = gradients(loss, params, batch, parts, 8)
    assert found == pytest.approx(value, rel=1e-5)
    for one, same in zip(whole, divided, strict=True):
        np.testing.assert_allclose(one, same, rtol=1e-4, atol=1e-5)


def test_what_reinforce_draws_follows_rows_too():
    scores, values = (jnp.asarray(RANDOM.normal(size=(B, 5)), jnp.float32) for _ in range(2))
    rows, key = jnp.arange(B) + 3, jax.random.key(1)

    def losses(part: Any) -> np.ndarray:
        present = jnp.ones(scores[part].shape, bool)
        return np.asarray(
            lessons.sampled_reinforce(scores[part], values[part], present, 1.0, key, rows[part])
        )

    whole, odd = losses(slice(None)), slice(1, None, 2)
    np.testing.assert_allclose(losses(odd), whole[odd], rtol=1e-6)
    assert len(set(whole.tolist())) > 2

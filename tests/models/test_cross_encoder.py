"""The reranker against Hugging Face's XLM-R and BERT classifiers, and against torch's linear layers."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
import transformers

from pbr_jax.base.types import UserError
from pbr_jax.models import bert, cross_encoder
from pbr_jax.models.cross_encoder import CrossEncoderConfig

SIZES: dict[str, Any] = dict(
    vocab_size=30, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12,
)  # fmt: skip
XLMR: dict[str, Any] = dict(
    SIZES, layer_norm_eps=1e-12, max_position_embeddings=18, pad_token_id=1, type_vocab_size=1
)
BERT: dict[str, Any] = dict(SIZES, max_position_embeddings=16)
RNG = np.random.default_rng(0)
MASK = np.arange(9) < np.array([[9], [6], [2]])
IDS = np.where(MASK, RNG.integers(2, 30, MASK.shape), 1)
TYPES = (np.arange(9) > 2) * MASK.astype(np.int64)
USERS = RNG.normal(size=(3, 6)).astype(np.float32)
KEY = jax.random.key(0)


def xlmr(folder: Path, from_torch, labels: int = 1, **options: Any) -> torch.nn.Module:
    sizes: dict[str, Any] = XLMR | dict(num_labels=labels)
    config = transformers.XLMRobertaConfig(**sizes)
    model = from_torch.spread(transformers.XLMRobertaForSequenceClassification(config))
    model.save_pretrained(folder, **options)
    return model


BODY = bert.BertConfig(**SIZES, max_position_embeddings=16, position_offset=2, type_vocab_size=1)
CONFIG = CrossEncoderConfig(body=BODY, user_width=6)
MODEL = cross_encoder.cross_encoder(CONFIG)
DIRECTION = RNG.normal(size=3).astype(np.float32)


def objective(params: dict, users: Any, ids: Any, mask: Any) -> tuple[jax.Array, jax.Array]:
    scores = MODEL.apply(params, ids, users, mask=mask)
    return (scores * DIRECTION).sum(), scores


GRADIENTS = jax.jit(jax.grad(objective, argnums=(0, 1), has_aux=True))


def test_xlmr_reranker_equals_torch_whole_and_sharded(tmp_path: Path, from_torch) -> None:
    oracle: Any = xlmr(tmp_path / "whole", from_torch)
    oracle.save_pretrained(tmp_path / "shards", max_shard_size="2KB")
    assert len(list((tmp_path / "shards").glob("model-*.safetensors"))) > 1
    inputs = dict(input_ids=torch.tensor(IDS), attention_mask=torch.tensor(MASK).long())
    with torch.no_grad():
        logits = oracle(**inputs).logits[:, 0].numpy()
        states = oracle.roberta(**inputs).last_hidden_state[:, 0].numpy()
    model, params, config = cross_encoder.load(tmp_path / "whole", KEY)
    assert config.head
    assert (config.body.max_position_embeddings, config.body.position_offset) == (16, 2)
    both = jax.jit(lambda p: (model.relevance(p, IDS, mask=MASK), model.encode(p, IDS, mask=MASK)))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, rtol=0), both(params), (logits, states)
    )
    jax.tree.map(np.testing.assert_array_equal, cross_encoder.load(tmp_path / "shards", KEY)[1], params)


def test_bert_reranker_equals_torch(tmp_path: Path, from_torch) -> None:
    sizes: dict[str, Any] = BERT | dict(num_labels=1)
    config = transformers.BertConfig(**sizes)
    oracle: Any = from_torch.spread(transformers.BertForSequenceClassification(config))
    oracle.save_pretrained(tmp_path)
    with torch.no_grad():
        inputs = (torch.tensor(x) for x in (IDS, MASK.astype(int), TYPES))
        wanted = oracle(*inputs).logits[:, 0].numpy()
    model, params, _ = cross_encoder.load(tmp_path, KEY)
    found = jax.jit(model.relevance)(params, IDS, mask=MASK, types=TYPES)
    np.testing.assert_allclose(found, wanted, atol=1e-5, rtol=0)


def test_personal_scores_and_gradients_equal_torch(tmp_path: Path, from_torch) -> None:
    """Eq. 10 on an XLM-R without a head."""
    torch.manual_seed(0)
    body = from_torch.spread(transformers.XLMRobertaModel(transformers.XLMRobertaConfig(**XLMR)))
    body.save_pretrained(tmp_path)
    linear, tanh = torch.nn.Linear, torch.nn.Tanh
    user = torch.nn.Sequential(linear(6, 8), tanh(), linear(8, 8))
    score = torch.nn.Sequential(linear(16, 8), tanh(), linear(8, 8), tanh(), linear(8, 1))
    users = torch.tensor(USERS, requires_grad=True)
    states = body(torch.tensor(IDS), attention_mask=torch.tensor(MASK).long()).last_hidden_state[:, 0]
    wanted = score(torch.cat([states, user(users)], -1))[:, 0]
    (wanted * torch.tensor(DIRECTION)).sum().backward()

    model, params, config = cross_encoder.load(tmp_path, KEY, user_width=6)
    assert config == CONFIG
    shapes = jax.tree.map(lambda leaf: leaf.shape, params)
    assert shapes == jax.tree.map(lambda leaf: leaf.shape, jax.eval_shape(model.init, KEY))

    def ours(weights: Any) -> dict:
        parts = {"user": (user, 2), "score": (score, 3)}
        return {
            name: {f"dense_{i}": from_torch.linear(weights(module), f"{2 * i}.") for i in range(count)}
            for name, (module, count) in parts.items()
        }

    (by_weight, by_user), scores = GRADIENTS(params | ours(from_torch.weights), USERS, IDS, MASK)
    np.testing.assert_allclose(scores, wanted.detach().numpy(), atol=1e-5, rtol=0)
    assert users.grad is not None
    np.testing.assert_allclose(by_user, users.grad.numpy(), atol=1e-4, rtol=0)
    by_body = by_weight.pop("body")
    named = from_torch.gradients(body)
    words, positions = (named[f"embeddings.{kind}_embeddings.weight"] for kind in ("word", "position"))
    np.testing.assert_allclose(by_body["embeddings"]["word"]["embedding"], words, atol=1e-4, rtol=0)
    offset = config.body.position_offset
    found = by_body["embeddings"]["position"]["embedding"]
    np.testing.assert_allclose(found[:9], positions[offset : offset + 9], atol=1e-4, rtol=0)
    wanted_parts = ours(from_torch.gradients)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4, rtol=0), by_weight, wanted_parts)


def test_a_plain_bert_starts_a_personal_reranker(tmp_path: Path, from_torch) -> None:
    oracle: Any = from_torch.spread(transformers.BertModel(transformers.BertConfig(**BERT)))
    oracle.save_pretrained(tmp_path)
    with torch.no_grad():
        inputs = (torch.tensor(x) for x in (IDS, MASK.astype(int), TYPES))
        wanted = oracle(*inputs).last_hidden_state[:, 0].numpy()
    model, params, _ = cross_encoder.load(tmp_path, KEY, user_width=6, user_layers=1)
    assert set(params) == {"body", "user", "score"}
    assert set(params["user"]) == {"dense_0"}
    found = jax.jit(model.encode)(params, IDS, mask=MASK, types=TYPES)
    np.testing.assert_allclose(found, wanted, atol=1e-5, rtol=0)


def test_what_stands_in_padding_does_not_matter(random_params) -> None:
    params = random_params(MODEL)
    scores = np.asarray(GRADIENTS(params, USERS, IDS, MASK)[1])
    noisy = GRADIENTS(params, USERS, np.where(MASK, IDS, 29), MASK)[1]
    np.testing.assert_allclose(noisy, scores, atol=1e-5, rtol=0)
    assert scores.std() > 0.1


def test_a_row_of_padding_and_a_user_without_history_are_finite(random_params) -> None:
    result = GRADIENTS(random_params(MODEL), np.zeros_like(USERS), IDS, np.zeros_like(MASK))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result))


def test_dropout_needs_a_key(random_params, draws) -> None:
    assert draws(MODEL.apply, random_params(MODEL), IDS, USERS, mask=MASK)
    assert draws(MODEL.encode, random_params(MODEL), IDS, mask=MASK)


def test_what_the_config_lacks_is_an_error() -> None:
    model = cross_encoder.cross_encoder(CrossEncoderConfig(body=BODY))
    with pytest.raises(ValueError, match="no classification head"):
        model.relevance({}, IDS, mask=MASK)
    with pytest.raises(ValueError, match="user_width"):
        model.apply({}, IDS, USERS, mask=MASK)
    with pytest.raises(UserError, match="user_layers is 0"):
        CrossEncoderConfig(body=BODY, user_width=6, user_layers=0)

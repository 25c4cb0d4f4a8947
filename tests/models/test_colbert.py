"""ColBERT against Hugging Face's BERT with a linear layer."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file

from pbr_jax.base.types import UserError
from pbr_jax.models import bert, colbert
from pbr_jax.models.colbert import ColbertConfig

SIZES: dict[str, Any] = dict(
    vocab_size=30, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12,
    max_position_embeddings=16,
)  # fmt: skip
RNG = np.random.default_rng(0)
MASK = np.arange(9) < np.array([[9], [6], [2]])
IDS = np.where(MASK, RNG.integers(5, 30, MASK.shape), 0)
MASK_ID = 3


MODEL = colbert.colbert(ColbertConfig(body=bert.BertConfig(**SIZES), width=4))
DIRECTION = RNG.normal(size=(3, 9, 4)).astype(np.float32)


def objective(params: dict, ids: Any, attended: Any, kept: Any) -> tuple[jax.Array, jax.Array]:
    vectors = MODEL.apply(params, ids, attended=attended, kept=kept)
    return (vectors * DIRECTION).sum(), vectors


GRADIENT = jax.jit(jax.grad(objective, has_aux=True))


class Oracle(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.bert = transformers.BertModel(transformers.BertConfig(**SIZES), add_pooling_layer=False)
        self.linear = torch.nn.Linear(8, 4, bias=False)

    def forward(self, ids: np.ndarray, attended: np.ndarray, kept: np.ndarray) -> torch.Tensor:
        states = self.bert(torch.tensor(ids), attention_mask=torch.tensor(attended).long()).last_hidden_state
        vectors = self.linear(states) * torch.tensor(kept)[..., None]
        return torch.nn.functional.normalize(vectors, dim=-1)


@pytest.fixture
def oracle(tmp_path: Path, from_torch) -> Oracle:
    """A random ColBERT, saved in the layout of ColBERTv2."""
    torch.manual_seed(0)
    model = from_torch.spread(Oracle())
    model.bert.config.save_pretrained(tmp_path)
    save_file(
        {name: np.ascontiguousarray(t) for name, t in from_torch.weights(model).items()},
        tmp_path / "model.safetensors",
    )
    return model


@pytest.mark.parametrize("attend", [False, True])
def test_query_vectors_equal_torch(attend: bool, oracle: Oracle, tmp_path: Path) -> None:
    _, params, config = colbert.load(tmp_path)
    assert config == ColbertConfig(body=bert.BertConfig(**SIZES), width=4)
    inputs = np.where(MASK, IDS, MASK_ID), MASK | attend, np.ones_like(MASK)
    with torch.no_grad():
        wanted = oracle(*inputs).numpy()
    found = GRADIENT(params, *inputs)[1]
    np.testing.assert_allclose(found, wanted, atol=1e-5, rtol=0)


def test_document_vectors_and_gradients_equal_torch(oracle: Oracle, tmp_path: Path, from_torch) -> None:
    kept = MASK & ~np.isin(IDS, IDS[0, 3:5])
    wanted = oracle(IDS, MASK, kept)
    (wanted * torch.tensor(DIRECTION)).sum().backward()
    params = colbert.load(tmp_path)[1]
    gradient, vectors = GRADIENT(params, IDS, MASK, kept)
    np.testing.assert_allclose(vectors, wanted.detach().numpy(), atol=1e-5, rtol=0)
    assert not np.asarray(vectors)[~kept].any()
    named = from_torch.gradients(oracle)
    np.testing.assert_allclose(gradient["linear"]["kernel"], named.pop("linear.weight").T, atol=1e-4, rtol=0)
    body = bert.assign(named, bert.RULES, jax.eval_shape(lambda: params["body"]))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4, rtol=0), gradient["body"], body)


def test_pylate_keeps_its_projection_apart(oracle: Oracle, tmp_path: Path) -> None:
    params = colbert.load(tmp_path)[1]
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    (tmp_path / "1_Dense").mkdir()
    save_file({"linear.weight": tensors.pop("linear.weight")}, tmp_path / "1_Dense" / "model.safetensors")
    save_file({name.removeprefix("bert."): tensor for name, tensor in tensors.items()}, file)
    jax.tree.map(np.testing.assert_array_equal, colbert.load(tmp_path)[1], params)


def test_a_plain_bert_needs_to_be_asked_for(oracle: Oracle, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    del tensors["linear.weight"]
    save_file(tensors, file)
    with pytest.raises(UserError, match=r"holds no linear\.weight"):
        colbert.load(tmp_path)
    model, params, config = colbert.load(tmp_path, projection=False)
    assert config.width is None
    assert set(params) == {"body"}
    with torch.no_grad():
        states = oracle.bert(torch.tensor(IDS), attention_mask=torch.tensor(MASK).long()).last_hidden_state
    wanted = torch.nn.functional.normalize(states, dim=-1) * torch.tensor(MASK)[..., None]
    np.testing.assert_allclose(jax.jit(model.apply)(params, IDS, attended=MASK), wanted.numpy(), atol=1e-5)


def test_settings_beside_the_weights(oracle: Oracle, tmp_path: Path) -> None:
    file = tmp_path / "artifact.metadata"
    file.write_text(
        json.dumps(
            dict(query_maxlen=24, doc_maxlen=220, attend_to_mask_tokens=True, mask_punctuation=False, nway=64)
        )
    )
    config = colbert.load(tmp_path)[2]
    assert (config.query_length, config.document_length) == (24, 220)
    assert (config.attend_to_mask_tokens, config.skiplist) == (True, ())
    file.write_text('{"query_maxlen": "24"}')
    with pytest.raises(UserError, match=r"artifact\.metadata: query_maxlen is '24'; int is wanted"):
        colbert.load(tmp_path)
    file.unlink()
    (tmp_path / "config_sentence_transformers.json").write_text(
        '{"query_prefix": "[Q] ", "query_length": 48}'
    )
    config = colbert.load(tmp_path)[2]
    assert (config.query_token, config.document_token, config.query_length) == ("[Q] ", "[unused1]", 48)


def test_rows_of_padding_are_zero_with_finite_gradients(random_params) -> None:
    nothing = np.zeros_like(MASK)
    gradient, vectors = GRADIENT(random_params(MODEL), IDS, nothing, nothing)
    assert not np.asarray(vectors).any()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_dropout_needs_a_key(random_params, draws) -> None:
    assert draws(MODEL.apply, random_params(MODEL), IDS, attended=MASK)


def test_sizes_are_positive() -> None:
    with pytest.raises(UserError, match="query_length is 0"):
        ColbertConfig(body=bert.BertConfig(**SIZES), query_length=0)

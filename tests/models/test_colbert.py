"""ColBERT against Hugging Face's BERT with a linear layer, MaxSim against loops over tokens."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from pbr_jax.base.types import UserError
from pbr_jax.models import bert, colbert
from pbr_jax.models.colbert import ColbertConfig, expand_queries, max_sim, without

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
    ids, attended, kept = expand_queries(jnp.array(IDS), jnp.array(MASK), mask_id=MASK_ID, attend=attend)
    assert kept.all()
    assert (ids == MASK_ID)[~MASK].all()
    with torch.no_grad():
        wanted = oracle(np.where(MASK, IDS, MASK_ID), MASK | attend, np.ones_like(MASK)).numpy()
    found = GRADIENT(params, ids, attended, kept)[1]
    np.testing.assert_allclose(found, wanted, atol=1e-5, rtol=0)


def test_document_vectors_and_gradients_equal_torch(oracle: Oracle, tmp_path: Path, from_torch) -> None:
    kept = without(jnp.array(IDS), jnp.array(MASK), jnp.array(IDS[0, 3:5]))
    assert not kept[0, 3:5].any()
    assert 0 < kept.sum() < MASK.sum()
    wanted = oracle(IDS, MASK, np.asarray(kept))
    (wanted * torch.tensor(DIRECTION)).sum().backward()
    params = colbert.load(tmp_path)[1]
    gradient, vectors = GRADIENT(params, IDS, MASK, kept)
    np.testing.assert_allclose(vectors, wanted.detach().numpy(), atol=1e-5, rtol=0)
    assert not np.asarray(vectors)[~np.asarray(kept)].any()
    named = from_torch.gradients(oracle)
    np.testing.assert_allclose(gradient["linear"]["kernel"], named.pop("linear.weight").T, atol=1e-4, rtol=0)
    body = bert.assign(named, bert.RULES, jax.eval_shape(lambda: params["body"]))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4, rtol=0), gradient["body"], body)


def unit(*shape: int) -> np.ndarray:
    vectors = RNG.normal(size=shape).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


QUERIES, DOCUMENTS = unit(3, 4, 5), unit(7, 6, 5)
QUERY_MASK = np.arange(4) < np.array([[4], [2], [1]])
DOCUMENT_MASK = RNG.random((7, 6)) < 0.6
DOCUMENT_MASK[1], DOCUMENT_MASK[2] = False, [True, False, False, False, False, False]
SCORE = jax.jit(max_sim, static_argnames="limit")


def brute_force(query_mask: np.ndarray, document_mask: np.ndarray) -> np.ndarray:
    scores = np.zeros((3, 7))
    for q, c in np.ndindex(3, 7):
        for vector in QUERIES[q][query_mask[q]]:
            tokens = DOCUMENTS[c][document_mask[c]]
            scores[q, c] += max((float(vector @ token) for token in tokens), default=-1.0)
    return scores


@pytest.mark.parametrize("limit", [1, 3 * 4 * 6 * 3, 2**24])
def test_max_sim_equals_loops_in_blocks_of_any_size(limit: int) -> None:
    masks = dict(query_mask=QUERY_MASK, document_mask=DOCUMENT_MASK)
    scores = SCORE(QUERIES, DOCUMENTS, **masks, limit=limit)
    np.testing.assert_allclose(scores, brute_force(QUERY_MASK, DOCUMENT_MASK), atol=1e-5)


@settings(max_examples=15)
@given(st.integers(0, 2**32 - 1))
def test_max_sim_under_any_masks(seed: int) -> None:
    rng = np.random.default_rng(seed)
    query_mask, document_mask = rng.random((3, 4)) < 0.5, rng.random((7, 6)) < 0.3
    scores = SCORE(QUERIES, DOCUMENTS, query_mask=query_mask, document_mask=document_mask)
    np.testing.assert_allclose(scores, brute_force(query_mask, document_mask), atol=1e-5)


def test_max_sim_gradients_equal_torch_and_are_finite_for_an_empty_document() -> None:
    queries, documents = (torch.tensor(x, requires_grad=True) for x in (QUERIES, DOCUMENTS))
    products = torch.einsum("qse,cte->qcst", queries, documents)
    products = products.masked_fill(~torch.tensor(DOCUMENT_MASK)[None, :, None], -1e9)
    best = products.max(-1).values * torch.tensor(QUERY_MASK)[:, None]
    best = best * torch.tensor(DOCUMENT_MASK.any(-1))[None, :, None]
    direction = RNG.normal(size=(3, 7)).astype(np.float32)
    (best.sum(-1) * torch.tensor(direction)).sum().backward()

    def objective(queries: jax.Array, documents: jax.Array) -> jax.Array:
        masks = dict(query_mask=jnp.array(QUERY_MASK), document_mask=jnp.array(DOCUMENT_MASK))
        return (max_sim(queries, documents, **masks, limit=200) * direction).sum()

    found = jax.jit(jax.grad(objective, argnums=(0, 1)))(QUERIES, DOCUMENTS)
    for ours, theirs in zip(found, (queries, documents)):
        assert theirs.grad is not None
        np.testing.assert_allclose(ours, theirs.grad.numpy(), atol=1e-5, rtol=0)


def test_memory_of_max_sim_is_bounded_by_blocks() -> None:
    q, s, c, t, e = 4, 32, 256, 64, 8
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((q, s, e), (c, t, e))]
    masks = dict(
        query_mask=jax.ShapeDtypeStruct((q, s), bool), document_mask=jax.ShapeDtypeStruct((c, t), bool)
    )

    gradient = jax.grad(lambda a, b, **m: max_sim(a, b, **m, limit=q * s * t * 4).sum(), argnums=(0, 1))
    memory = jax.jit(gradient).lower(*shapes, **masks).compile().memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < 4 * q * s * c * t / 4  # a quarter of all similarities


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


def test_weights_that_do_not_fit_are_named(oracle: Oracle, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    name = "bert.encoder.layer.1.output.dense.weight"
    changes: list[tuple[dict[str, Any], str]] = [
        (
            {name: tensors[name][:, :-1]},
            r"wrong shape: bert\.encoder\.layer\.1\.output\.dense\.weight \(11, 8\)",
        ),
        ({name: None}, r"missing: body/layers/down/kernel\[1\]"),
        ({"linear.bias": np.ones(4, np.float32)}, r"unused: linear\.bias"),
        ({"linear.weight": np.ones((4, 7), np.float32)}, r"wrong shape: linear\.weight \(7, 4\)"),
    ]
    for change, message in changes:
        changed = {name: t for name, t in (tensors | change).items() if t is not None}
        save_file({name: np.ascontiguousarray(t) for name, t in changed.items()}, file)
        with pytest.raises(UserError, match=message) as error:
            colbert.load(tmp_path)
        assert str(tmp_path) in str(error.value)
        assert "\n" not in str(error.value)


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

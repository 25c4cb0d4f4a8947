"""BERT against Hugging Face's in torch, and packed rows against one text a row."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from pbr_jax.base.types import UserError
from pbr_jax.models import bert

SIZES = dict(vocab_size=50, max_position_embeddings=24)
CONFIGS = {
    "tiny": dict(hidden_size=16, num_attention_heads=2, num_hidden_layers=2, intermediate_size=24),
    "one_type_relu": dict(
        hidden_size=24, num_attention_heads=4, num_hidden_layers=1, intermediate_size=32,
        type_vocab_size=1, hidden_act="relu", layer_norm_eps=1e-2,
    ),
    "gelu_new": dict(
        hidden_size=20, num_attention_heads=1, num_hidden_layers=3, intermediate_size=16,
        hidden_act="gelu_new", layer_norm_eps=1e-5,
    ),
}  # fmt: skip


def reference(options: dict, folder: Path, seed: int = 0) -> transformers.BertModel:
    """A random BERT, saved to `folder`; biases and norms too are random, or swaps would not show."""
    torch.manual_seed(seed)
    config = transformers.BertConfig(**SIZES, **options)
    model = transformers.BertModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return model


def inputs(options: dict, seed: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """ids, mask and types [3 11] with texts of 11, 7 and 1 tokens."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, 50, (3, 11))
    mask = (np.arange(11) < np.array([[11], [7], [1]])).astype(np.int64)
    return ids, mask, rng.integers(0, options.get("type_vocab_size", 2), (3, 11))


@pytest.mark.parametrize("name", CONFIGS)
def test_states_and_pooled_equal_torch(name: str, tmp_path: Path) -> None:
    ids, mask, types = inputs(CONFIGS[name])
    torch_model = reference(CONFIGS[name], tmp_path)
    with torch.no_grad():
        states = torch_model(
            torch.tensor(ids), attention_mask=torch.tensor(mask), token_type_ids=torch.tensor(types)
        ).last_hidden_state
    model, params, config = bert.load(tmp_path)
    assert config.hidden_act == CONFIGS[name].get("hidden_act", "gelu")
    ours = jax.jit(model.apply)(params, ids, segments=mask, types=types)
    real = mask.astype(bool)
    np.testing.assert_allclose(np.asarray(ours)[real], states.numpy()[real], atol=1e-5, rtol=0)

    weights = torch.tensor(mask).unsqueeze(-1).float()
    means = (states * weights).sum(1) / weights.sum(1)
    positions = np.tile(np.arange(11), (3, 1))
    poolings: dict[bert.Pooling, torch.Tensor] = {"mean": means, "cls": states[:, 0]}
    for pooling, wanted in poolings.items():
        for normalize in (False, True):
            pooled = bert.pool(
                ours, jnp.array(mask), jnp.array(positions), 1, pooling=pooling, normalize=normalize
            )
            expected = torch.nn.functional.normalize(wanted) if normalize else wanted
            np.testing.assert_allclose(pooled[:, 0], expected.numpy(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["tiny", "one_type_relu"])
def test_gradients_equal_torch(name: str, tmp_path: Path) -> None:
    ids, mask, types = inputs(CONFIGS[name])
    torch_model = reference(CONFIGS[name], tmp_path)
    direction = np.random.default_rng(2).normal(size=CONFIGS[name]["hidden_size"]).astype(np.float32)
    states = torch_model(
        torch.tensor(ids), attention_mask=torch.tensor(mask), token_type_ids=torch.tensor(types)
    ).last_hidden_state
    weights = torch.tensor(mask).unsqueeze(-1).float() / mask.sum()
    torch.tanh((states * weights).sum((0, 1)) @ torch.tensor(direction)).backward()
    gradients = {n: p.grad.numpy() for n, p in torch_model.named_parameters() if p.grad is not None}

    model, params, _ = bert.load(tmp_path)

    def objective(params: dict) -> jax.Array:
        states = model.apply(params, ids, segments=mask, types=types)
        return jnp.tanh(jnp.einsum("btd,bt,d->", states, mask / mask.sum(), direction))

    ours = jax.jit(jax.grad(objective))(params)
    # The same table carries torch's gradients to our places.
    wanted = bert.assign(gradients, bert.RULES, jax.eval_shape(lambda: params), ignore=bert.IGNORED)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4, rtol=0), ours, wanted)
    assert max(float(np.abs(g).max()) for g in jax.tree.leaves(wanted)) > 1e-3


@pytest.mark.parametrize("kind", ["RobertaModel", "XLMRobertaModel"])
def test_roberta_and_its_positions_equal_torch(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    make = getattr(transformers, kind)
    sizes = dict(
        CONFIGS["tiny"], vocab_size=50, max_position_embeddings=13, pad_token_id=1, type_vocab_size=1
    )
    torch_model = make(make.config_class(**sizes)).eval()
    torch_model.save_pretrained(tmp_path)
    ids, mask, _ = inputs(sizes)
    ids = np.where(mask, ids % 48 + 2, 1)  # torch takes positions from what is not padding
    with torch.no_grad():
        states = torch_model(torch.tensor(ids), attention_mask=torch.tensor(mask)).last_hidden_state.numpy()
    model, params, config = bert.load(tmp_path)
    assert config.max_position_embeddings == 11
    ours = np.asarray(jax.jit(model.apply)(params, ids, segments=mask))
    np.testing.assert_allclose(ours[mask == 1], states[mask == 1], atol=1e-5, rtol=0)


SMALL = bert.BertConfig(
    vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
    intermediate_size=24, max_position_embeddings=16,
)  # fmt: skip
MODEL = bert.bert(SMALL)
PARAMS = jax.tree.map(lambda leaf: leaf * 8, MODEL.init(jax.random.key(0)))  # far enough from linear
APPLY = jax.jit(MODEL.apply)
TEXTS = [np.random.default_rng(n).integers(0, 40, n).astype(np.int32) for n in (5, 1, 7, 3, 9)]


def alone(text: np.ndarray) -> np.ndarray:
    """States of one text in a row without padding."""
    return np.asarray(APPLY(PARAMS, text[None], segments=np.ones((1, len(text)), np.int32)))[0]


@pytest.mark.long
def test_padding_and_neighbours_change_nothing() -> None:
    ids = np.full((len(TEXTS), 12), 39, np.int32)
    segments = np.zeros((len(TEXTS), 12), np.int32)
    for row, text in enumerate(TEXTS):
        ids[row, : len(text)], segments[row, : len(text)] = text, 1
    states = np.asarray(APPLY(PARAMS, ids, segments=segments))
    assert np.isfinite(states).all()
    for row, text in enumerate(TEXTS):
        np.testing.assert_allclose(states[row, : len(text)], alone(text), atol=1e-5, rtol=0)


@pytest.mark.long
@settings(max_examples=10, deadline=None)
@given(st.permutations(range(len(TEXTS))), st.integers(0, 5))
def test_packed_rows_equal_texts_alone(order: list[int], gap: int) -> None:
    ids, segments, positions = (np.zeros((2, 32), np.int32) for _ in range(3))
    start, segments_of = gap, {}
    for place, i in enumerate(order):
        span = slice(start, start + len(TEXTS[i]))
        ids[1, span], segments[1, span] = TEXTS[i], place + 1
        positions[1, span] = np.arange(len(TEXTS[i]))
        segments_of[i], start = (place, span), span.stop
    states = APPLY(PARAMS, ids, segments=segments, positions=positions)
    pooled = {
        pooling: bert.pool(
            states, jnp.array(segments), jnp.array(positions), 6, pooling=pooling, normalize=True
        )
        for pooling in ("mean", "cls")
    }
    for i, (place, span) in segments_of.items():
        own = alone(TEXTS[i])
        np.testing.assert_allclose(states[1, span], own, atol=1e-5, rtol=0)
        for pooling, vector in {"mean": own.mean(0), "cls": own[0]}.items():
            expected = vector / np.linalg.norm(vector)
            np.testing.assert_allclose(pooled[pooling][1, place], expected, atol=1e-5, rtol=0)
    assert not np.asarray(pooled["mean"][0]).any()  # a row of padding
    assert not np.asarray(pooled["mean"][1, 5]).any()  # a place without text


def test_tokens_that_are_not_attended_see_the_others() -> None:
    ids, ones = np.arange(6)[None], np.ones((1, 6), np.int32)

    def states(segments: np.ndarray, attended: np.ndarray) -> np.ndarray:
        return np.asarray(APPLY(PARAMS, ids, segments=segments, attended=attended)[0])

    found = states(ones, np.arange(6)[None] < 4)
    for place in (4, 5):  # as if it were alone behind the four, and the four alone
        others = np.where(np.arange(6) == 9 - place, 0, ones)
        np.testing.assert_allclose(found[place], states(others, np.arange(6)[None] < 4)[place], atol=1e-5)
    first = states(np.where(np.arange(6) < 4, ones, 0), ones == 1)
    np.testing.assert_allclose(found[:4], first[:4], atol=1e-5, rtol=0)
    seen = states(ones, ones == 1)
    assert (np.abs(found - seen).max(1) > 1e-3).all()


def test_dropout_needs_a_key(draws) -> None:
    ids, ones = np.arange(6)[None], np.ones((1, 6), np.int32)
    assert draws(MODEL.apply, PARAMS, ids, segments=ones)
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
        rates = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        one = bert.bert(replace(SMALL, **(rates | {name: 0.1})))
        none = bert.bert(replace(SMALL, **rates))
        assert draws(one.apply, PARAMS, ids, segments=ones)
        assert not draws(none.apply, PARAMS, ids, segments=ones)


def test_rows_longer_than_the_position_table_are_an_error() -> None:
    ids = np.zeros((1, 17), np.int32)
    with pytest.raises(ValueError, match="rows of 17 tokens, but the encoder has 16 positions"):
        MODEL.apply(PARAMS, ids, segments=ids)


def test_gelu_and_its_gradient_equal_torch() -> None:
    x = torch.linspace(-12, 12, 20_001, requires_grad=True)
    wanted = torch.nn.functional.gelu(x)
    wanted.sum().backward()
    ours = jnp.array(x.detach().numpy())
    np.testing.assert_allclose(bert.gelu(ours), wanted.detach().numpy(), atol=2e-6, rtol=0)
    assert x.grad is not None
    gradient = jax.grad(lambda x: bert.gelu(x).sum())(ours)
    np.testing.assert_allclose(gradient, x.grad.numpy(), atol=2e-6, rtol=0)


def test_unit_length_of_zero_has_a_finite_gradient() -> None:
    vectors = jnp.array([[0.0, 0.0], [3.0, 4.0]])
    np.testing.assert_allclose(bert.unit_length(vectors), [[0, 0], [0.6, 0.8]], rtol=1e-6)
    gradient = jax.grad(lambda v: bert.unit_length(v).sum())(vectors)
    assert np.isfinite(gradient).all()


def test_names_of_pretraining_and_tensorflow_checkpoints(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    reference(CONFIGS["tiny"], tmp_path)
    plain = bert.load(tmp_path)[1]
    file = tmp_path / "model.safetensors"
    renamed = {
        "bert."
        + n.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): t
        for n, t in load_file(file).items()
    }
    heads = {
        "bert.embeddings.position_ids": np.arange(24)[None],
        "cls.predictions.bias": np.ones(50, np.float32),
        "cls.seq_relationship.weight": np.ones((2, 16), np.float32),
    }
    save_file(renamed | heads, file)
    jax.tree.map(np.testing.assert_array_equal, bert.load(tmp_path)[1], plain)
    save_file(renamed | {"classifier.weight": np.ones(1, np.float32)}, file)
    with pytest.raises(UserError, match=r"unused: classifier\.weight"):
        bert.load(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mpnet"}, "model_type is 'mpnet'"),
        ({"hidden_act": "swish"}, "hidden_act 'swish'"),
        ({"position_embedding_type": "relative_key"}, "absolute positions"),
        ({"num_attention_heads": 5}, "no multiple of num_attention_heads"),
        ({"hidden_size": None}, "hidden_size"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers"),
        ({"hidden_dropout_prob": 1.0}, "hidden_dropout_prob is 1.0; a number from 0 to below 1"),
        ({"model_type": "roberta", "pad_token_id": "1"}, "pad_token_id '1' leaves"),
        ({"model_type": "roberta", "pad_token_id": 23}, "pad_token_id 23 leaves no position"),
    ],
)
def test_configs_that_do_not_fit(change: dict, message: str, tmp_path: Path) -> None:
    content = dict(SIZES, **CONFIGS["tiny"], model_type="bert") | change
    file = tmp_path / "config.json"
    file.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))
    with pytest.raises(UserError, match=message) as error:
        bert.BertConfig.from_json(tmp_path)
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", ["", "[]", "{", '"bert"'])
def test_malformed_config(content: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(UserError, match=r"config\.json"):
        bert.BertConfig.from_json(tmp_path / "config.json")

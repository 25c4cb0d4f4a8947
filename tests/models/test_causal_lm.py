"""The causal language model against torch's LlamaForCausalLM with random weights, saved and read as files."""

import functools
import itertools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pbr_jax.models import causal_lm
from pbr_jax.models.causal_lm import Past

torch: Any = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")

BASE: dict[str, Any] = dict(
    vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=128, rms_norm_eps=1e-5, initializer_range=0.2,
)  # fmt: skip
LLAMA3: dict[str, Any] = dict(
    rope_type="llama3", rope_theta=500.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=32,
)  # fmt: skip
CASES = {
    "grouped_tied": transformers.LlamaConfig(**BASE, tie_word_embeddings=True),
    "every_head_untied": transformers.LlamaConfig(
        **BASE | {"num_key_value_heads": 4}, tie_word_embeddings=False
    ),
    "one_key_head_wide": transformers.LlamaConfig(**BASE | {"num_key_value_heads": 1}, head_dim=12),
    "biases": transformers.LlamaConfig(**BASE, attention_bias=True, mlp_bias=True),
    "theta": transformers.LlamaConfig(**BASE, rope_parameters={"rope_type": "default", "rope_theta": 123.0}),
    "llama3_rope": transformers.LlamaConfig(**BASE, rope_parameters=LLAMA3),
    "linear_rope": transformers.LlamaConfig(
        **BASE, rope_parameters={"rope_type": "linear", "factor": 2.5, "rope_theta": 99.0}
    ),
    "qwen2": transformers.Qwen2Config(**BASE, tie_word_embeddings=True),
}


def save(config, folder: Path):
    """A torch model with random weights, biases and norms included, saved in Hugging Face format."""
    torch.manual_seed(0)
    model = (
        transformers.Qwen2ForCausalLM if config.model_type == "qwen2" else transformers.LlamaForCausalLM
    )(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return model


def tokens(rows: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, BASE["vocab_size"], (rows, width), dtype=np.int32)


def forward(model, params, ids, past=None, start=0):
    positions = jnp.broadcast_to(jnp.arange(start, start + ids.shape[1]), ids.shape)
    return compiled(model.apply)(params, jnp.asarray(ids), positions, past)


@functools.cache
def compiled(apply):
    return jax.jit(apply)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    reference = save(CASES["grouped_tied"], folder)
    return reference, *causal_lm.load(folder)


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_torch(case, tmp_path):
    reference = save(CASES[case], tmp_path)
    model, params, config = causal_lm.load(tmp_path)
    ids = tokens(2, 50)
    found = causal_lm.logits(params, forward(model, params, ids).hidden)
    expected = reference(torch.tensor(ids.astype(np.int64))).logits.detach().numpy()
    assert expected.std() > 0.5  # random weights large enough for a difference to show
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert config.tied == CASES[case].tie_word_embeddings


@pytest.mark.parametrize("case", ["grouped_tied", "biases"])
def test_gradients_equal_torch(case, tmp_path):
    reference = save(CASES[case], tmp_path)
    model, params, _ = causal_lm.load(tmp_path)
    ids = tokens(2, 9)

    def loss(params):
        rows = jax.nn.log_softmax(causal_lm.logits(params, forward(model, params, ids[:, :-1]).hidden))
        return -jnp.mean(jnp.take_along_axis(rows, jnp.asarray(ids[:, 1:, None]), axis=-1))

    found = jax.grad(loss)(params)
    whole = torch.tensor(ids.astype(np.int64))
    reference(whole, labels=whole).loss.backward()
    layer = reference.model.layers[1]
    pairs = {
        "embedding": (found["embedding"], reference.model.embed_tokens.weight.grad),
        "norm": (found["norm"]["scale"], reference.model.norm.weight.grad),
        "query": (found["layers"]["query"]["kernel"][1].T, layer.self_attn.q_proj.weight.grad),
        "key": (found["layers"]["key"]["kernel"][1].T, layer.self_attn.k_proj.weight.grad),
        "down": (found["layers"]["down"]["kernel"][1].T, layer.mlp.down_proj.weight.grad),
        "attention_norm": (found["layers"]["attention_norm"]["scale"][1], layer.input_layernorm.weight.grad),
    }
    for name, (ours, theirs) in pairs.items():
        assert theirs.abs().max() > 1e-4, name
        np.testing.assert_allclose(ours, theirs.numpy(), atol=1e-4, err_msg=name)


def test_past_equals_whole_forward(tiny):
    """Pieces read one after another, single tokens among them, give what one pass gives."""
    _, model, params, _ = tiny
    ids = tokens(2, 12)
    whole = forward(model, params, ids)
    for cuts in ((0, 5, 6, 12), (0, 1, 2, 12)):
        past, pieces = None, []
        for start, end in itertools.pairwise(cuts):
            output = forward(model, params, ids[:, start:end], past=past, start=start)
            pieces.append(output.hidden)
            keys, values = output.keys, output.values
            if past is not None:
                keys = jnp.concatenate([past.keys, keys], axis=3)
                values = jnp.concatenate([past.values, values], axis=3)
            past = Past(keys, values, jnp.broadcast_to(jnp.arange(end), (2, end)))
        np.testing.assert_allclose(jnp.concatenate(pieces, axis=1), whole.hidden, atol=1e-5)


def test_hidden_slots_of_the_past_change_nothing(tiny):
    _, model, params, _ = tiny
    ids = tokens(1, 8)
    first = forward(model, params, ids[:, :5])
    past = Past(first.keys, first.values, jnp.arange(5)[None])
    noise = 7.0 * jnp.ones_like(first.keys[:, :, :, :3])
    padded = Past(
        jnp.concatenate([first.keys, noise], axis=3),
        jnp.concatenate([first.values, noise], axis=3),
        jnp.array([[0, 1, 2, 3, 4, -1, -1, -1]]),
    )
    wanted = forward(model, params, ids[:, 5:], past=past, start=5).hidden
    np.testing.assert_allclose(
        forward(model, params, ids[:, 5:], past=padded, start=5).hidden, wanted, atol=1e-5
    )


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(tiny, side):
    _, model, params, _ = tiny
    ids, room = tokens(2, 7), 4
    wanted = forward(model, params, ids).hidden
    before, after = (room, 0) if side == "left" else (0, room)
    wide = np.pad(ids, ((0, 0), (before, after)), constant_values=5)
    places = np.broadcast_to(np.arange(7), ids.shape)
    positions = np.pad(places, ((0, 0), (before, after)), constant_values=-1)
    apply = compiled(model.apply)
    found = apply(params, jnp.asarray(wide), jnp.asarray(positions)).hidden
    np.testing.assert_allclose(found[:, before : before + 7], wanted, atol=1e-5)
    assert jnp.isfinite(found).all()


@pytest.mark.parametrize("tokens_given", [17, 20, 1000])
def test_packed_tokens_equal_padded_rows(tiny, tokens_given):
    """Rows of 7, 0, 9 and 1 tokens, padded at both ends and in the middle, after a past of unlike lengths."""
    _, model, params, _ = tiny
    generator = np.random.default_rng(1)
    first = forward(model, params, tokens(4, 5))
    held = np.array([[0, 1, 2, 3, 4], [0, 1, -1, -1, -1], [-1] * 5, [0, 1, 2, -1, -1]])
    past = Past(first.keys, first.values, jnp.asarray(held))
    positions = np.full((4, 12), -1)
    for row, count in enumerate((7, 0, 9, 1)):
        places = np.sort(generator.choice(12, count, replace=False))
        positions[row, places] = np.arange(count) + (held[row] >= 0).sum()
    inputs = jnp.asarray(tokens(4, 12, seed=2)), jnp.asarray(positions), past
    apply = jax.jit(model.apply, static_argnames="tokens")
    wanted, found = apply(params, *inputs), apply(params, *inputs, tokens=tokens_given)
    real = positions >= 0
    np.testing.assert_allclose(found.hidden[real], wanted.hidden[real], atol=1e-5)
    for ours, theirs in ((found.keys, wanted.keys), (found.values, wanted.values)):
        ours, theirs = (np.moveaxis(np.asarray(x), (1, 3), (0, 1))[real] for x in (ours, theirs))
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_blocks_of_queries_equal_one_block(tiny, monkeypatch):
    _, model, params, config = tiny
    ids = tokens(2, 23)
    wanted = forward(model, params, ids).hidden
    monkeypatch.setattr(causal_lm, "QUERY_BLOCK", 8)
    blocks = causal_lm.causal_lm(config)  # another function, so that it is traced anew
    np.testing.assert_allclose(forward(blocks, params, ids).hidden, wanted, atol=1e-5)


def test_bfloat16_stays_near_float32(tiny, tmp_path):
    _, model, params, config = tiny
    half = causal_lm.causal_lm(config, jnp.bfloat16)
    narrow = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    ids = tokens(2, 10)
    output = forward(half, narrow, ids)
    assert output.hidden.dtype == jnp.bfloat16
    rows = causal_lm.logits(narrow, output.hidden)
    assert rows.dtype == jnp.float32
    wanted = causal_lm.logits(params, forward(model, params, ids).hidden)
    # bfloat16 has 8 bits: about one percent of the logits' spread.
    assert float(jnp.abs(rows - wanted).mean() / wanted.std()) < 0.03


def test_init_has_the_shapes_of_the_loaded_weights(tiny):
    _, model, params, _ = tiny
    made = jax.eval_shape(model.init, jax.random.key(0))
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(lambda leaf: leaf.shape, made)

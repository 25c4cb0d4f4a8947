"""The causal language model against torch's models with random weights, saved and read as files."""

import functools
import itertools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pbr_jax.models import attention, causal_lm
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
PHI: dict[str, Any] = BASE | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
LONGROPE: dict[str, Any] = dict(  # of heads of 8 that turn in part: 6 of 8
    rope_type="longrope", rope_theta=500.0, partial_rotary_factor=0.75,
    short_factor=[1.0, 1.1, 1.3], long_factor=[1.5, 4.0, 9.0],
)  # fmt: skip


def phi3(original: int) -> Any:
    """Positions past `original` take the long factors."""
    return transformers.Phi3Config(
        **PHI,
        original_max_position_embeddings=original,
        rope_parameters=LONGROPE | {"original_max_position_embeddings": original},
        tie_word_embeddings=True,
    )


GEMMA: dict[str, Any] = BASE | {"head_dim": 12, "query_pre_attn_scalar": 7, "sliding_window": 6}
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
    "qwen2_window": transformers.Qwen2Config(
        **BASE, use_sliding_window=True, sliding_window=6, max_window_layers=1, tie_word_embeddings=True
    ),
    "qwen3": transformers.Qwen3Config(**BASE, head_dim=12, tie_word_embeddings=False),
    "mistral": transformers.MistralConfig(**BASE, sliding_window=6, tie_word_embeddings=False),
    "mistral_full": transformers.MistralConfig(**BASE, sliding_window=None, tie_word_embeddings=False),
    "phi3": transformers.Phi3Config(**PHI, sliding_window=6, tie_word_embeddings=False),
    "phi3_long": phi3(original=11),
    "phi3_short": phi3(original=64),
    "gemma2": transformers.Gemma2Config(**GEMMA, attn_logit_softcapping=2.0, final_logit_softcapping=3.0),
    "gemma3": transformers.Gemma3TextConfig(
        **GEMMA | {"num_hidden_layers": 3},
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 900.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 30.0},
        },
    ),
}


def save(config, folder: Path):
    """A torch model with random weights, biases and norms included, saved in Hugging Face format."""
    torch.manual_seed(0)
    # Other implementations of attention leave the cap of scores out.
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
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


@functools.cache
def loaded(case: str, folder: Path) -> tuple:
    reference = save(CASES[case], folder / case)
    return reference, *causal_lm.load(folder / case)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture
def tiny(folder):
    return loaded("grouped_tied", folder)


@pytest.fixture(params=["grouped_tied", "gemma3", "phi3_long"])
def family(request, folder):
    return loaded(request.param, folder)


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_torch(case, folder):
    reference, model, params, config = loaded(case, folder)
    ids = tokens(2, 50)
    found = causal_lm.logits(params, forward(model, params, ids).hidden, cap=config.logit_cap)
    expected = reference(torch.tensor(ids.astype(np.int64))).logits.detach().numpy()
    assert expected.std() > 0.5  # random weights large enough for a difference to show
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert config.tied == CASES[case].tie_word_embeddings


def test_the_language_model_inside_a_gemma3_that_sees_images(folder, tmp_path):
    """Its tensors and config stand one level deeper, beside those of images."""
    from safetensors.numpy import save_file

    reference, _, params, config = loaded("gemma3", folder)
    fields = {"model_type": "gemma3", "text_config": CASES["gemma3"].to_dict(), "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    state = {f"language_model.{name}": tensor.numpy() for name, tensor in reference.state_dict().items()}
    state["vision_tower.vision_model.embeddings.weight"] = np.ones((2, 3), np.float32)
    save_file(state, tmp_path / "model.safetensors")
    _, found, found_config = causal_lm.load(tmp_path)
    assert found_config == config
    jax.tree.map(np.testing.assert_array_equal, found, params)


def test_weights_may_lie_in_several_files(folder, tmp_path):
    reference, _, params, _ = loaded("phi3", folder)
    reference.save_pretrained(tmp_path, max_shard_size="10KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    jax.tree.map(np.testing.assert_array_equal, causal_lm.load(tmp_path)[1], params)


@pytest.mark.parametrize("length", [11, 12])
def test_longrope_changes_past_the_original_context(folder, length):
    reference, model, params, _ = loaded("phi3_long", folder)
    ids = tokens(1, length)
    found = causal_lm.logits(params, forward(model, params, ids).hidden)
    expected = reference(torch.tensor(ids.astype(np.int64))).logits.detach().numpy()
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_row_of_longrope_does_not_depend_on_its_neighbours(folder):
    """transformers lets the longest row of a batch decide for all."""
    _, model, params, config = loaded("phi3_long", folder)
    ids = tokens(2, 20)
    positions = np.stack([np.arange(20), np.where(np.arange(20) < 9, np.arange(20), -1)])
    found = compiled(model.apply)(params, jnp.asarray(ids), jnp.asarray(positions)).hidden
    np.testing.assert_allclose(found[1, :9], forward(model, params, ids[1:, :9]).hidden[0], atol=1e-5)
    assert config.rope.original == 11


@pytest.mark.parametrize("case", ["grouped_tied", "biases", "gemma2", "gemma3"])
def test_gradients_equal_torch(case, folder):
    reference, model, params, config = loaded(case, folder)
    ids = tokens(2, 9)

    @jax.jit
    def loss(params):
        hidden = forward(model, params, ids[:, :-1]).hidden
        rows = jax.nn.log_softmax(causal_lm.logits(params, hidden, cap=config.logit_cap))
        return -jnp.mean(jnp.take_along_axis(rows, jnp.asarray(ids[:, 1:, None]), axis=-1))

    found = jax.grad(loss)(params)
    whole = torch.tensor(ids.astype(np.int64))
    reference(whole, labels=whole).loss.backward()
    layer = reference.model.layers[1]
    pairs = {
        "embedding": (found["embedding"], reference.model.embed_tokens.weight.grad),
        "norm": (found["norm"]["scale"], reference.model.norm.weight.grad),
        "query": (found["layers"]["query"]["kernel"][1], layer.self_attn.q_proj.weight.grad),
        "key": (found["layers"]["key"]["kernel"][1], layer.self_attn.k_proj.weight.grad),
        "down": (found["layers"]["down"]["kernel"][1], layer.mlp.down_proj.weight.grad),
        "attention_norm": (found["layers"]["attention_norm"]["scale"][1], layer.input_layernorm.weight.grad),
    }
    for name, (ours, theirs) in pairs.items():
        assert theirs.abs().max() > 1e-4, name
        np.testing.assert_allclose(ours, theirs.numpy(), atol=1e-4, err_msg=name)


@pytest.mark.long
@pytest.mark.parametrize("case", ["grouped_tied", "gemma3", "mistral"])
def test_past_equals_whole_forward(case, folder):
    """Pieces read one after another, single tokens among them, give what one pass gives."""
    _, model, params, _ = loaded(case, folder)
    ids = tokens(2, 12)
    whole = forward(model, params, ids)
    past, pieces = None, []
    for start, end in itertools.pairwise((0, 1, 6, 7, 12)):
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
def test_padding_changes_nothing(family, side):
    _, model, params, _ = family
    ids, room = tokens(2, 9), 4
    wanted = forward(model, params, ids).hidden
    before, after = (room, 0) if side == "left" else (0, room)
    wide = np.pad(ids, ((0, 0), (before, after)), constant_values=5)
    places = np.broadcast_to(np.arange(9), ids.shape)
    positions = np.pad(places, ((0, 0), (before, after)), constant_values=-1)
    apply = compiled(model.apply)
    found = apply(params, jnp.asarray(wide), jnp.asarray(positions)).hidden
    np.testing.assert_allclose(found[:, before : before + 9], wanted, atol=1e-5)
    assert jnp.isfinite(found).all()


@pytest.mark.parametrize("tokens_given", [17, 1000])
def test_packed_tokens_equal_padded_rows(family, tokens_given):
    """Rows of 7, 0, 9 and 1 tokens, padded at both ends and in the middle, after a past of unlike lengths."""
    _, model, params, _ = family
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


@pytest.mark.parametrize("blocks", [8, 2])  # of four and of twelve tokens
def test_blocks_of_queries_equal_one_block(folder, monkeypatch, blocks):
    _, model, params, config = loaded("mistral", folder)
    ids = tokens(2, 23)
    wanted = forward(model, params, ids).hidden
    monkeypatch.setattr(attention, "QUERY_BLOCK", 4)
    monkeypatch.setattr(attention, "QUERY_BLOCKS", blocks)
    model = causal_lm.causal_lm(config)  # another function, so that it is traced anew
    np.testing.assert_allclose(forward(model, params, ids).hidden, wanted, atol=1e-5)


def test_init_has_the_shapes_of_the_loaded_weights(family):
    _, model, params, _ = family
    made = jax.eval_shape(model.init, jax.random.key(0))
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(lambda leaf: leaf.shape, made)

"""T5 against torch's T5ForConditionalGeneration with random weights, saved and read as files."""

import functools
import itertools
import json
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from safetensors.numpy import load_file, save_file

from pbr_jax.base.types import UserError
from pbr_jax.models import attention, t5, t5_layers
from pbr_jax.models.t5 import Past

torch: Any = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")

# The heads' inner width (4 * 7) is not the model's; the decoder is deeper than the encoder.
BASE: dict[str, Any] = dict(
    vocab_size=97, d_model=32, d_kv=7, d_ff=40, num_layers=2, num_decoder_layers=3, num_heads=4,
    relative_attention_num_buckets=8, relative_attention_max_distance=12, decoder_start_token_id=0,
)  # fmt: skip
CASES: dict[str, dict[str, Any]] = {
    "v1.0": dict(feed_forward_proj="relu"),
    "v1.1": dict(feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "flan": dict(
        feed_forward_proj="gated-gelu", tie_word_embeddings=False, relative_attention_num_buckets=32,
        relative_attention_max_distance=128, d_kv=8, num_decoder_layers=2,
    ),
}  # fmt: skip


def save(fields: dict[str, Any], folder: Path):
    """A torch model with random weights, saved as the published models are: with the fields that version 4
    of transformers wrote, and a head of its own where the embeddings are not tied."""
    torch.manual_seed(0)
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**fields)).eval()
    if fields.get("tie_word_embeddings") is False:
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.lm_head.weight))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(std=0.2)
            if "layer_norm" in name:
                parameter.add_(1.0)
            if name.endswith("lm_head.weight"):
                parameter.mul_(0.5)
    folder.mkdir(exist_ok=True)
    tensors = {name: parameter.detach().numpy().copy() for name, parameter in model.named_parameters()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "t5"} | fields))
    return model


def tokens(rows: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(2, BASE["vocab_size"], (rows, width), dtype=np.int32)


IDS, TARGETS = tokens(2, 9), tokens(2, 8, seed=1)


@functools.cache
def compiled(function):
    return jax.jit(function)


def forward(model, params, ids, decoder_ids, mask=None):
    mask = jnp.ones(ids.shape, bool) if mask is None else jnp.asarray(mask)
    return compiled(model.apply)(params, jnp.asarray(ids), mask, jnp.asarray(decoder_ids))


def read(model, params, ids):
    mask = jnp.ones(ids.shape, bool)
    return compiled(model.cross)(params, compiled(model.encode)(params, jnp.asarray(ids), mask), mask)


def assert_same(found, wanted):
    """Hidden states that differ by rounding alone: at most 1e-4 of their root mean square.

    T5 does not scale attention scores, which reach 17 here, and a softmax turns the rounding of a score into
    a relative error of its weights. So one last bit more or less in every weight moves the hidden states by
    2e-5 of that scale, and so do two orders of the sums: which order XLA picks depends on shapes and machine.
    Queries that are wrong by one part in a thousand move them by 3e-3.
    """
    scale = np.sqrt(np.mean(np.square(wanted)))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4 * scale)


def long(array):
    return torch.tensor(np.asarray(array).astype(np.int64))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    reference = save(BASE | CASES["v1.1"], folder)
    return reference, *t5.load(folder)


@pytest.mark.parametrize("case", CASES)
def test_encoder_and_logits_equal_torch(case, tmp_path):
    reference = save(BASE | CASES[case], tmp_path)
    model, params, config = t5.load(tmp_path)
    ids, decoder_ids = tokens(2, 37), tokens(2, 21, seed=1)

    @jax.jit
    def both(params):
        encoded = model.encode(params, jnp.asarray(ids), jnp.ones(ids.shape, bool))
        cross = model.cross(params, encoded, jnp.ones(ids.shape, bool))
        return encoded, t5.logits(params, model.decode(params, jnp.asarray(decoder_ids), cross).hidden)

    encoded, found = both(params)
    with torch.no_grad():
        wanted = reference(input_ids=long(ids), decoder_input_ids=long(decoder_ids))
    assert wanted.logits.std() > 0.15  # random weights large enough for a difference to show
    np.testing.assert_allclose(encoded, wanted.encoder_last_hidden_state.numpy(), atol=1e-4)
    np.testing.assert_allclose(found, wanted.logits.numpy(), atol=1e-4)
    assert config.tied == (CASES[case].get("tie_word_embeddings") is not False)
    assert config.scaled == config.tied


def test_buckets_of_all_distances_equal_torch():
    bucket = transformers.models.t5.modeling_t5.T5Attention._relative_position_bucket
    for count, far, causal in itertools.product((4, 8, 32, 54), (30, 64, 128), (True, False)):
        distance = np.arange(far + 20)
        wanted = bucket(
            -torch.tensor(distance), bidirectional=not causal, num_buckets=count, max_distance=far
        )
        table = t5_layers._buckets(count if causal else count // 2, far)
        np.testing.assert_array_equal(table[np.minimum(distance, far)], wanted.numpy())


@pytest.mark.long
def test_decoding_token_by_token_equals_the_whole_forward(tiny):
    """With slots in reserve, as in a decoding loop: those that are not filled are never seen."""
    _, model, params, config = tiny
    whole, cross = forward(model, params, IDS, TARGETS), read(model, params, IDS)
    shape = (config.num_decoder_layers, 2, config.num_heads, 11, config.head_width)
    past, pieces = Past(jnp.full(shape, 50.0), jnp.full(shape, 50.0), jnp.int32(0)), []
    for start, end in itertools.pairwise((0, 1, 2, 5, 6, 7, 8)):
        output = compiled(model.decode)(params, jnp.asarray(TARGETS[:, start:end]), cross, past)
        pieces.append(output.hidden)
        past = Past(
            past.keys.at[:, :, :, start:end].set(output.keys),
            past.values.at[:, :, :, start:end].set(output.values),
            jnp.int32(end),
        )
    assert_same(jnp.concatenate(pieces, axis=1), whole)


def test_rows_that_read_one_text_equal_copies_of_it(tiny):
    _, model, params, _ = tiny
    decoder_ids = tokens(6, 8, seed=4)
    found = compiled(model.decode)(params, jnp.asarray(decoder_ids), read(model, params, IDS)).hidden
    wanted = forward(model, params, np.repeat(IDS, 3, axis=0), decoder_ids)
    assert_same(found, wanted)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_of_the_encoder_changes_nothing(tiny, side):
    _, model, params, _ = tiny
    wanted = forward(model, params, IDS, TARGETS)
    widths = ((0, 0), (20, 0) if side == "left" else (0, 20))
    mask = np.pad(np.ones(IDS.shape, bool), widths)
    found = forward(model, params, np.pad(IDS, widths, constant_values=5), TARGETS, mask)
    assert_same(found, wanted)


@pytest.mark.parametrize("length", [29, 0])
def test_the_batch_around_a_row_changes_nothing(tiny, length):
    """A much longer row beside it, or one without any real token."""
    _, model, params, _ = tiny
    wanted = forward(model, params, IDS, TARGETS)[:1]
    ids = np.concatenate([np.pad(IDS[:1], ((0, 0), (0, 20))), tokens(1, 29, seed=2)])
    found = forward(model, params, ids, TARGETS, np.arange(29)[None, :] < np.array([[9], [length]]))
    assert_same(found[:1], wanted)
    assert jnp.isfinite(found).all()


def test_blocks_of_queries_equal_one_block(tiny, monkeypatch):
    _, model, params, config = tiny
    wanted = forward(model, params, IDS, TARGETS)
    monkeypatch.setattr(attention, "QUERY_BLOCK", 3)
    monkeypatch.setattr(attention, "QUERY_BLOCKS", 2)
    blocks = t5.t5(config)  # another function, so that it is traced anew
    assert_same(forward(blocks, params, IDS, TARGETS), wanted)


@pytest.mark.long
def test_eight_devices_that_share_every_layer_equal_one(tmp_path):
    save(BASE | CASES["flan"] | {"num_heads": 8, "d_kv": 4, "vocab_size": 96}, tmp_path)
    model, params, _ = t5.load(tmp_path)
    ids, decoder_ids = IDS % 96, TARGETS % 96
    wanted = t5.logits(params, forward(model, params, ids, decoder_ids))
    mesh = jax.make_mesh((8,), ("model",), axis_types=(AxisType.Auto,))
    shardings = jax.tree.map_with_path(
        lambda path, _: NamedSharding(mesh, PartitionSpec(*rule("/".join(key.key for key in path)))), params
    )
    divided = jax.device_put(params, shardings)
    query = divided["decoder"]["layers"]["query"]["kernel"]
    assert {shard.data.shape for shard in query.addressable_shards} == {(2, 4, 32)}
    found = t5.logits(divided, forward(model, divided, ids, decoder_ids))
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    loaded = t5.load(tmp_path, mesh=mesh)[1]
    jax.tree.map(np.testing.assert_array_equal, loaded, params)
    assert jax.tree.map(lambda x: x.sharding, loaded) == shardings


def rule(path):
    return next(axes for pattern, axes in t5.SHARDING.items() if re.fullmatch(pattern, path))


# -- Files ---------------------------------------------------------------------------------------


def rewrite(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_copies_of_the_embedding_are_read_once(tmp_path):
    """Old files hold the stacks' copies, the tied head and a bias that no model uses."""
    save(BASE | CASES["v1.0"], tmp_path)
    _, wanted, _ = t5.load(tmp_path)

    def add_copies(tensors):
        shared = tensors["shared.weight"]
        names = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")
        tensors |= {name: shared.copy() for name in names}
        unused = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
        tensors[unused] = np.ones((8, 4), np.float32)

    rewrite(tmp_path, add_copies)
    _, found, config = t5.load(tmp_path)
    assert config.tied
    jax.tree.map(np.testing.assert_array_equal, found, wanted)
    rewrite(tmp_path, lambda tensors: tensors.pop("shared.weight"))
    jax.tree.map(np.testing.assert_array_equal, t5.load(tmp_path)[1]["embedding"], wanted["embedding"])


def test_a_tied_head_that_differs_is_read_as_its_own(tmp_path):
    """So do newer versions of transformers, whose configs call every head tied."""
    save(BASE | CASES["v1.1"], tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    fields |= {"tie_word_embeddings": True, "scale_decoder_outputs": False}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    _, params, config = t5.load(tmp_path)
    assert not config.tied
    assert not config.scaled
    np.testing.assert_array_equal(params["head"], load_file(tmp_path / "model.safetensors")["lm_head.weight"])


def change_embedding(tensors):
    tensors["encoder.embed_tokens.weight"] = tensors["shared.weight"] + 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (change_embedding, r"encoder\.embed_tokens\.weight differs from shared\.weight"),
        (lambda t: t.pop("lm_head.weight"), "missing: head"),
        (
            lambda t: t.pop("decoder.block.1.layer.1.EncDecAttention.k.weight"),
            r"missing: cross/key/kernel\[1\]",
        ),
        (lambda t: t.update(extra=np.zeros(3)), "unused: extra"),
    ],
)
def test_weights_that_do_not_fit_are_named(change, message, tmp_path):
    save(BASE | CASES["flan"], tmp_path)
    rewrite(tmp_path, change)
    with pytest.raises(UserError, match=message):
        t5.load(tmp_path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "mt5"}, "model_type 'mt5' is not supported"),
        ({"feed_forward_proj": "gated-silu"}, "feed_forward_proj 'gated-silu' is not supported"),
        ({"quantization_config": {"bits": 8}}, "quantised"),
        ({"d_kv": None}, "no field 'd_kv'"),
        ({"relative_attention_num_buckets": 7}, "relative_attention_num_buckets is 7"),
    ],
)
def test_configs_that_are_not_supported_are_named(fields, message, tmp_path):
    whole = {"model_type": "t5"} | BASE | fields
    known = {name: value for name, value in whole.items() if value is not None}
    (tmp_path / "config.json").write_text(json.dumps(known))
    with pytest.raises(UserError, match=message):
        t5.read_config(tmp_path)

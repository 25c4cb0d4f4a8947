"""Parameters divided over eight devices: where they lie, and that they compute the same."""

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from pbr_jax.base.types import UserError
from pbr_jax.models import causal_lm, sharding
from pbr_jax.models.causal_lm import Past
from pbr_jax.models.rules import flatten, unflatten

torch: Any = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")

DEVICES = 8
BASE: dict[str, Any] = dict(
    vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=8,
    num_key_value_heads=8, max_position_embeddings=64, initializer_range=0.2, pad_token_id=0,
    bos_token_id=1, eos_token_id=2,
)  # fmt: skip
FEW: dict[str, Any] = BASE | {"num_key_value_heads": 2}
CASES = {
    "llama": transformers.LlamaConfig(**BASE, tie_word_embeddings=False),
    "few_key_heads": transformers.LlamaConfig(**FEW, attention_bias=True, tie_word_embeddings=True),
    "odd": transformers.LlamaConfig(
        **BASE | {"vocab_size": 97, "intermediate_size": 50}, tie_word_embeddings=True
    ),
    "qwen3": transformers.Qwen3Config(**BASE, head_dim=8, tie_word_embeddings=False),
    "phi3": transformers.Phi3Config(**BASE, sliding_window=5, tie_word_embeddings=True),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("models")


@functools.cache
def saved(case: str, folder: Path) -> Path:
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(CASES[case]).save_pretrained(folder / case)
    return folder / case


def read_and_continue(model, params) -> list[np.ndarray]:
    """Logits of 2 texts of 9 tokens, the last of them read after the others, as generation does."""
    ids = jnp.asarray(np.random.default_rng(0).integers(0, 96, (2, 9)), jnp.int32)
    places = jnp.broadcast_to(jnp.arange(9), ids.shape)

    @jax.jit
    def run(params):
        first = model.apply(params, ids[:, :8], places[:, :8])
        past = Past(first.keys, first.values, places[:, :8])
        second = model.apply(params, ids[:, 8:], places[:, 8:], past)
        return [causal_lm.logits(params, output.hidden) for output in (first, second)]

    return [np.asarray(rows) for rows in run(params)]


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_eight_devices_compute_what_one_does(case, folder):
    path = saved(case, folder)
    model, whole, _ = causal_lm.load(path)
    _, divided, _ = causal_lm.load(path, mesh=sharding.mesh(model=DEVICES))
    jax.tree.map(np.testing.assert_array_equal, divided, whole)
    for found, wanted in zip(read_and_continue(model, divided), read_and_continue(model, whole)):
        np.testing.assert_allclose(found, wanted, atol=1e-5)


def shards(leaf: jax.Array) -> set[tuple[int, ...]]:
    assert len(leaf.addressable_shards) == DEVICES
    return {shard.data.shape for shard in leaf.addressable_shards}


def test_a_device_holds_an_eighth_of_every_matrix(folder):
    _, params, _ = causal_lm.load(saved("llama", folder), jnp.bfloat16, mesh=sharding.mesh(model=DEVICES))
    layers = params["layers"]
    for name in ("embedding", "head"):
        assert shards(params[name]) == {(12, 32)}
    for name in ("query", "key", "value"):
        assert shards(layers[name]["kernel"]) == {(2, 4, 32)}
    assert shards(layers["output"]["kernel"]) == {(2, 32, 4)}
    for name in ("gate", "up"):
        assert shards(layers[name]["kernel"]) == {(2, 6, 32)}
    assert shards(layers["down"]["kernel"]) == {(2, 32, 6)}
    assert shards(layers["attention_norm"]["scale"]) == {(2, 32)}


def test_too_few_key_heads_are_copied(folder):
    """Their 8 rows would divide by 8 devices, but a head would not."""
    _, params, _ = causal_lm.load(saved("few_key_heads", folder), mesh=sharding.mesh(model=DEVICES))
    for name in ("key", "value"):
        assert shards(params["layers"][name]["kernel"]) == {(2, 8, 32)}
        assert shards(params["layers"][name]["bias"]) == {(2, 8)}
    assert shards(params["layers"]["query"]["bias"]) == {(2, 4)}


def test_axes_that_do_not_divide_are_copied(folder):
    _, params, _ = causal_lm.load(saved("odd", folder), mesh=sharding.mesh(model=DEVICES))
    assert shards(params["embedding"]) == {(97, 32)}
    assert shards(params["layers"]["gate"]["kernel"]) == {(2, 50, 32)}
    assert shards(params["layers"]["query"]["kernel"]) == {(2, 4, 32)}


def test_rules_are_of_whole_paths_and_the_first_holds():
    params = {"a": {"b": np.ones((4, 8))}, "b": np.ones((8, 4)), "c": np.ones(8)}
    rules = {"b": ("model",), "a/.*": (None, "model"), ".*/b": ("model", None)}
    mesh, leaves = sharding.mesh(model=4), flatten(params).items()
    placed = unflatten({p: sharding.place_one(p, x, rules=rules, mesh=mesh) for p, x in leaves})
    assert placed["a"]["b"].sharding.spec == PartitionSpec(None, "model")
    assert placed["b"].sharding.spec == PartitionSpec("model")
    assert placed["c"].sharding.is_fully_replicated
    assert len(placed["c"].sharding.device_set) == 4


@pytest.mark.parametrize("devices", [0, 9])
def test_devices_that_are_not_there(devices):
    with pytest.raises(UserError, match=f"{devices} devices are wanted and there are 8"):
        sharding.mesh(model=devices)

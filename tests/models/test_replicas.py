"""How parameters lie on a grid of devices: replicas, and states in shares."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from pbr_jax.base.types import UserError
from pbr_jax.models import causal_lm, sharding
from pbr_jax.models.causal_lm_config import CausalLMConfig
from pbr_jax.models.rules import flatten
from pbr_jax.train import steps
from pbr_jax.train.sharding import data_mesh, fully_divided


def bytes_per_device(shapes, layout):
    held = jax.tree.map(lambda x, how: math.prod(how.shard_shape(x.shape)) * x.dtype.itemsize, shapes, layout)
    return sum(jax.tree.leaves(held))


RULES: sharding.Rules = {"kernel": (None, "model", None), "bias": (None, "model"), "few": ("model",)}


@pytest.mark.parametrize(
    ("path", "shape", "wanted"),
    [
        ("kernel", (2, 8, 6), P(None, "model", "data")),  # of 2, 2 and 6 the longest that 2 divides
        ("kernel", (2, 16, 5), P(None, ("model", "data"), None)),  # 2 does not divide 5
        ("bias", (3, 8), P(None, ("model", "data"))),
        ("bias", (3, 6), P(None, "data")),  # 4 does not divide 6, and 3 neither
        ("scale", (2, 32), P(None, ("data", "model"))),  # no rule
        ("few", (5,), P(None)),
        ("scale", (), P()),
        ("scale", (3,), P()),
    ],
)
def test_what_rules_leave_of_a_mesh_divides_the_longest_axis(path, shape, wanted):
    mesh = sharding.mesh(data=2, model=4)
    assert sharding.spec(path, shape, RULES, mesh, fully=True) == wanted
    array = sharding.place_one(path, np.zeros(shape), rules=RULES, mesh=mesh, fully=True)
    assert array.sharding == NamedSharding(mesh, wanted)


@pytest.mark.parametrize(("model", "count"), [(1, 8), (2, 4), (3, 2), (8, 1)])
def test_replicas_take_devices_in_turn(model, count):
    meshes = sharding.replicas(model)
    assert [mesh.shape["model"] for mesh in meshes] == [model] * count
    used = [device for mesh in meshes for device in mesh.devices.flat]
    assert used == jax.devices()[: model * count]
    with pytest.raises(UserError, match="9 devices are wanted and there are 8"):
        sharding.replicas(9)


def test_a_replica_is_the_same_elsewhere():
    first, second = sharding.replicas(4)
    leaf = np.arange(32.0).reshape(1, 8, 4)
    placed = {"kernel": sharding.place_one("kernel", leaf, rules=RULES, mesh=first)}
    other = sharding.copied(placed, second)["kernel"]
    assert other.sharding == NamedSharding(second, P(None, "model", None))
    np.testing.assert_array_equal(sharding.whole(other), leaf)


LLAMA_8B: dict[str, Any] = dict(
    model_type="llama", vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
    num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=8192, rms_norm_eps=1e-5,
    rope_theta=500000.0, tie_word_embeddings=False, hidden_act="silu",
)  # fmt: skip


@pytest.mark.parametrize("model", [1, 4])
def test_what_eight_billion_parameters_take_of_each_of_eight_devices(model):
    """From shapes, in GB: weights and both moments in float32, and a frozen base in bfloat16."""
    config, mesh = CausalLMConfig.from_json(LLAMA_8B, "config.json"), data_mesh(8, model)
    rules = causal_lm.sharding_rules(config, mesh)

    def weights(dtype: Any) -> Any:
        return jax.eval_shape(causal_lm.causal_lm(config, dtype).init, jax.random.key(0))

    full = jax.eval_shape(lambda p: steps.TrainState(0, p, optax.adamw(1e-5).init(p)), weights(jnp.float32))
    assert sum(leaf.size for leaf in flatten(full.params).values()) == 8_030_261_248
    layout = fully_divided(full, rules, mesh)
    assert bytes_per_device(full, layout) / 1e9 == pytest.approx(12 * 8.030261248 / 8, abs=1e-6)
    base = weights(jnp.bfloat16)
    held = bytes_per_device(base, fully_divided(base, rules, mesh)) / 1e9
    assert held == pytest.approx(2 * 8.030261248 / 8, abs=1e-6)

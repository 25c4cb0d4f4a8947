"""Tensor parallelism: which device holds which part of a parameter, by rules on its path.

A rule is `pattern of the path -> mesh axis of each of the parameter's axes`; the first that matches the
whole path holds. Computation needs no rules: jit divides it as the parameters are divided.
"""

import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from pbr_jax.types import Params, UserError

Rules = Mapping[str, tuple[str | None, ...]]


def mesh(devices: int) -> Mesh:
    """The first `devices` devices along one axis, "model"; `UserError` where there are fewer."""
    found = jax.devices()
    if not 1 <= devices <= len(found):
        raise UserError(f"{devices} devices are wanted and there are {len(found)}; ask for 1 to {len(found)}")
    return jax.make_mesh((devices,), ("model",), axis_types=(AxisType.Auto,), devices=found[:devices])


def place(params: Params, rules: Rules, mesh: Mesh) -> Params:
    """Parameters on the devices of `mesh`, divided by `rules`; those without a rule are copied to each.

    An axis that its devices do not divide evenly is not divided.
    """

    def one(path: tuple[Any, ...], leaf: Any) -> jax.Array:
        return place_one("/".join(str(entry.key) for entry in path), leaf, rules=rules, mesh=mesh)

    return jax.tree_util.tree_map_with_path(one, params)


def place_one(path: str, leaf: np.ndarray | jax.Array, *, rules: Rules, mesh: Mesh) -> jax.Array:
    """One parameter of `place`, straight from the host: no device holds more than its part."""
    axes = next((axes for pattern, axes in rules.items() if re.fullmatch(pattern, path)), ())
    if len(axes) > leaf.ndim:
        raise ValueError(f"{path} has {leaf.ndim} axes, its sharding rule {len(axes)}")
    divided = (
        axis if axis is not None and size % mesh.shape[axis] == 0 else None
        for axis, size in zip(axes, leaf.shape)
    )
    return jax.device_put(leaf, NamedSharding(mesh, PartitionSpec(*divided)))

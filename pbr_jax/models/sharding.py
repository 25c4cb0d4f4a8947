"""Tensor parallelism: which device holds which part of a parameter, by rules on its path.

A rule is `pattern of the path -> mesh axis of each of the parameter's axes`; the first that matches the
whole path holds. Computation needs no rules: jit divides it as the parameters are divided.
"""

import math
import re
from collections.abc import Mapping

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from pbr_jax.types import UserError

Rules = Mapping[str, tuple[str | None, ...]]


def mesh(**axes: int) -> Mesh:
    """The first devices along axes of these names and sizes; `UserError` where there are fewer."""
    available, count = jax.devices(), math.prod(axes.values())
    if not 1 <= count <= len(available):
        there = len(available)
        raise UserError(f"{count} devices are wanted and there are {there}; ask for 1 to {there}")
    kinds = (AxisType.Auto,) * len(axes)
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=kinds, devices=available[:count])


def place_one(path: str, leaf: np.ndarray | jax.Array, *, rules: Rules, mesh: Mesh) -> jax.Array:
    """One parameter on the devices of `mesh`, straight from the host, divided by `rules`; an axis that its
    devices do not divide evenly is not divided."""
    axes = next((axes for pattern, axes in rules.items() if re.fullmatch(pattern, path)), ())
    if len(axes) > leaf.ndim:
        raise ValueError(f"{path} has {leaf.ndim} axes, its sharding rule {len(axes)}")
    divided = (
        axis if axis is not None and size % mesh.shape[axis] == 0 else None
        for axis, size in zip(axes, leaf.shape)
    )
    return jax.device_put(leaf, NamedSharding(mesh, PartitionSpec(*divided)))

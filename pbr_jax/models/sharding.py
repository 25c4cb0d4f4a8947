"""Tensor parallelism: which device holds which part of a parameter, by rules on its path.

A rule is `pattern of the path -> mesh axis of each of the parameter's axes`; the first that matches the
whole path holds. Computation needs no rules: jit divides it as the parameters are divided.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from pbr_jax.base.types import UserError

Rules = Mapping[str, tuple[str | None, ...]]
Array = np.ndarray | jax.Array


def mesh(**axes: int) -> Mesh:
    """The first devices along axes of these names and sizes; `UserError` where there are fewer."""
    return _mesh(jax.devices(), **axes)


def replicas(model: int) -> list[Mesh]:
    """This process's devices, `model` of them to each mesh, along an axis "model"; those left over are idle.
    `UserError` where there are fewer than `model`."""
    local = jax.local_devices()
    starts = range(0, max(1, len(local) // model * model), model)
    return [_mesh(local[start:], model=model) for start in starts]


def _mesh(devices: Sequence[Any], **axes: int) -> Mesh:
    count, there = math.prod(axes.values()), len(devices)
    if not 1 <= count <= there:
        raise UserError(f"{count} devices are wanted and there are {there}; ask for 1 to {there}")
    kinds = (AxisType.Auto,) * len(axes)
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=kinds, devices=devices[:count])


def spec(path: str, shape: Sequence[int], rules: Rules, mesh: Mesh, *, fully: bool = False) -> PartitionSpec:
    """How the parameter of a path is divided by `rules`; an axis that its devices do not divide evenly is not
    divided.

    fully: each axis of the mesh that the rules leave out divides the longest of what is left of the
    parameter's axes that it divides evenly: fully sharded data parallelism, as in ZeRO 3 (Rajbhandari et al.,
    https://arxiv.org/abs/1910.02054, 2020).
    """
    axes = next((axes for pattern, axes in rules.items() if re.fullmatch(pattern, path)), ())
    if len(axes) > len(shape):
        raise ValueError(f"{path} has {len(shape)} axes, its sharding rule {len(axes)}")
    left, names = list(shape), [list[str]() for _ in shape]

    def divide(place: int, axis: str) -> None:
        names[place].append(axis)
        left[place] //= mesh.shape[axis]

    for place, axis in enumerate(axes):
        if axis is not None and axis in mesh.shape and left[place] % mesh.shape[axis] == 0:
            divide(place, axis)
    used = {axis for own in names for axis in own}
    for axis in mesh.axis_names if fully else ():
        even = [place for place, size in enumerate(left) if size and size % mesh.shape[axis] == 0]
        if axis not in used and even:
            divide(max(even, key=left.__getitem__), axis)
    stated = max([len(axes), *(place + 1 for place, own in enumerate(names) if own)])
    return PartitionSpec(*(tuple(own) if len(own) > 1 else own[0] if own else None for own in names[:stated]))


def data_devices() -> int:
    """The size of the axis "data" of the training step that is traced (`train.sharding.spread_rows`); 0: of
    none."""
    return dict(jax.sharding.get_abstract_mesh().shape).get("data", 0)


def over_data(x: jax.Array, rows: int, *rest: None) -> jax.Array:
    """What a training step computes of `rows` rows, [rows * t ...], divided like them: XLA may otherwise move
    it in place of weights. `rest`: None for each other axis that is not divided; without, as XLA likes."""
    if not (devices := data_devices()):
        return x
    others = rest or [PartitionSpec.UNCONSTRAINED] * (x.ndim - 1)
    return jax.lax.with_sharding_constraint(x, PartitionSpec(None if rows % devices else "data", *others))


def place_one(path: str, leaf: Array, *, rules: Rules, mesh: Mesh, fully: bool = False) -> jax.Array:
    """One parameter on the devices of `mesh`, straight from the host, divided as `spec` says. Of several
    processes each gives its devices their parts."""
    where = NamedSharding(mesh, spec(path, leaf.shape, rules, mesh, fully=fully))
    return jax.make_array_from_callback(leaf.shape, where, lambda part: leaf[part])


def placer(rules: Rules, mesh: Mesh | None, *, fully: bool = False) -> Callable[[str, Array], jax.Array]:
    """`place_one` for all parameters of a model; without a mesh, they go to the default device."""
    if mesh is None:
        return lambda path, leaf: jax.device_put(leaf)
    return lambda path, leaf: place_one(path, leaf, rules=rules, mesh=mesh, fully=fully)


def copied(params: Any, mesh: Mesh) -> Any:
    """Parameters that lie on one mesh, on another with the same axes, divided alike."""
    return jax.tree.map(lambda leaf: jax.device_put(leaf, NamedSharding(mesh, leaf.sharding.spec)), params)


def whole(leaf: Array) -> np.ndarray:
    """All of an array on the host, from all processes that have parts of it; each of them has to ask."""
    from jax.experimental.multihost_utils import process_allgather

    if isinstance(leaf, jax.Array) and not (leaf.is_fully_addressable or leaf.is_fully_replicated):
        return np.asarray(process_allgather(leaf, tiled=True))
    return np.asarray(leaf)

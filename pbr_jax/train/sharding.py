"""Data parallelism: a batch is divided over devices, parameters are copied to each or divided too.

Losses are global: `jax.jit` sees the whole batch, on any number of devices and hosts.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pbr_jax.base.types import UserError
from pbr_jax.models.sharding import Rules, mesh, spec

Out = TypeVar("Out")
Batch = dict[str, np.ndarray]
"""Arrays [b ...] of one batch."""


def data_mesh(devices: int | None = None, model: int = 1) -> Mesh:
    """The first `devices` devices along an axis "data"; None: all, those of other hosts included. So many
    of them as `model` says share each copy of a model along a second axis, "model"."""
    count = len(jax.devices()) // model * model if devices is None else devices
    if count % model:
        raise UserError(
            f"{count} devices train copies of a model that {model} devices share; want a multiple"
        )
    return mesh(data=count // model, model=model) if model > 1 else mesh(data=count)


def replicated(over: Mesh) -> NamedSharding:
    """The sharding of an array that every device has a copy of."""
    return NamedSharding(over, PartitionSpec())


def divided(over: Mesh) -> NamedSharding:
    """The sharding of an array whose axis 0 is divided over the devices."""
    return NamedSharding(over, PartitionSpec("data"))


def spread_rows(compute: Callable[..., Out], over: Mesh) -> Callable[..., Out]:
    """A function that is traced so that what it computes of rows stays where they lie
    (`models.sharding.over_data`). Not on a CPU: its devices meet in no fixed order, and with more exchanges
    they may wait for each other without end."""
    if over.size == 1 or jax.default_backend() == "cpu":
        return compute

    @functools.wraps(compute)
    def computed(*arguments: Any) -> Out:
        with jax.sharding.use_abstract_mesh(over.abstract_mesh):
            return compute(*arguments)

    return computed


def fully_divided(shapes: Any, rules: Rules, over: Mesh) -> Any:
    """How each leaf of a training's state is divided: as the rules say of the parameter that it is, or is
    kept for, and over what they leave of the mesh (`models.sharding.spec`, fully).

    shapes: the state, or its shapes. Leaves are known by the dict keys on their paths: an optimizer keeps
    trees like the parameters'.
    """
    below = {f"(?:.*/)?(?:{pattern})": axes for pattern, axes in rules.items()}

    def layout(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        name = "/".join(str(key.key) for key in path if isinstance(key, jax.tree_util.DictKey))
        return NamedSharding(over, spec(name, leaf.shape, below, over, fully=True))

    return jax.tree_util.tree_map_with_path(layout, shapes)


def own_rows(batch_size: int) -> slice:
    """The rows of a global batch that this process reads."""
    share = batch_size // jax.process_count()
    return slice(jax.process_index() * share, (jax.process_index() + 1) * share)


def put(batch: Batch, over: Mesh) -> dict[str, Any]:
    """The global batch on the devices, from the rows of this process."""
    return {name: jax.make_array_from_process_local_data(divided(over), rows) for name, rows in batch.items()}

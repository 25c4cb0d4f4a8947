"""What training changes from step to step."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding

from pbr_jax.base.types import Params


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """Everything that a checkpoint needs beside the seed: randomness and data are functions of `step`."""

    step: Any  # Int[Array, ""]; in trees of shapes or layouts, one of those
    params: Params
    opt_state: optax.OptState


def create(params: Params, optimizer: optax.GradientTransformation, sharding: Any) -> TrainState:
    """The state before the first step, laid out as one `NamedSharding` says, or a tree of them."""
    # As an argument: read weights are not compiled into a program. From the host, unless they are on several
    # devices: every process of several gives its own copy. The result is a copy, which steps may overwrite.
    weights = jax.tree.map(lambda x: x if _is_divided(x) else np.asarray(x), params)
    return jax.jit(_begin(optimizer), out_shardings=sharding)(weights)


def _is_divided(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and len(leaf.sharding.device_set) > 1


def shapes(params: Params, optimizer: optax.GradientTransformation) -> TrainState:
    """The shapes and formats of `create`'s state."""
    return jax.eval_shape(_begin(optimizer), params)


def laid_out(shapes: TrainState, sharding: Any) -> TrainState:
    """Shapes with a layout, as for `create`: what a checkpoint is restored into, on any devices."""

    def layout(x: Any, how: NamedSharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=how)

    one = isinstance(sharding, NamedSharding)
    return jax.tree.map(layout, shapes, jax.tree.map(lambda _: sharding, shapes) if one else sharding)


def _begin(optimizer: optax.GradientTransformation) -> Callable[[Params], TrainState]:
    def begin(weights: Params) -> TrainState:
        return TrainState(jnp.int32(0), weights, optimizer.init(weights))

    return begin

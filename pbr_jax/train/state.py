"""What training changes from step to step."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding

from pbr_jax.types import Params


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """Everything that a checkpoint needs beside the seed: randomness and data are functions of `step`."""

    step: Any  # Int[Array, ""]; in trees of shapes or layouts, one of those
    params: Params
    opt_state: optax.OptState


def create(
    params: Callable[[], Params], optimizer: optax.GradientTransformation, sharding: NamedSharding
) -> TrainState:
    """The state before the first step, laid out on the devices of `sharding`."""
    # From the host, and as an argument: read weights are not compiled into a program, and every process
    # of several gives its own copy. The result is a copy too, which steps may overwrite.
    weights = jax.tree.map(np.asarray, params())
    return jax.jit(_begin(optimizer), out_shardings=sharding)(weights)


def abstract(
    params: Callable[[], Params], optimizer: optax.GradientTransformation, sharding: NamedSharding
) -> TrainState:
    """Shapes and layout of `create`'s state: what a checkpoint is restored into, on any devices."""
    return jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
        jax.eval_shape(_begin(optimizer), jax.eval_shape(params)),
    )


def _begin(optimizer: optax.GradientTransformation) -> Callable[[Params], TrainState]:
    def begin(weights: Params) -> TrainState:
        return TrainState(jnp.int32(0), weights, optimizer.init(weights))

    return begin

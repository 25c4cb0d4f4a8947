"""The training step: a pure function of state, batch and key, compiled once for a mesh."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from jaxtyping import Array, Float

from pbr_jax.train.sharding import divided, replicated
from pbr_jax.train.state import TrainState
from pbr_jax.types import Params

Loss = Callable[[Params, dict[str, Array], Array], Float[Array, ""]]
"""(params, batch, key) -> the mean loss of a batch. Whatever is random in it comes from the key and, so that
it is the same however the batch is divided, from `batch["row"]` [b], the number of each row."""

Metrics = dict[str, Float[Array, ""]]
Step = Callable[..., tuple[TrainState, Metrics]]
"""(state, batch, key, frozen) -> the next state, and what was measured."""


def train_step(
    loss: Loss,
    optimizer: optax.GradientTransformation,
    *,
    accumulate: int = 1,
    dtype: Any = jnp.float32,
    updates: int = 1,
) -> Step:
    """One update.

    Args:
      loss: of a batch.
      optimizer: its state lives in the train state.
      accumulate: parts that the batch is computed in, one after another, with one key; their gradients are
        averaged, weighed by how many rows `batch["where"]` counts, where there is such a mask. A loss over
        pairs in the batch (InfoNCE) then has the negatives of a part only: for all of them, use
        `losses.contrastive`'s cached gradients.
      dtype: what parameters are rounded to inside the loss; they are kept and updated as they are.
      updates: how often in a row a batch is learned from. All of them get the same key, so that a policy's
        ratio to that of the first differs by what was learned, and not by what dropout drops.

    The step's last argument are parameters that the loss reads and nothing moves, under other names; they are
    in no gradient, in no state and in no checkpoint.
    """

    def step(
        state: TrainState, batch: dict[str, Array], key: Array, frozen: Params | None = None
    ) -> tuple[TrainState, Metrics]:
        def rounded(params: Params, batch: dict[str, Array], key: Array) -> Float[Array, ""]:
            cast = jax.tree.map(lambda x: x.astype(dtype) if x.dtype == jnp.float32 else x, params)
            return loss(cast | (frozen or {}), batch, key).astype(jnp.float32)

        key = jax.random.fold_in(key, state.step // updates)
        size = len(next(iter(batch.values())))
        batch = {"row": jnp.arange(size, dtype=jnp.int32), **batch}
        value, gradients = _gradients(rounded, state.params, batch, key, accumulate)
        change, opt_state = optimizer.update(gradients, state.opt_state, state.params)
        params: Params = optax.apply_updates(state.params, change)  # pyright: ignore[reportAssignmentType]
        metrics = {"loss": value, "gradient_norm": optax.tree.norm(gradients)}
        return TrainState(state.step + 1, params, opt_state), metrics

    return step


def _gradients(
    loss: Loss, params: Params, batch: dict[str, Array], key: Array, accumulate: int
) -> tuple[Float[Array, ""], Params]:
    """The mean of loss and gradients over the parts of a batch, weighed by the rows that count."""
    if accumulate == 1:
        return jax.value_and_grad(loss)(params, batch, key)

    # Row i goes to part i % accumulate, so that the rows of every device are spread over all parts.
    def divide(x: Array) -> Array:
        return x.reshape(-1, accumulate, *x.shape[1:]).swapaxes(0, 1)

    everything = jnp.ones(len(next(iter(batch.values()))), bool)
    counts = divide(batch.get("where", everything)).sum(1)

    def part(total: Any, item: tuple[dict[str, Array], Array]) -> tuple[Any, None]:
        rows, share = item
        found = jax.value_and_grad(loss)(params, rows, key)
        return jax.tree.map(lambda x, y: x + share * y, total, found), None

    zero = jnp.float32(0), jax.tree.map(jnp.zeros_like, params)
    shares = counts / jnp.maximum(counts.sum(), 1)
    parts = {name: divide(x) for name, x in batch.items()}
    return jax.lax.scan(part, zero, (parts, shares))[0]


def compiled(step: Step, mesh: Mesh) -> Step:
    """The step for a mesh: the batch divided, everything else copied; the old state's memory is reused."""
    copy = replicated(mesh)
    divided_so = (copy, divided(mesh), copy)

    def over_devices(state: TrainState, batch: Any, key: Array, frozen: Params) -> Any:
        return step(state, batch, key, frozen)

    # Frozen parameters stay as they lie, which may be divided.
    made = jax.jit(
        over_devices, in_shardings=(*divided_so, None), out_shardings=(copy, copy), donate_argnums=0
    )
    return lambda state, batch, key, frozen=None: made(state, batch, key, frozen or {})

"""What training changes from step to step, and the step: a pure function of state, batch and key."""

import dataclasses
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding
from jaxtyping import Array, Float, Int

from pbr_jax.base import compilation
from pbr_jax.base.types import Params, UserError
from pbr_jax.train.sharding import divided, replicated, spread_rows


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


Loss = Callable[[Params, dict[str, Array], Array], Float[Array, ""]]
"""(params, batch, key) -> the mean loss of a batch. Whatever is random in it comes from the key and, so that
it is the same however the batch is divided, from `batch["row"]` [b], the number of each row."""

Metrics = dict[str, Float[Array, ""]]
Step = Callable[..., tuple[TrainState, Metrics]]
"""(state, batch, key, frozen) -> the next state, and what was measured."""


class Division(NamedTuple):
    """How one device computes a batch: `workers` at the same time, each in `parts`, one after another.

    Gradients are averaged, weighed by the rows that `batch["where"]` counts. A loss over pairs in the batch
    (InfoNCE) has the negatives of a part only.
    """

    workers: int = 1
    parts: int = 1


WHOLE = Division()


def division(batch_size: int, accumulate: int | None, mesh: Mesh, *, few: bool = False) -> Division:
    """As many parts as `accumulate` says; UserError where devices and parts do not divide the batch.

    None: up to 4 on one CPU, and a worker for each core where `few` parameters are trained and no more than
    half of the cores stay idle (benchmarks/RESULTS.md).
    """
    copies, result = mesh.shape["data"], Division(1, accumulate or 1)
    if accumulate is None and mesh.size == 1 and mesh.devices.flat[0].platform == "cpu":
        available = compilation.count() if few else 1
        workers = max(n for n in range(1, available + 1) if batch_size % n == 0)
        workers = workers if 2 * workers >= available else 1
        result = Division(workers, math.gcd(batch_size // workers, max(4 // workers, 1)))
    if batch_size % (result.parts * result.workers * copies):
        raise UserError(
            f"batch_size is {batch_size}, which {copies} devices and {result.parts} accumulated parts do "
            f"not divide; want a multiple of {result.parts * copies}"
        )
    return result


def compiled(
    loss: Loss,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    division: Division = WHOLE,
    *,
    dtype: Any = jnp.float32,
    updates: int = 1,
    layout: TrainState | None = None,
) -> Step:
    """One update, compiled for a mesh: the batch divided, everything else copied; the old state's memory is
    reused.

    Args:
      division: of the batch on one device.
      dtype: what parameters are rounded to inside the loss; they are kept and updated as they are.
      updates: how often in a row a batch is learned from, always with the same key.
      layout: the `NamedSharding` of each leaf of the state, and so of gradients; None: copied.

    The step's last argument are frozen parameters, under other names.
    """

    def rounded(params: Params, frozen: Params, batch: dict[str, Array], key: Array) -> Float[Array, ""]:
        cast = jax.tree.map(lambda x: x.astype(dtype) if x.dtype == jnp.float32 else x, params)
        return loss(cast | frozen, batch, key).astype(jnp.float32)

    def spread(computed: _Gradients) -> _Gradients:
        """Gradients divided at once, so that no device adds up all of them."""
        if layout is None:
            return computed
        return computed[0], jax.lax.with_sharding_constraint(computed[1], layout.params)

    def gradients(
        params: Params, batch: dict[str, Array], key: Array, step: Int[Array, ""], frozen: Params
    ) -> _Gradients:
        key = jax.random.fold_in(key, step // updates)
        part = jax.value_and_grad(lambda *of: rounded(of[0], frozen, *of[1:]))
        return _gradients(lambda *of: spread(part(*of)), params, batch, key, division.parts)

    if division.workers > 1:
        return _side_by_side(gradients, partial(_moved, optimizer), division.workers)
    copy = replicated(mesh)
    kept = copy if layout is None else layout

    def over_devices(state: TrainState, batch: dict[str, Array], key: Array, frozen: Params) -> Any:
        found = spread_rows(gradients, mesh)(state.params, _numbered(batch), key, state.step, frozen)
        return _moved(optimizer, state, found)

    # Frozen parameters stay as they lie, which may be divided.
    made = jax.jit(
        compilation.announced(over_devices),
        in_shardings=(kept, divided(mesh), copy, None), out_shardings=(kept, copy), donate_argnums=0,
    )  # fmt: skip
    return lambda state, batch, key, frozen=None: made(state, batch, key, frozen or {})


_Gradients = tuple[Float[Array, ""], Params]
"""The mean loss of some rows, and its gradients."""


def _numbered(batch: dict[str, Array]) -> dict[str, Array]:
    return {"row": jnp.arange(_size(batch), dtype=jnp.int32), **batch}


def _size(batch: dict[str, Array]) -> int:
    return len(next(iter(batch.values())))


def _moved(
    optimizer: optax.GradientTransformation, state: TrainState, computed: _Gradients
) -> tuple[TrainState, Metrics]:
    value, gradients = computed
    change, opt_state = optimizer.update(gradients, state.opt_state, state.params)
    params: Params = optax.apply_updates(state.params, change)  # pyright: ignore[reportAssignmentType]
    metrics = {"loss": value, "gradient_norm": optax.tree.norm(gradients)}
    return TrainState(state.step + 1, params, opt_state), metrics


def _side_by_side(gradients: Callable[..., _Gradients], moved: Callable[..., Any], workers: int) -> Step:
    """The step of several workers, a core each, which read one copy of the parameters."""
    compute = compilation.compiled(gradients, one_core=True)
    pool = ThreadPoolExecutor(workers)
    seen = set()

    @partial(jax.jit, static_argnames="workers")
    def shares(batch: dict[str, Array], workers: int) -> tuple[list[dict[str, Array]], Float[Array, "l"]]:
        parts, weights = _divided(_numbered(batch), workers)
        return [jax.tree.map(lambda x, i=i: x[i], parts) for i in range(workers)], weights

    @partial(jax.jit, donate_argnums=0)
    def move(state: TrainState, parts: list[_Gradients], weights: Float[Array, "l"]) -> Any:
        weighed = [jax.tree.map(partial(_weighed, w), part) for part, w in zip(parts, weights)]
        return moved(state, jax.tree.map(lambda *x: sum(x[1:], x[0]), *weighed))

    def step(
        state: TrainState, batch: dict[str, Array], key: Array, frozen: Params | None = None
    ) -> tuple[TrainState, Metrics]:
        rows, weights = shares(batch, workers)

        def work(own: dict[str, Array]) -> _Gradients:
            return jax.block_until_ready(compute(state.params, own, key, state.step, frozen or {}))

        shape = tuple((name, x.shape) for name, x in sorted(batch.items()))
        # The first time the workers follow each other, so that their program is compiled once.
        parts = list((pool.map if shape in seen else map)(work, rows))
        seen.add(shape)
        return move(state, parts, weights)

    return step


def _weighed(share: Float[Array, ""], x: Array) -> Array:
    """A part's share of the sum; of rows that do not count nothing, be their loss 0 / 0."""
    return jnp.where(share > 0, share * x, 0)


def _divided(batch: dict[str, Array], parts: int) -> tuple[dict[str, Array], Float[Array, "p"]]:
    """The rows of each part, [parts, b / parts ...], and its share of the rows that count. Row i goes to
    part i % parts, so that the rows of every device are spread over all parts."""

    def divide(x: Array) -> Array:
        return x.reshape(-1, parts, *x.shape[1:]).swapaxes(0, 1)

    counts = divide(batch.get("where", jnp.ones(_size(batch), bool))).sum(1)
    return {name: divide(x) for name, x in batch.items()}, counts / jnp.maximum(counts.sum(), 1)


def _gradients(
    compute: Callable[..., _Gradients], params: Params, batch: dict[str, Array], key: Array, parts: int
) -> _Gradients:
    """The mean of loss and gradients over the parts of a batch, weighed by the rows that count."""
    if parts == 1:
        return compute(params, batch, key)

    def part(total: Any, item: tuple[dict[str, Array], Array]) -> tuple[Any, None]:
        rows, share = item
        return jax.tree.map(lambda x, y: x + _weighed(share, y), total, compute(params, rows, key)), None

    zero = jnp.float32(0), jax.tree.map(jnp.zeros_like, params)
    return jax.lax.scan(part, zero, _divided(batch, parts))[0]

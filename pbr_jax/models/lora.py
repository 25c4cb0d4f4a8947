"""LoRA: adds the product of two trained low-rank matrices to a frozen linear map W.

y = W x + (alpha / r) B A x, with A: r times inputs, B: outputs times r. Hu et al.,
https://arxiv.org/abs/2106.09685, 2021, section 4.1.

An adapter is a nested dict like the model's parameters, with `a` and `b` instead of each adapted `kernel`.
They are stacked like the layers. `attached` puts them next to their kernels, where the model finds them.
"""

import math
from collections.abc import Callable, Collection

import jax
import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float, Int

from pbr_jax.base.types import Params, UserError
from pbr_jax.models.layers import drop, precision
from pbr_jax.models.rules import flatten, unflatten

_A, _B = "lora_a", "lora_b"


def init(key: Array, params: Params, targets: Collection[str], rank: int) -> Params:
    """A new adapter, which does not change the model: A is uniform within ±1 / sqrt(inputs), as in PEFT, and
    B is 0.

    Args:
      params: the model's parameters, or their shapes.
      targets: the names of the linear maps to adapt, such as `query` and `value`, in all stacks. `query`
        includes `cross_query`.
      rank: the number of rows of A and of columns of B.

    Raises UserError for a name that the model does not have.

    >>> adapter = init(jax.random.key(0), {"query": {"kernel": jnp.ones((4, 6))}}, ["query"], rank=2)
    >>> {name: leaf.shape for name, leaf in adapter["query"].items()}
    {'a': (2, 6), 'b': (4, 2)}
    """
    kernels: dict[str, tuple[int, ...]] = {
        path: leaf.shape for path, leaf in flatten(params).items() if path.endswith("/kernel")
    }
    names = {path: path.split("/")[-2].removeprefix("cross_") for path in kernels}
    unknown = sorted(set(targets) - set(names.values()))
    if unknown or not targets:
        raise UserError(
            f"adapted maps are {', '.join(targets) or 'none'}, and the model has "
            f"{', '.join(sorted(set(names.values())))}; choose among these"
        )
    adapter: dict[str, Array] = {}
    chosen = [path for path in kernels if names[path] in targets]
    for path, own in zip(chosen, jax.random.split(key, len(chosen))):
        *stack, outputs, inputs = kernels[path]
        bound = 1 / math.sqrt(inputs)
        name = path.removesuffix("kernel")
        adapter[f"{name}a"] = jax.random.uniform(own, (*stack, rank, inputs), jnp.float32, -bound, bound)
        adapter[f"{name}b"] = jnp.zeros((*stack, outputs, rank), jnp.float32)
    return unflatten(adapter)


def attached(params: Params, adapter: Params, scale: float) -> Params:
    """The parameters with the adapter next to its kernels, where `added` finds it. Differentiable.
    `scale`: alpha / r."""
    return _joined(params, adapter, lambda own, pair: own | {_A: pair["a"], _B: scale * pair["b"]})


def merged(params: Params, adapter: Params, scale: float) -> Params:
    """The parameters with the products added to their kernels. Sums are computed in float32 and rounded to
    the kernel's dtype. Sharded kernels stay sharded."""

    def merge(own: Params, pair: Params) -> Params:
        kernel = own["kernel"]

        def add(kernel: Array, a: Array, b: Array) -> Array:
            product = jnp.einsum(
                "...or,...ri->...oi", b, a, precision="highest", preferred_element_type=jnp.float32
            )
            return (kernel.astype(jnp.float32) + scale * product).astype(kernel.dtype)

        place = kernel.sharding if isinstance(kernel, jax.Array) else None
        a, b = (jnp.asarray(pair[name], jnp.float32) for name in ("a", "b"))
        if place is not None and len(place.device_set) > 1:
            everywhere = jax.sharding.NamedSharding(place.mesh, jax.sharding.PartitionSpec())  # pyright: ignore[reportAttributeAccessIssue]
            a, b = jax.device_put((a, b), everywhere)
        return own | {"kernel": jax.jit(add, out_shardings=place)(kernel, a, b)}

    return _joined(params, adapter, merge)


def added(
    module: nn.Module,
    x: Float[Array, "*n i"],
    y: Float[Array, "*n o"],
    rate: float = 0.0,
    numbers: Int[Array, "*n"] | None = None,
) -> Float[Array, "*n o"]:
    """Adds the adapter's product, if `attached` put one next to the kernel, to the output of a linear map.

    The product is computed in the adapter's dtype, which may differ from that of the model.

    Args:
      module: the module whose parameters contain the kernel.
      rate: the dropout rate of x, applied if the module has a dropout key.
      numbers: the numbers of the rows of x, from which dropout masks are drawn.
    """
    if not module.has_variable("params", _A):
        return y
    a, b = module.get_variable("params", _A), module.get_variable("params", _B)
    x = x.astype(a.dtype)
    if rate and numbers is not None:
        rows = x.reshape(-1, x.shape[-1])  # one a token
        x = drop(module, rate, rows, numbers.reshape(-1)).reshape(x.shape)
    with precision(a.dtype):
        narrow = jnp.einsum("...i,ri->...r", x, a)
        return y + jnp.einsum("...r,or->...o", narrow, b).astype(y.dtype)


def _joined(params: Params, adapter: Params, change: Callable[[Params, Params], Params]) -> Params:
    if "a" in adapter and not isinstance(adapter["a"], dict):
        return change(params, adapter)
    return params | {name: _joined(params[name], inner, change) for name, inner in adapter.items()}

"""Weights of torch's own modules as ours; the same functions carry torch's gradients."""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

Named = Mapping[str, np.ndarray]


def linear(named: Named, prefix: str) -> dict:
    """`nn.Linear`."""
    return {"kernel": named[prefix + "weight"].T, "bias": named[prefix + "bias"]}


def norm(named: Named, prefix: str) -> dict:
    """`nn.LayerNorm`."""
    return {"scale": named[prefix + "weight"], "bias": named[prefix + "bias"]}


def attention(named: Named, prefix: str) -> dict:
    """`nn.MultiheadAttention`."""
    kernels, biases = (np.split(named[f"{prefix}in_proj_{part}"], 3) for part in ("weight", "bias"))
    parts = {
        name: {"kernel": kernel.T, "bias": bias}
        for name, kernel, bias in zip(("query", "key", "value"), kernels, biases)
    }
    return parts | {"output": linear(named, prefix + "out_proj.")}


def layers(named: Named, prefix: str) -> dict:
    """`nn.TransformerEncoder`, its layers stacked."""
    import jax

    count = len({name[len(prefix) :].split(".")[1] for name in named if name.startswith(prefix + "layers.")})
    each = []
    for i in range(count):
        layer = f"{prefix}layers.{i}."
        each.append(
            {
                "attention": attention(named, layer + "self_attn."),
                "attention_norm": norm(named, layer + "norm1."),
                "up": linear(named, layer + "linear1."),
                "down": linear(named, layer + "linear2."),
                "mlp_norm": norm(named, layer + "norm2."),
            }
        )
    return jax.tree.map(lambda *parts: np.stack(parts), *each)


@pytest.fixture(scope="session")
def random_params() -> Callable[..., dict]:
    """A function (model, seed) -> random parameters, biases and scales too; nothing is compiled for them."""

    def make(model, seed: int = 0) -> dict:
        import jax

        rng = np.random.default_rng(seed)

        def leaf(path: tuple, shape: Any) -> np.ndarray:
            values = 0.6 * rng.normal(size=shape.shape) + (path[-1].key == "scale")
            return values.astype(np.float32)

        return jax.tree.map_with_path(leaf, jax.eval_shape(model.init, jax.random.key(0)))

    return make


@pytest.fixture(scope="session")
def draws() -> Callable[..., bool]:
    """A function (apply, *inputs, **options) -> whether it draws numbers, given a key; it is only traced."""

    def whether(apply: Callable[..., Any], *args: Any, **options: Any) -> bool:
        import jax

        traced = jax.make_jaxpr(lambda key: apply(*args, **options, key=key))(jax.random.key(0))
        return "random_bits[" in str(traced)

    return whether


@pytest.fixture(scope="session")
def from_torch() -> SimpleNamespace:
    """Functions (named arrays, prefix) -> parameters, one for each kind of module, and the arrays' makers."""

    def weights(module) -> dict[str, np.ndarray]:
        return {name: p.detach().numpy().copy() for name, p in module.named_parameters()}

    def gradients(module) -> dict[str, np.ndarray]:
        return {name: p.grad.numpy().copy() for name, p in module.named_parameters() if p.grad is not None}

    def spread(module, seed: int = 0, scale: float = 0.3):
        """The module in evaluation, far enough from symmetric: biases and norms too are random."""
        import torch

        torch.manual_seed(seed)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(scale * torch.randn_like(parameter))
        return module.eval()

    return SimpleNamespace(
        linear=linear, norm=norm, attention=attention, layers=layers,
        weights=weights, gradients=gradients, spread=spread,
    )  # fmt: skip

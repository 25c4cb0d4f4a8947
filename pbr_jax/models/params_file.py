"""Parameters as one safetensors file: nested dicts whose leaves are named by their paths."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from pbr_jax.types import Params, UserError


def save_params(params: Params, path: Path) -> None:
    """Writes every leaf under its path, such as `tower/layers/attention/query/kernel`."""
    from safetensors.numpy import save_file

    save_file({name: np.ascontiguousarray(leaf) for name, leaf in _leaves(params, "")}, path)


def load_params(path: Path) -> Params:
    """What `save_params` wrote, on the default device.

    Raises:
      UserError: the file is absent or damaged.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        leaves = load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"{path} cannot be read as parameters ({error}); delete its folder and run again"
        ) from error
    params: Params = {}
    for name, leaf in leaves.items():
        *parents, last = name.split("/")
        place = params
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = jnp.asarray(leaf)
    return params


def _leaves(params: Params, prefix: str) -> list[tuple[str, np.ndarray]]:
    found = []
    for name, value in params.items():
        if isinstance(value, dict):
            found += _leaves(value, f"{prefix}{name}/")
        else:
            found.append((f"{prefix}{name}", np.asarray(jax.device_get(value))))
    return found

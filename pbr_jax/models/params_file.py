"""Parameters as one safetensors file: nested dicts whose leaves are named by their paths."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np

from pbr_jax.base.types import Params, UserError
from pbr_jax.models.rules import flatten, unflatten
from pbr_jax.models.sharding import whole


def save_params(params: Params, path: Path) -> None:
    """Writes every leaf under its path, such as `tower/layers/attention/query/kernel`."""
    from safetensors.numpy import save_file

    leaves = {name: whole(leaf) for name, leaf in flatten(params).items()}
    save_file({name: np.ascontiguousarray(leaf) for name, leaf in leaves.items()}, path)


def load_params(path: Path) -> Params:
    """What `save_params` wrote, on the default device. Raises UserError: the file is absent or damaged.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "own.safetensors"
    >>> save_params({"head": {"kernel": jnp.ones((2, 3))}}, file)
    >>> load_params(file)["head"]["kernel"].shape
    (2, 3)
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        leaves = load_file(path)
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"{path} cannot be read as parameters ({error}); delete its folder and run again"
        ) from error
    return unflatten({path: jnp.asarray(leaf) for path, leaf in leaves.items()})

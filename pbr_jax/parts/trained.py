"""What all trained parts share: their parameters on disk, and what can be told before a training."""

import shutil
from pathlib import Path

from pbr_jax.models.params_file import load_params, save_params
from pbr_jax.options import Training
from pbr_jax.types import Params

_PARAMS = "params.safetensors"


def keep(params: Params, folder: Path) -> None:
    """The parameters that training found, and metrics.jsonl; its checkpoints have done their work."""
    save_params(params, folder / f".{_PARAMS}")
    (folder / f".{_PARAMS}").replace(folder / _PARAMS)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def is_kept(folder: Path) -> bool:
    """Whether an attempt had kept its parameters when it was killed; its checkpoints are taken away."""
    if not (folder / _PARAMS).exists():
        return False
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return True


def load_kept(folder: Path) -> Params:
    """The parameters that `keep` wrote."""
    return load_params(folder / _PARAMS)


def check_training(options: Training) -> None:
    """Raises UserError for a batch that the devices cannot divide."""
    from pbr_jax.train import sharding

    sharding.parts(options.batch_size, options.accumulate, sharding.data_mesh(options.devices))

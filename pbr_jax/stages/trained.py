"""What all trained parts share: their parameters on disk, and the report of a training."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pbr_jax.base.files import write_text
from pbr_jax.base.types import Params
from pbr_jax.graph import Node, tell
from pbr_jax.graph.lists import stages
from pbr_jax.models.params_file import load_params, save_params
from pbr_jax.options import Training

if TYPE_CHECKING:
    from pbr_jax.train.loop import Fitted

_PARAMS = "params.safetensors"
REPORT = "training.json"


def save_fitted(fitted: "Fitted", folder: Path, name: str) -> None:
    """Writes the trained parameters and the training's report into `folder`, and deletes its checkpoints.

    Notes go to the log and to stderr at once, under the name of the part.
    """
    _tell(fitted, folder, name)
    save_params(fitted.params, folder / f".{_PARAMS}")
    (folder / f".{_PARAMS}").replace(folder / _PARAMS)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def save_adapter(fitted: "Fitted", folder: Path, name: str, write: Callable[[Path], None]) -> None:
    """The same for an adapter, which `write` writes into a folder, its last file whole or not at all."""
    _tell(fitted, folder, name)
    write(folder)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def _tell(fitted: "Fitted", folder: Path, name: str) -> None:
    save_report(folder, name, {"step": fitted.step, **fitted.report}, fitted.notes)


def save_report(folder: Path, name: str, report: Mapping[str, Any], notes: Sequence[str]) -> None:
    """What a training has to tell; `reports` finds it. Notes go to the log and to stderr at once."""
    write_text(folder / REPORT, json.dumps({**report, "notes": list(notes)}))
    for note in notes:
        tell(name, note)


def is_saved(folder: Path, file: str = _PARAMS) -> bool:
    """Whether an attempt had kept its parameters when it was killed; its checkpoints are taken away.

    `file`: the last one that is written.
    """
    if not (folder / file).exists():
        return False
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    return True


def reports(last: Node) -> dict[str, dict[str, Any]]:
    """What the trainings under a node told, by the labels of their stages, as far as they are there.

    Notes of trainings that were found, not made now, are told again.
    """
    found = {}
    for label, stage in stages(last).items():
        file = stage.folder / REPORT
        if not stage.is_made or not file.is_file():
            continue
        found[label] = load_report(stage.folder)
        for note in () if stage.was_made else found[label]["notes"]:
            tell(label, note)
    return found


def load_report(folder: Path) -> dict[str, Any]:
    """What `save_fitted` wrote of the training."""
    return json.loads((folder / REPORT).read_text(encoding="utf-8"))


def load_saved(folder: Path) -> Params:
    """The parameters that `save_fitted` wrote."""
    return load_params(folder / _PARAMS)


def check_training(options: Training, tensor_parallel: int = 1) -> None:
    """Raises UserError for a batch that the devices, so many of which share a copy, cannot divide."""
    from pbr_jax.train import sharding, steps

    mesh = sharding.data_mesh(options.devices, tensor_parallel)
    steps.division(options.batch_size, options.accumulate, mesh)

"""The LoRA adapter of a run's tuned generator, as PEFT, vLLM and SGLang load it."""

import shutil
from pathlib import Path

from pbr_jax.base.types import UserError
from pbr_jax.experiment.opening import plan_of
from pbr_jax.graph.lists import unified
from pbr_jax.models import adapter_file
from pbr_jax.stages import generator


def write(folder: Path, run: Path) -> None:
    """Writes the adapter of a finished run into a folder.

    It is trained now where it has left the cache, or where the run is of folds.

    Raises UserError where the run's generator has no adapter of its own.
    """
    plan = plan_of(run)
    method = plan.config.generator.method
    if method != "lora":
        raise UserError(
            f"{run}: generator.method {method} trains no adapter; export a run of generator.method lora, "
            "such as configs/tuned"
        )
    source: Path = unified(generator.weights(plan.run)).value
    for name in (adapter_file.CONFIG, adapter_file.WEIGHTS):
        shutil.copyfile(source / name, folder / name)

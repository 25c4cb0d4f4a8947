"""Adapters (`lora`) on disk, in the format of PEFT: adapter_config.json and adapter_model.safetensors.

A folder that is written here loads in PEFT (Mangrulkar et al., 2022), and the other way round.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import jax
import numpy as np

from pbr_jax.base.file_hashes import file_hash
from pbr_jax.base.files import write_text
from pbr_jax.base.types import Params, UserError
from pbr_jax.models import lora, pretrained
from pbr_jax.models.params_file import load_params

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PARAMS = "params.safetensors"  # where not an adapter, but all of a model was tuned
_PREFIX = "base_model.model."
# What plain LoRA may say; whatever else is said changes something that is not read here.
_SAID = {
    "peft_type", "task_type", "base_model_name_or_path", "revision", "peft_version", "auto_mapping",
    "inference_mode", "r", "lora_alpha", "lora_dropout", "use_rslora", "target_modules", "exclude_modules",
    "layers_pattern", "init_lora_weights", "megatron_core", "qalora_group_size",
}  # fmt: skip
_NOTHING: tuple[Any, ...] = (None, False, "none", [], {})
_STARTS = (True, False, None, "gaussian", "eva")  # from which training begins with the base as it is


class Adapter(NamedTuple):
    """An adapter and what its products are multiplied with: alpha / r, or alpha / sqrt(r)."""

    params: Params
    scale: float


def write(
    folder: Path,
    adapter: Params,
    modules: Mapping[str, str],
    *,
    rank: int,
    alpha: float,
    dropout: float,
    base: str,
    task: str,
) -> None:
    """The adapter in a folder, weights last.

    Args:
      modules: path of a linear map -> its name in Hugging Face's files, with {layer}.
      base: what the config calls the model.
      task: PEFT's name of the kind of model, CAUSAL_LM or SEQ_2_SEQ_LM.
    """
    from safetensors.numpy import save_file

    pairs = list(_pairs(adapter))
    tensors = {}
    for path, pair in pairs:
        for letter, stacked in zip("AB", pair):
            for layer, array in enumerate(np.asarray(stacked, np.float32)):
                name = modules[path].format(layer=layer)
                tensors[f"{_PREFIX}{name}.lora_{letter}.weight"] = np.ascontiguousarray(array)
    config = {
        "peft_type": "LORA",
        "task_type": task,
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": dropout,
        "target_modules": sorted({modules[path].rpartition(".")[2] for path, _ in pairs}),
        "bias": "none",
        "use_rslora": False,
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / CONFIG, json.dumps(config, indent=2) + "\n")
    save_file(tensors, folder / f".{WEIGHTS}", metadata={"format": "pt"})
    (folder / f".{WEIGHTS}").replace(folder / WEIGHTS)


def read(folder: Path, modules: Mapping[str, str], params: Params, *, outputs_first: bool) -> Adapter:
    """The adapter of a folder, for a model of these parameters (or their shapes). Raises UserError: no
    adapter, one of another kind than LoRA or of another model, files that are damaged."""
    config = _config(folder)
    places = _places(modules, params, outputs_first)
    adapter: Params = {}
    filled: dict[tuple[str, str], set[int]] = {}
    for name, array in pretrained.read_tensors(folder / WEIGHTS).items():
        match = re.fullmatch(r"(.+)\.lora_([AB])(?:\.default)?\.weight", name)
        place = places.get(match[1].removeprefix(_PREFIX)) if match else None
        if match is None or place is None:
            raise _foreign(folder, f"{name}, which the model has no map for")
        path, layer, (layers, outputs, inputs) = place
        shape = (config.rank, inputs) if match[2] == "A" else (outputs, config.rank)
        if array.shape != shape:
            raise _foreign(folder, f"{name} of shape {array.shape}, where the model needs {shape}")
        if not np.isfinite(np.asarray(array, np.float32)).all():
            raise UserError(f"{folder / WEIGHTS}: found values in {name} that are not finite; train it again")
        pair = adapter
        for part in path.split("/"):
            pair = pair.setdefault(part, {})
        letter = match[2].lower()
        pair.setdefault(letter, np.zeros((layers, *shape), np.float32))[layer] = array
        filled.setdefault((path, letter), set()).add(layer)
    if not adapter:
        raise _foreign(folder, "no weights")
    for path in {path for path, _ in filled}:
        if filled.get((path, "a")) != filled.get((path, "b")):
            raise _foreign(folder, f"one of the two matrices of {path} alone in some layer")
    for name, (path, layer, _) in places.items():
        wanted = any(name == own or name.endswith(f".{own}") for own in config.targets)
        if (wanted or (path, "a") in filled) and layer not in filled.get((path, "a"), ()):
            raise _foreign(folder, f"nothing for {name}")
    return Adapter(adapter, config.scale)


def tuned(folder: Path, modules: Mapping[str, str], params: Params, *, outputs_first: bool) -> Params:
    """The parameters with what a folder holds: an adapter merged into them, or all of them tuned. They
    keep their number format, and stay on their devices, divided as they are."""
    if not (folder / PARAMS).is_file():
        adapter = read(folder, modules, params, outputs_first=outputs_first)
        return lora.merged(params, adapter.params, adapter.scale, outputs_first=outputs_first)

    def place(own: jax.Array, other: jax.Array) -> jax.Array:
        return jax.device_put(other.astype(own.dtype), own.sharding)

    loaded = load_params(folder / PARAMS)
    if jax.tree.map(np.shape, loaded) != jax.tree.map(np.shape, params):
        raise _foreign(folder, "other parameters")
    return jax.tree.map(place, params, loaded)


def fingerprint(folder: Path) -> str:
    """A hash of what `tuned` reads. Raises UserError where there is no adapter."""
    if not (folder / PARAMS).is_file():
        _config(folder)
    digest = hashlib.sha256()
    for name in (PARAMS, CONFIG, WEIGHTS):
        if (folder / name).is_file():
            digest.update(f"{name} {file_hash(folder / name)}\n".encode())
    return digest.hexdigest()


class _Config(NamedTuple):
    """`targets`: ends of the names of maps that have products in every layer, where the file lists them."""

    rank: int
    scale: float
    targets: tuple[str, ...]


def _config(folder: Path) -> _Config:
    if not (folder / CONFIG).is_file():
        raise UserError(f"{folder}: found no {CONFIG}, want a folder that PEFT saved an adapter in")
    fields = pretrained.read_json(folder / CONFIG)
    if not isinstance(fields, dict) or fields.get("peft_type") != "LORA":
        kind = fields.get("peft_type") if isinstance(fields, dict) else type(fields).__name__
        raise UserError(f"{folder / CONFIG}: found an adapter of the kind {kind!r}, want LORA")
    other = {name: value for name, value in fields.items() if name not in _SAID and value not in _NOTHING}
    start = fields.get("init_lora_weights")
    if not any(start is known or start == known for known in _STARTS):
        other["init_lora_weights"] = start
    for name, value in other.items():
        raise UserError(f"{folder / CONFIG}: found {name} {value!r:.80}; only plain LoRA is read")
    rank, alpha = fields.get("r"), fields.get("lora_alpha")
    if not isinstance(rank, int) or not _is_number(rank) or not _is_number(alpha):
        raise UserError(
            f"{folder / CONFIG}: found r {rank!r:.80} and lora_alpha {alpha!r:.80}, want positive numbers"
        )
    targets = fields.get("target_modules")
    if not isinstance(targets, list) or fields.get("exclude_modules"):
        targets = []
    scale = alpha / (math.sqrt(rank) if fields.get("use_rslora") else rank)
    return _Config(int(rank), scale, tuple(map(str, targets)))


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e9


def _places(
    modules: Mapping[str, str], params: Params, outputs_first: bool
) -> dict[str, tuple[str, int, tuple[int, int, int]]]:
    """By the name of a map in the files: its path, its layer, and how many layers, outputs and inputs."""
    places = {}
    for path, name in modules.items():
        own: Any = params
        for part in path.split("/"):
            own = own.get(part, {})
        if "kernel" not in own:
            continue
        layers, *sides = own["kernel"].shape
        outputs, inputs = sides if outputs_first else reversed(sides)
        for layer in range(layers):
            places[name.format(layer=layer)] = (path, layer, (layers, outputs, inputs))
    return places


def _pairs(adapter: Params, prefix: str = ""):
    for name, inner in adapter.items():
        if "a" in inner and not isinstance(inner["a"], dict):
            yield f"{prefix}{name}", (inner["a"], inner["b"])
        else:
            yield from _pairs(inner, f"{prefix}{name}/")


def _foreign(folder: Path, what: str) -> UserError:
    return UserError(f"{folder}: found {what}; want an adapter of the model that llm.model names")

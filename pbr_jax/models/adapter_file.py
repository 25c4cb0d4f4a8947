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


class Part(NamedTuple):
    """A linear map that is `start` and the next rows of a larger one in Hugging Face's files (Phi-3).

    `name` and `rows` are those of the larger one.
    """

    name: str
    start: int
    rows: int


Modules = Mapping[str, str | Part]
"""Maps the path of a linear map to its name in Hugging Face's files, with {layer}."""


def write(
    folder: Path,
    adapter: Params,
    modules: Modules,
    *,
    rank: int,
    alpha: float,
    dropout: float,
    base: str,
    task: str,
) -> None:
    """The adapter in a folder, weights last.

    The adapters of maps that are parts of one become one of a larger rank: their products stand side by
    side. All maps have that rank then.

    Args:
      base: what the config calls the model.
      task: PEFT's name of the kind of model, CAUSAL_LM or SEQ_2_SEQ_LM.
    """
    from safetensors.numpy import save_file

    members: dict[str, list[tuple[int, int, np.ndarray, np.ndarray]]] = {}
    for path, pair in _pairs(adapter):
        a, b = (np.asarray(stacked, np.float32) for stacked in pair)
        part = modules[path]
        name, start, rows = part if isinstance(part, Part) else (part, 0, b.shape[1])
        members.setdefault(name, []).append((start, rows, a, b))
    times = max(map(len, members.values()))
    tensors = {}
    for name, parts in members.items():
        (_, rows, first, _), width = parts[0], rank * times
        for layer in range(len(first)):
            down = np.zeros((width, first.shape[2]), np.float32)
            up = np.zeros((rows, width), np.float32)
            for place, (start, _, a, b) in enumerate(parts):
                own = slice(place * rank, (place + 1) * rank)
                down[own], up[start : start + b.shape[1], own] = a[layer], b[layer]
            whole = f"{_PREFIX}{name.format(layer=layer)}"
            tensors |= {f"{whole}.lora_A.weight": down, f"{whole}.lora_B.weight": up}
    config = {
        "peft_type": "LORA",
        "task_type": task,
        "base_model_name_or_path": base,
        "r": rank * times,
        "lora_alpha": alpha * times,
        "lora_dropout": dropout,
        "target_modules": sorted({name.rpartition(".")[2] for name in members}),
        "bias": "none",
        "use_rslora": False,
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / CONFIG, json.dumps(config, indent=2) + "\n")
    save_file(tensors, folder / f".{WEIGHTS}", metadata={"format": "pt"})
    (folder / f".{WEIGHTS}").replace(folder / WEIGHTS)


def read(folder: Path, modules: Modules, params: Params) -> Adapter:
    """The adapter of a folder, for a model of these parameters (or their shapes). Raises UserError: no
    adapter, one of another kind than LoRA or of another model, files that are damaged."""
    config = _config(folder)
    places = _places(modules, params)
    adapter: Params = {}
    filled: dict[tuple[str, str], set[int]] = {}
    for name, array in pretrained.read_tensors(folder / WEIGHTS).items():
        match = re.fullmatch(r"(.+)\.lora_([AB])(?:\.default)?\.weight", name)
        of_name = places.get(match[1].removeprefix(_PREFIX), []) if match else []
        if match is None or not of_name:
            raise _foreign(folder, f"{name}, which the model has no map for")
        if not np.isfinite(np.asarray(array, np.float32)).all():
            raise UserError(f"{folder / WEIGHTS}: found values in {name} that are not finite; train it again")
        letter = match[2].lower()
        for place in of_name:
            shape = (config.rank, place.inputs) if letter == "a" else (place.rows, config.rank)
            if array.shape != shape:
                raise _foreign(folder, f"{name} of shape {array.shape}, where the model needs {shape}")
            own = array if letter == "a" else array[place.start : place.start + place.outputs]
            pair = adapter
            for part in place.path.split("/"):
                pair = pair.setdefault(part, {})
            stacked = pair.setdefault(letter, np.zeros((place.layers, *own.shape), np.float32))
            stacked[place.layer] = own
            filled.setdefault((place.path, letter), set()).add(place.layer)
    if not adapter:
        raise _foreign(folder, "no weights")
    for path in {path for path, _ in filled}:
        if filled.get((path, "a")) != filled.get((path, "b")):
            raise _foreign(folder, f"one of the two matrices of {path} alone in some layer")
    for name, of_name in places.items():
        wanted = any(name == own or name.endswith(f".{own}") for own in config.targets)
        for place in of_name:
            layers = filled.get((place.path, "a"), ())
            if (wanted or layers) and place.layer not in layers:
                raise _foreign(folder, f"nothing for {name}")
    return Adapter(adapter, config.scale)


def tuned(folder: Path, modules: Modules, params: Params) -> Params:
    """The parameters with what a folder holds: an adapter merged into them, or all of them tuned. They
    keep their number format, and stay on their devices, divided as they are."""
    if not (folder / PARAMS).is_file():
        adapter = read(folder, modules, params)
        return lora.merged(params, adapter.params, adapter.scale)

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


class _Place(NamedTuple):
    """A layer of a linear map: `rows` and `start` as of a `Part`."""

    path: str
    layer: int
    layers: int
    outputs: int
    inputs: int
    start: int
    rows: int


def _places(modules: Modules, params: Params) -> dict[str, list[_Place]]:
    """By the name of a map in the files, what it is of the model: several maps where it is fused."""
    places: dict[str, list[_Place]] = {}
    for path, part in modules.items():
        own: Any = params
        for piece in path.split("/"):
            own = own.get(piece, {})
        if "kernel" not in own:
            continue
        layers, outputs, inputs = own["kernel"].shape
        name, start, rows = part if isinstance(part, Part) else (part, 0, outputs)
        for layer in range(layers):
            place = _Place(path, layer, layers, outputs, inputs, start, rows)
            places.setdefault(name.format(layer=layer), []).append(place)
    return places


def _pairs(adapter: Params, prefix: str = ""):
    for name, inner in adapter.items():
        if "a" in inner and not isinstance(inner["a"], dict):
            yield f"{prefix}{name}", (inner["a"], inner["b"])
        else:
            yield from _pairs(inner, f"{prefix}{name}/")


def _foreign(folder: Path, what: str) -> UserError:
    return UserError(f"{folder}: found {what}; want an adapter of the model that llm.model names")

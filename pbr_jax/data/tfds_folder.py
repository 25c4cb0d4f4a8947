"""Folders that TensorFlow Datasets (TFDS) wrote: found, checked and listed without importing it.

A dataset lies in `DATA_DIR/NAME[/CONFIG]/VERSION`, beside dataset_info.json, which names its splits and
shards. TFDS makes that folder under another name and renames it at the end, so a version's folder is
whole. Only shards in the array_record format can be read without TensorFlow.
"""

import importlib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from pbr_jax.base.files import parse_json
from pbr_jax.base.types import UserError

INFO = "dataset_info.json"
_FORMAT = "array_record"

Row = Mapping[str, Any]
_VERSION = re.compile(r"\d+\.\d+\.\d+")


class Folder(NamedTuple):
    """One version of a dataset, with the shards of its splits in order."""

    path: Path
    dataset: str
    shards: Mapping[str, tuple[Path, ...]]


def find(root: str | Path, dataset: str) -> Folder | None:
    """The dataset in `root`, None where there is none.

    `root` is either the folder of one version, whatever dataset that is, or a TFDS data_dir, of which the
    newest version of `dataset` is taken. UserError where its configurations leave a choice, and for
    what cannot be read.
    """
    root = Path(root)
    if (root / INFO).is_file():
        return load(root)
    infos = (info for pattern in ("*/*", "*") for info in (root / dataset).glob(f"{pattern}/{INFO}"))
    versions = [info.parent for info in infos if _VERSION.fullmatch(info.parent.name)]
    if len(several := sorted({path.parent.name for path in versions})) > 1:
        raise UserError(
            f"{root}: found several configurations of {dataset} ({', '.join(several)}), wanted one; "
            "set --benchmark.root to the folder of one version"
        )
    newest = max(versions, key=lambda path: [*map(int, path.name.split("."))], default=None)
    return None if newest is None else load(newest)


def load(path: Path) -> Folder:
    """The dataset in the folder of a version; UserError where it is damaged or not array_record."""
    info = read_info(path)
    form = info.get("fileFormat", "tfrecord")
    if form != _FORMAT:
        raise UserError(
            f"{path}: found the file format {form}, wanted {_FORMAT}, which is read without TensorFlow; "
            f"prepare the dataset with file_format='{_FORMAT}'"
        )
    name = str(info.get("name"))
    splits = {split["name"]: len(split.get("shardLengths", ())) for split in info.get("splits", ())}
    shards = {
        split: tuple(path / f"{name}-{split}.{_FORMAT}-{i:05}-of-{count:05}" for i in range(count))
        for split, count in splits.items()
    }
    return Folder(path, name, shards)


def read_info(path: Path) -> dict[str, Any]:
    """What the folder of a version says of itself; UserError where that cannot be read."""
    try:
        info = parse_json((path / INFO).read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{path / INFO}: cannot be read ({error}); prepare the dataset again") from error
    if not isinstance(info, dict):
        raise UserError(f"{path / INFO}: found no JSON object, wanted one; prepare the dataset again")
    return info


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Raises UserError for what the C++ library that reads array_record refuses."""
    try:
        yield
    except RuntimeError as error:
        raise UserError(
            f"{path}: cannot be read ({error}); copy the folder again or prepare it anew"
        ) from error


@dataclass(frozen=True)
class Rows:
    """The rows of a split with random access; UserError where one cannot be read."""

    source: Any
    path: Path

    def __len__(self) -> int:
        return len(self.source)

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, index: int) -> Any:
        with readable(self.path):
            return self.source[index]


def rows(folder: Folder, split: str) -> Rows:
    """The rows of a split, texts as bytes, under TFDS's name of it; UserError for a missing package or
    shard."""
    if missing := next((shard for shard in folder.shards[split] if not shard.is_file()), None):
        raise UserError(f"{missing}: found no such file, wanted it for {split}; copy the whole folder")
    builder = package("tensorflow_datasets").builder_from_directory(folder.path)
    return Rows(builder.as_data_source(split), folder.path)


def text(value: bytes) -> str:
    """A text as TFDS reads it."""
    return value.decode("utf-8")


def texts(values: Iterable[bytes]) -> list[str]:
    """A list of texts as TFDS reads it."""
    return [value.decode("utf-8") for value in values]


def package(name: str) -> ModuleType:
    """An optional package of the extra `data`; UserError that names the command where it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        missing, *_ = (error.name or name).split(".")
        raise UserError(
            f"found no package {missing}, wanted it to read and write prepared data; "
            "pip install 'pbr-jax[data]'"
        ) from error

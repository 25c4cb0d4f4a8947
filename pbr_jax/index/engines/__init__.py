"""The engines that a config can name: each module of this folder is one, with a class `Engine`.

A new engine is a new module here. Its name is a value of `retrieve.index` at once, and `erase` reaches it.
"""

import importlib
import pkgutil
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from pbr_jax.base.types import UserError
from pbr_jax.index.base import Engine


def _imported(name: str) -> type[Engine]:
    return importlib.import_module(f"{__name__}.{name}").Engine


ENGINES: dict[str, Callable[[], type[Engine]]] = {
    module.name: partial(_imported, module.name) for module in pkgutil.iter_modules(__path__)
}


def load(name: str) -> type[Engine]:
    """The class of an engine. Raises UserError for an unknown name."""
    if name not in ENGINES:
        raise UserError(f"there is no engine {name!r}; there are {', '.join(ENGINES)}")
    return ENGINES[name]()


def for_size(count: int) -> str:
    """The engine that `auto` takes for a collection of so many vectors."""
    for name in ENGINES:
        if count >= load(name).auto_from and _is_installed(name):
            return name
    return "exact"


def _is_installed(name: str) -> bool:
    try:
        load(name).check_installed()
    except UserError:
        return False
    return True


def folder(parent: Path, name: str, store: str) -> Path:
    """The folder of an engine's files, inside the folder of the vectors that it copies."""
    return parent / f"{name}-{store}"


def erase(parent: Path, gone: np.ndarray, width: int) -> None:
    """Deletes vectors whose places are `gone`, bool [places], from the files of every engine in a folder.

    Where an engine cannot do this, because it is not installed or its files are damaged, all of its files are
    deleted. They are made again when they are needed.
    """
    for copied in sorted(path for path in parent.iterdir() if path.is_dir()):
        try:
            load(copied.name.partition("-")[0])(copied, width).erase(gone)
        except Exception:
            shutil.rmtree(copied)

"""The Python of config files: run, and searched for classes of methods."""

import contextlib
import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from pbr_jax.base import file_hashes
from pbr_jax.base.types import UserError
from pbr_jax.cache import sources
from pbr_jax.options import Method

_OF_FILES: dict[str, set[str]] = {}
"""The modules that are config files, by name, each with those beside it that it imports, and itself."""


@contextlib.contextmanager
def blamed(path: Path) -> Iterator[None]:
    """Whatever a config file's Python raises as a UserError that says where: it is the user's to mend."""
    try:
        yield
    except Exception as error:
        frames = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
        line = frames[-1] if frames else getattr(error, "lineno", None)
        where = f"{path}, line {line}" if line else str(path)
        what = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        raise UserError(f"{where}: {what}{error}") from error


def execute(path: Path) -> ModuleType:
    """The module of a config file, run anew; its name tells its place, so that classes in it are found."""
    name = _name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None:
        raise UserError(f"{path} is no Python file; a config file ends in .py")
    file_hashes.watch(path)
    module, source = importlib.util.module_from_spec(spec), path.read_bytes()
    _OF_FILES[name] = {name, *_beside(path.resolve(), source)}
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))  # a config may import what lies beside it
    try:
        sources.run(module, source, path)
    finally:
        sys.path.pop(0)
    return module


def executed(path: Path) -> ModuleType | None:
    """The module of a config file, if this process has executed what the file holds now."""
    module, source = sys.modules.get(_name(path)), path.read_bytes()
    if module is None or sources.executed(vars(module)) != source:
        return None
    file_hashes.watch(path)
    _beside(path.resolve(), source)
    return module


def _name(path: Path) -> str:
    return f"pbr_jax_config_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]}"


def is_of_file(module: str) -> bool:
    """Whether a module is a config file, or lies beside one that imports it."""
    return any(module in of_file for of_file in _OF_FILES.values())


def _beside(path: Path, source: bytes) -> set[str]:
    """The modules beside a config that it imports, which are watched, without packages.

    Raises UserError where this process has another module of such a name: it would be run instead.
    """
    waiting, seen = [source], set()
    while waiting:
        for name in sources.imports(waiting.pop()) - seen:
            places = (path.parent / name / "__init__.py", path.parent / f"{name}.py")
            file = next((place for place in places if place.is_file()), None)
            if file is None:
                continue
            seen.add(name)
            where = Path(getattr(sys.modules.get(name), "__file__", None) or file).resolve()
            if where != file:
                raise UserError(
                    f"{path} imports {name} from beside it, and this process has another module {name} "
                    f"({where}); give it another name, or start another process"
                )
            file_hashes.watch(file)
            waiting.append(file.read_bytes())
    return {name for name in seen if (path.parent / f"{name}.py").is_file()}


def own_classes(slot: type[Method], name: Any, file: Path | None = None) -> set[type[Method]]:
    """A slot's classes of this name that a config file defines or imports; None: any file of this process."""
    files = _OF_FILES.values() if file is None else [_OF_FILES.get(_name(file), set())]
    modules = [sys.modules[one] for of_file in files for one in of_file if one in sys.modules]
    values = [value for module in modules for value in vars(module).values()]
    classes = [value for value in values if isinstance(value, type) and issubclass(value, slot)]
    return {cls for cls in classes if getattr(cls, "method", None) == name}
